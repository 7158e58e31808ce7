//! Errors of the broker, and the failure class of each.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};
use relevo_core::{Class, Failure};

/// Why a broker call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error("the configuration of RabbitMQ is wrong: {0}")]
    Config(String),
    /// There is no connection. Nothing was sent.
    #[error("RabbitMQ cannot be reached")]
    Unreachable(#[source] lapin::Error),
    /// The server did not respond in time. Nothing was sent.
    #[error("RabbitMQ does not answer within {} ms", .0.as_millis())]
    NoResponse(Duration),
    /// The server has a memory or disk alarm and accepts no messages. Nothing was sent.
    #[error("RabbitMQ takes no messages: {0}")]
    ResourceAlarm(String),
    /// The adapter was closed. Nothing was sent.
    #[error("the connection to RabbitMQ is closed on our side")]
    Closed,
    /// The server refused the login.
    #[error("RabbitMQ refuses the login of `{user}`: wrong user or password")]
    LoginRefused {
        /// The user name.
        user: String,
    },
    /// The virtual host does not exist, or the user has no access to it.
    #[error("RabbitMQ refuses the virtual host `{vhost}`: {why}")]
    VhostRefused {
        /// The virtual host.
        vhost: String,
        /// The description from the server.
        why: String,
    },
    /// The server's certificate is not trusted.
    #[error("the certificate of RabbitMQ {0}")]
    ServerCertificate(String),
    /// The server refused the client certificate, or requires one.
    #[error("RabbitMQ {0}")]
    ClientCertificate(String),
    /// The handshake failed: no TLS where it is expected, or another protocol.
    #[error("RabbitMQ cannot be talked to: {0}")]
    Handshake(String),
    /// The user has no permission.
    #[error("RabbitMQ does not permit it: {0}")]
    AccessRefused(String),
    /// An exchange or a queue does not exist.
    #[error("RabbitMQ has it not: {0}")]
    NotFound(String),
    /// The node of a queue is down.
    #[error("RabbitMQ has it on a node that is away: {0}")]
    NodeDown(String),
    /// An exchange or a queue exists with different settings.
    #[error("RabbitMQ has it otherwise: {0}")]
    Mismatch(String),
    /// No queue is bound for messages of this address.
    #[error("nothing is bound to the exchange `{exchange}` for the routing key `{key}`")]
    Unroutable {
        /// The exchange.
        exchange: String,
        /// The routing key.
        key: String,
    },
    /// The address is invalid.
    #[error("the address is none of RabbitMQ: {0}")]
    InvalidAddress(&'static str),
    /// A queue is full and refuses messages.
    #[error("RabbitMQ refused the message: a queue is full or not available")]
    Nacked,
    /// The server accepts messages too slowly. Nothing was sent.
    #[error("the message could not be sent within {} ms: RabbitMQ is slower than what is sent to it", .0.as_millis())]
    SendTimeout(Duration),
    /// The limit of exchanges in use is reached, so there is no channel for another.
    #[error("more than {0} exchanges are in use")]
    TooManyExchanges(usize),
    /// The connection has no channel left for another exchange or lane.
    #[error(
        "the connection to RabbitMQ has no channel left: raise the server's `channel_max`, or use fewer exchanges, \
         `channels` or lanes"
    )]
    NoChannelLeft,
    /// Deliveries were outstanding for longer than the server allows. It requeued them and closed their channel.
    #[error("RabbitMQ took its deliveries back: {0}")]
    ConsumerTimeout(String),
    /// The management API is unreachable, or does not respond in time.
    #[error("the management API of RabbitMQ cannot be reached: {0}")]
    ManagementUnreachable(String),
    /// The management API refused the request, or the URL is not a management API.
    #[error("the management API of RabbitMQ refuses it: {0}")]
    ManagementRefused(String),
    /// The message exceeds the size limit.
    #[error("the message is {bytes} bytes, more than the {max} that are allowed")]
    TooLarge {
        /// The size of the message.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The headers of the message are invalid.
    #[error("the message's headers cannot be sent: {0}")]
    InvalidHeaders(String),
    /// The message was sent and not confirmed.
    #[error("RabbitMQ did not confirm the message within {} ms; it may have arrived", .0.as_millis())]
    Unconfirmed(Duration),
    /// The message was sent and not confirmed, but later messages were.
    #[error(
        "RabbitMQ did not confirm the message within {} ms, and confirmed later ones: a queue stands still; it may have arrived",
        .0.as_millis()
    )]
    QueueStalled(Duration),
    /// The message was sent, and then the connection or the channel was lost.
    #[error("the connection broke before RabbitMQ confirmed the message; it may have arrived")]
    ConnectionLost(#[source] lapin::Error),
    /// Acknowledgements may have been sent, and then the lane was lost or the broker did not respond.
    #[error("RabbitMQ did not show that it knows the answers; they may have been kept")]
    AckUnconfirmed,
}

