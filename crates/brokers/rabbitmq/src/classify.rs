//! What can go wrong, and what each means to the relay or the inbox.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};
use relevo_core::{Class, Failure};

/// Why the broker could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The configuration can never work.
    #[error("the configuration of RabbitMQ is wrong: {0}")]
    Config(String),
    /// There is no connection. Nothing was sent.
    #[error("RabbitMQ cannot be reached")]
    NotConnected(#[source] lapin::Error),
    /// The server did not answer in time. Nothing was sent.
    #[error("RabbitMQ does not answer within {} ms", .0.as_millis())]
    Silent(Duration),
    /// The server is short of memory or disk and takes nothing. Nothing was sent.
    #[error("RabbitMQ takes no messages: {0}")]
    Alarm(String),
    /// The adapter was closed. Nothing was sent.
    #[error("the connection to RabbitMQ is closed on our side")]
    Closed,
    /// The login was refused.
    #[error("RabbitMQ refuses the login of `{user}`: wrong user or password")]
    Login {
        /// Who asked.
        user: String,
    },
    /// The virtual host is not there or not for this user.
    #[error("RabbitMQ refuses the virtual host `{vhost}`: {why}")]
    Vhost {
        /// Which one.
        vhost: String,
        /// What the server said.
        why: String,
    },
    /// The server's certificate is not one that we trust.
    #[error("the certificate of RabbitMQ {0}")]
    ServerCertificate(String),
    /// The server does not take our certificate, or wants one.
    #[error("RabbitMQ {0}")]
    ClientCertificate(String),
    /// The two sides do not understand each other: no TLS where it is expected, or another protocol.
    #[error("RabbitMQ cannot be talked to: {0}")]
    Handshake(String),
    /// The server refused what the user may not do.
    #[error("RabbitMQ does not permit it: {0}")]
    Forbidden(String),
    /// An exchange or a queue is not there.
    #[error("RabbitMQ has it not: {0}")]
    Missing(String),
    /// A queue is there, on a node that is not.
    #[error("RabbitMQ has it on a node that is away: {0}")]
    NodeAway(String),
    /// An exchange or a queue is there and is different.
    #[error("RabbitMQ has it otherwise: {0}")]
    Differs(String),
    /// Nothing is bound that takes messages of this address.
    #[error("nothing is bound to the exchange `{exchange}` for the routing key `{key}`")]
    Unroutable {
        /// The exchange.
        exchange: String,
        /// The routing key.
        key: String,
    },
    /// The address can never be one.
    #[error("the address is none of RabbitMQ: {0}")]
    Address(&'static str),
    /// A queue is full and refuses more.
    #[error("RabbitMQ refused the message: a queue is full or not available")]
    Full,
    /// The server takes messages more slowly than they come. Nothing was sent.
    #[error("the message could not be sent within {} ms: RabbitMQ is slower than what is sent to it", .0.as_millis())]
    Slow(Duration),
    /// So many exchanges are in use that there is no channel for another.
    #[error("more than {0} exchanges are in use")]
    Exchanges(usize),
    /// The connection has no channel left for another exchange or lane.
    #[error(
        "the connection to RabbitMQ has no channel left: raise the server's `channel_max`, or use fewer exchanges, \
         `channels` or lanes"
    )]
    Channels,
    /// Deliveries were out for longer than the server allows; it has taken them back, and closed their channel.
    #[error("RabbitMQ took its deliveries back: {0}")]
    Overdue(String),
    /// The management API cannot be reached, or does not answer in time.
    #[error("the management API of RabbitMQ cannot be reached: {0}")]
    ManagementAway(String),
    /// The management API refuses what we ask, or is none.
    #[error("the management API of RabbitMQ refuses it: {0}")]
    Management(String),
    /// The message can never be sent.
    #[error("the message is {bytes} bytes, more than the {max} that are allowed")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        max: usize,
    },
    /// The message's headers can never be sent.
    #[error("the message's headers cannot be sent: {0}")]
    Headers(String),
    /// It was sent, and the answer did not come.
    #[error("RabbitMQ did not confirm the message within {} ms; it may have arrived", .0.as_millis())]
    Unconfirmed(Duration),
    /// It was sent, its answer did not come, and those to later messages did.
    #[error(
        "RabbitMQ did not confirm the message within {} ms, and confirmed later ones: a queue stands still; it may have arrived",
        .0.as_millis()
    )]
    Stuck(Duration),
    /// It was sent, and then the connection or the channel broke.
    #[error("the connection broke before RabbitMQ confirmed the message; it may have arrived")]
    Broken(#[source] lapin::Error),
    /// Answers were sent, or about to be, and the lane was lost or the broker fell silent.
    #[error("RabbitMQ did not show that it knows the answers; they may have been kept")]
    Unsettled,
}

