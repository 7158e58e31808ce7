//! A broker of any kind, as people and the daemon look at it before anything is sent.

use anyhow::{Result, anyhow};
use relevo_broker_nats::NatsAdmin;
use relevo_broker_rabbitmq::RabbitAdmin;
use relevo_core::administer::{Administer, Piece, State};
use relevo_core::{Class, Failure};

use crate::config::Broker;
use crate::exit::{away, usage};

/// The broker's administration; `None` for a kind that has neither topology nor settings of its own.
pub(crate) fn admin(broker: &Broker) -> Result<Option<Box<dyn Administer>>> {
    Ok(match broker {
        Broker::Embedded { .. } => None,
        Broker::Rabbitmq(config) => {
            let admin = RabbitAdmin::new(config.as_ref().clone()).map_err(|error| usage(error.to_string()))?;
            Some(Box::new(admin))
        }
        Broker::Nats(config) => {
            let admin = NatsAdmin::new(config.as_ref().clone()).map_err(|error| usage(error.to_string()))?;
            Some(Box::new(admin))
        }
    })
}

/// A failure as the error of a command.
pub(crate) fn failed(failure: &Failure) -> anyhow::Error {
    match failure.class() {
        Class::Outage | Class::Unknown | Class::Throttled(_) | Class::Transient => away(format!(
            "{}; hint: check host and port, that the server runs, and that it may be reached from here",
            failure.describe()
        )),
        Class::Poison | Class::Blocked => anyhow!(failure.describe()),
    }
}

/// The word for a state that people and JSON see.
pub(crate) const fn word(state: &State) -> &'static str {
    match state {
        State::Same => "same",
        State::Missing => "missing",
        State::Made => "made",
        State::Differs(_) => "differs",
    }
}

/// Whether a piece is as the configuration wants it.
pub(crate) const fn is_there(piece: &Piece) -> bool {
    match piece.state {
        State::Same | State::Made => true,
        State::Missing | State::Differs(_) => false,
    }
}