/// The pause that a full queue requests from the relay.
pub(crate) const THROTTLE_PAUSE: Duration = Duration::from_secs(1);

impl Error {
    /// The failure class of this error.
    pub fn class(&self) -> Class {
        match self {
            // Nothing was sent, and the problem passes without an operator.
            Self::Unreachable(_)
            | Self::NoResponse(_)
            | Self::ResourceAlarm(_)
            | Self::Closed
            | Self::ConsumerTimeout(_)
            | Self::NodeDown(_)
            | Self::ManagementUnreachable(_) => Class::Outage,
            // An operator must act; waiting does not help.
            Self::Config(_)
            | Self::LoginRefused { .. }
            | Self::VhostRefused { .. }
            | Self::ServerCertificate(_)
            | Self::ClientCertificate(_)
            | Self::Handshake(_)
            | Self::AccessRefused(_)
            | Self::NotFound(_)
            | Self::Mismatch(_)
            | Self::Unroutable { .. }
            | Self::InvalidAddress(_)
            | Self::ManagementRefused(_)
            | Self::NoChannelLeft
            | Self::TooManyExchanges(_) => Class::Blocked,
            // These pass without an operator and concern one address: consumers make room, or a queue regains its
            // majority.
            Self::Nacked | Self::SendTimeout(_) | Self::QueueStalled(_) => Class::Throttled(THROTTLE_PAUSE),
            Self::TooLarge { .. } | Self::InvalidHeaders(_) => Class::Poison,
            // The message may have been stored: publish it again with the same id, never with a new one.
            Self::Unconfirmed(_) | Self::ConnectionLost(_) | Self::AckUnconfirmed => Class::Unknown,
        }
    }

    /// Maps an error of a request other than a publish on an open connection: a channel, a declaration or a
    /// subscription.
    pub fn from_channel_error(error: lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(said) => Self::from_protocol_error(said).unwrap_or(Self::Unreachable(error)),
            ErrorKind::ChannelsLimitReached => Self::NoChannelLeft,
            _ => Self::Unreachable(error),
        }
    }

    fn from_protocol_error(said: &AMQPError) -> Option<Self> {
        let text = said.get_message().to_string();
        match said.kind() {
            // A classic queue whose node is down. A queue that does not exist has the same code.
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) if text.contains("is down or inaccessible") => {
                Some(Self::NodeDown(text))
            }
            AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => Some(Self::NotFound(text)),
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) | AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => {
                Some(Self::AccessRefused(text))
            }
            // `consumer_timeout`. An object with different settings has the same code.
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) if text.contains("acknowledgement on channel") => {
                Some(Self::ConsumerTimeout(text))
            }
            // `RESOURCE_LOCKED` is an exclusive queue of another connection: it exists with different settings.
            AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED | AMQPSoftError::RESOURCELOCKED) => {
                Some(Self::Mismatch(text))
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
        Error::from_channel_error(ErrorKind::ProtocolError(AMQPError::new(kind, text.into())).into())
    }

    #[test]
    fn a_consumer_timeout_needs_no_operator() {
        let overdue = refused(
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms. This \
             timeout value can be configured, see consumers doc guide to learn more",
        );
        assert_eq!(overdue.class(), Class::Outage);
        let differs = refused("PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/'");
        assert_eq!(differs.class(), Class::Blocked);
    }

    #[test]
    fn exhausted_channels_are_reported_as_such() {
        let error = Error::from_channel_error(ErrorKind::ChannelsLimitReached.into());
        assert_eq!(error.class(), Class::Blocked);
        assert!(error.to_string().contains("`channel_max`"), "{error}");
    }
}