/// How long a full queue asks the relay to wait.
pub(crate) const FULL_PAUSE: Duration = Duration::from_secs(1);

impl Error {
    /// What it means to the sender or the receiver.
    pub fn class(&self) -> Class {
        match self {
            // Nothing was sent, and it passes by itself.
            Self::NotConnected(_)
            | Self::Silent(_)
            | Self::Alarm(_)
            | Self::Closed
            | Self::Overdue(_)
            | Self::NodeAway(_)
            | Self::ManagementAway(_) => Class::Outage,
            // A person must act, and waiting mends nothing.
            Self::Config(_)
            | Self::Login { .. }
            | Self::Vhost { .. }
            | Self::ServerCertificate(_)
            | Self::ClientCertificate(_)
            | Self::Handshake(_)
            | Self::Forbidden(_)
            | Self::Missing(_)
            | Self::Differs(_)
            | Self::Unroutable { .. }
            | Self::Address(_)
            | Self::Management(_)
            | Self::Channels
            | Self::Exchanges(_) => Class::Blocked,
            // It passes by itself, and concerns one address: consumers make room, a queue finds its majority again.
            Self::Full | Self::Slow(_) | Self::Stuck(_) => Class::Throttled(FULL_PAUSE),
            Self::TooLarge { .. } | Self::Headers(_) => Class::Poison,
            // It may have arrived: same id again, never a new one.
            Self::Unconfirmed(_) | Self::Broken(_) | Self::Unsettled => Class::Unknown,
        }
    }

    /// What the server, or the library, meant when something else than a confirm was asked of a connection that stands:
    /// a channel, a declaration, a subscription.
    pub fn of_channel(error: lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(said) => Self::of_protocol(said).unwrap_or(Self::NotConnected(error)),
            ErrorKind::ChannelsLimitReached => Self::Channels,
            _ => Self::NotConnected(error),
        }
    }

    fn of_protocol(said: &AMQPError) -> Option<Self> {
        let text = said.get_message().to_string();
        match said.kind() {
            // A classic queue whose node is down; the same code as for what nobody has declared.
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) if text.contains("is down or inaccessible") => {
                Some(Self::NodeAway(text))
            }
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Some(Self::Missing(text)),
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => {
                Some(Self::Forbidden(text))
            }
            // `consumer_timeout`; the same code as for what is there and differs.
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) if text.contains("acknowledgement on channel") => {
                Some(Self::Overdue(text))
            }
            // Locked is another connection's exclusive queue: it is there, and not as ours are.
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::RESOURCELOCKED) => {
                Some(Self::Differs(text))
            }
            _ => None,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.class(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> Error {
        let kind = AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);
        Error::of_channel(ErrorKind::ProtocolError(AMQPError::new(kind, text.into())).into())
    }

    #[test]
    fn deliveries_that_were_out_too_long_are_no_reason_to_call_a_person() {
        let overdue = refused(
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms. This \
             timeout value can be configured, see consumers doc guide to learn more",
        );
        assert_eq!(overdue.class(), Class::Outage);
        let differs = refused("PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/'");
        assert_eq!(differs.class(), Class::Blocked);
    }

    #[test]
    fn channels_that_are_used_up_are_told_as_that() {
        let error = Error::of_channel(ErrorKind::ChannelsLimitReached.into());
        assert_eq!(error.class(), Class::Blocked);
        assert!(error.to_string().contains("`channel_max`"), "{error}");
    }
}
