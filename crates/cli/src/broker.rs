//! A broker of any kind, as people and the daemon look at it before anything is sent.

use anyhow::{Result, anyhow};
use relevo_broker_nats as nats;
use relevo_broker_rabbitmq as rabbitmq;
use relevo_core::broker::admin::{BrokerAdmin, TopologyItem, TopologyStatus};
use relevo_core::{Class, Failure};

use crate::config::Broker;
use crate::exit::{away, usage};

/// The broker's administration; `None` for a kind that has neither topology nor settings of its own.
pub(crate) fn admin(broker: &Broker) -> Result<Option<Box<dyn BrokerAdmin>>> {
    Ok(match broker {
        Broker::Embedded { .. } => None,
        Broker::Rabbitmq(config) => {
            let admin = rabbitmq::Admin::new(config.as_ref().clone()).map_err(|error| usage(error.to_string()))?;
            Some(Box::new(admin))
        }
        Broker::Nats(config) => {
            let admin = nats::Admin::new(config.as_ref().clone()).map_err(|error| usage(error.to_string()))?;
            Some(Box::new(admin))
        }
    })
}

/// The administration without the management API of RabbitMQ, if that is what the failure is about: it is one node's,
/// and messages need it not. Policies cannot be seen then.
pub(crate) fn without_management(broker: &Broker, failure: &Failure) -> Option<Box<dyn BrokerAdmin>> {
    let (Broker::Rabbitmq(config), Some(rabbitmq::Error::ManagementUnreachable(_))) = (broker, failure.cause()) else {
        return None;
    };
    let mut config = config.as_ref().clone();
    config.management_urls.clear();
    config.topology.policies.clear();
    let admin: Box<dyn BrokerAdmin> = Box::new(rabbitmq::Admin::new(config).ok()?);
    Some(admin)
}

/// A failure as the error of a command.
pub(crate) fn failed(failure: &Failure) -> anyhow::Error {
    let told = failure.error_chain();
    match failure.class() {
        Class::Outage => away(format!(
            "{told}; hint: check host and port, that the server runs, and that it may be reached from here"
        )),
        Class::Unknown | Class::Throttled(_) | Class::Transient => away(told),
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
        TopologyStatus::Unchanged => "same",
        TopologyStatus::Missing => "missing",
        TopologyStatus::Created => "made",
        TopologyStatus::Unknown => "unseen",
        TopologyStatus::Different(_) => "differs",
    }
}

/// Whether a piece is as the configuration wants it, as far as that can be seen.
pub(crate) const fn is_there(piece: &TopologyItem) -> bool {
    match piece.status {
        TopologyStatus::Unchanged | TopologyStatus::Created | TopologyStatus::Unknown => true,
        TopologyStatus::Missing | TopologyStatus::Different(_) => false,
    }
}
