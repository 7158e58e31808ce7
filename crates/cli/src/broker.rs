//! A broker of any kind, as people and the daemon look at it before anything is sent.

use anyhow::{Result, anyhow};
use relevo_core::broker::admin::{BrokerAdmin, TopologyStatus};
use relevo_core::{Class, Failure};
use relevo_host::registry::BrokerConfig;

use crate::exit::{unreachable_server, usage};

/// The broker's administration; `None` for a kind that has neither topology nor settings of its own.
pub(crate) fn admin(broker: &BrokerConfig) -> Result<Option<Box<dyn BrokerAdmin>>> {
    broker.adapter.admin().map_err(|failure| usage(failure.error_chain()))
}

/// A failure as the error of a command.
pub(crate) fn failed(failure: &Failure) -> anyhow::Error {
    let told = failure.error_chain();
    match failure.class() {
        Class::Outage => unreachable_server(format!(
            "{told}; hint: check host and port, that the server runs, and that it may be reached from here"
        )),
        Class::Unknown | Class::Throttled(_) | Class::Transient => unreachable_server(told),
        Class::Blocked => anyhow!(
            "{told}; hint: the server refuses it until a person mends it: the login and its rights, the certificates, or what \
             the configuration names"
        ),
        Class::Poison => anyhow!(told),
    }
}

/// The word for a state that people and JSON see.
pub(crate) const fn word(state: &TopologyStatus) -> &'static str {
    match state {
        TopologyStatus::Unchanged => "unchanged",
        TopologyStatus::Missing => "missing",
        TopologyStatus::Created => "created",
        TopologyStatus::Unknown => "unknown",
        TopologyStatus::Different(_) => "different",
    }
}
