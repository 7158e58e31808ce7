//! Errors of the broker, and the failure class of each.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError};
use relevo_core::{Class, Failure};

/// Why a broker call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error("invalid RabbitMQ configuration: {0}")]
    Config(String),
    /// There is no connection. Nothing was sent.
    #[error("RabbitMQ is unreachable")]
    Unreachable(#[source] lapin::Error),
    /// The server did not respond in time. Nothing was sent.
    #[error("RabbitMQ did not respond within {} ms", .0.as_millis())]
    NoResponse(Duration),
    /// The server has a memory or disk alarm and accepts no messages. Nothing was sent.
    #[error("RabbitMQ has a resource alarm and accepts no messages: {0}")]
    ResourceAlarm(String),
    /// The adapter was closed. Nothing was sent.
    #[error("the connection to RabbitMQ was closed by this program")]
    Closed,
    /// The server refused the login.
    #[error("RabbitMQ refuses the login of `{user}`: wrong user or password")]
    LoginRefused {
        /// The user name.
        user: String,
    },
    /// The virtual host does not exist, or the user has no access to it.
    #[error("RabbitMQ refuses the virtual host `{vhost}`: {reason}")]
    VhostRefused {
        /// The virtual host.
        vhost: String,
        /// The description from the server.
        reason: String,
    },
    /// The server's certificate is not trusted.
    #[error("the certificate of RabbitMQ {0}")]
    ServerCertificate(String),
    /// The server refused the client certificate, or requires one.
    #[error("RabbitMQ {0}")]
    ClientCertificate(String),
    /// The handshake failed: no TLS where it is expected, or another protocol.
    #[error("the handshake with RabbitMQ failed: {0}")]
    Handshake(String),
    /// The user has no permission.
    #[error("RabbitMQ denies access: {0}")]
    AccessRefused(String),
    /// An exchange or a queue does not exist.
    #[error("no such exchange or queue: {0}")]
    NotFound(String),
    /// The node of a queue is down.
    #[error("the node of the queue is down: {0}")]
    NodeDown(String),
    /// An exchange or a queue exists with different settings.
    #[error("the exchange or queue exists with different settings: {0}")]
    Mismatch(String),
    /// A queue that must be ordered exists without a single active consumer.
    #[error(
        "queue `{0}` exists without a single active consumer, so two consumers could handle messages of one key at the \
         same time; delete the drained queue and create it again, or configure it as unordered"
    )]
    Unordered(String),
    /// No queue is bound for messages of this address.
    #[error("no queue is bound to exchange `{exchange}` for the routing key `{key}`")]
    Unroutable {
        /// The exchange.
        exchange: String,
        /// The routing key.
        key: String,
    },
    /// The address is invalid.
    #[error("invalid address: {0}")]
    InvalidAddress(&'static str),
    /// A queue is full and refuses messages.
    #[error("RabbitMQ refused the message: a queue is full or unavailable")]
    Nacked,
    /// The server accepts messages too slowly. Nothing was sent.
    #[error("the message could not be sent within {} ms: RabbitMQ accepts messages too slowly", .0.as_millis())]
    SendTimeout(Duration),
    /// The limit of exchanges in use is reached.
    #[error("more than {0} exchanges are in use")]
    TooManyExchanges(usize),
    /// The connection has no free channel for another exchange or lane.
    #[error(
        "the connection to RabbitMQ has no free channel: raise the server's `channel_max`, or use fewer exchanges, \
         `channels` or lanes"
    )]
    NoChannelLeft,
    /// Deliveries were outstanding for longer than the server allows. It requeued them and closed their channel.
    #[error("RabbitMQ requeued the deliveries: {0}")]
    ConsumerTimeout(String),
    /// The management API is unreachable, or does not respond in time.
    #[error("the management API of RabbitMQ is unreachable: {0}")]
    ManagementUnreachable(String),
    /// The management API refused the request, or the URL is not a management API.
    #[error("the management API of RabbitMQ refused the request: {0}")]
    ManagementRefused(String),
    /// The message exceeds the size limit.
    #[error("the message has {bytes} bytes, the limit is {max}")]
    TooLarge {
        /// The size of the message.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The headers of the message are invalid.
    #[error("invalid headers: {0}")]
    InvalidHeaders(String),
    /// The message was sent and not confirmed.
    #[error("RabbitMQ did not confirm the message within {} ms; it may have arrived", .0.as_millis())]
    Unconfirmed(Duration),
    /// The message was sent and not confirmed, but later messages were.
    #[error(
        "RabbitMQ did not confirm the message within {} ms, but confirmed later ones: a queue is stalled; it may have arrived",
        .0.as_millis()
    )]
    QueueStalled(Duration),
    /// The message was sent, and then the connection or the channel was lost.
    #[error("the connection was lost before RabbitMQ confirmed the message; it may have arrived")]
    ConnectionLost(#[source] lapin::Error),
    /// Acknowledgements may have been sent, and then the lane was lost or the broker did not respond.
    #[error("RabbitMQ did not confirm the acknowledgements; it may have processed them")]
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
            | Self::Unordered(_)
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
    pub(crate) fn from_channel_error(error: lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(response) => {
                Self::from_protocol_error(response).unwrap_or(Self::Unreachable(error))
            }
            ErrorKind::ChannelsLimitReached => Self::NoChannelLeft,
            _ => Self::Unreachable(error),
        }
    }

    fn from_protocol_error(response: &AMQPError) -> Option<Self> {
        let text = response.get_message().to_string();
        match response.kind() {
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
        let timed_out = refused(
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 1800000 ms. This \
             timeout value can be configured, see consumers doc guide to learn more",
        );
        assert_eq!(timed_out.class(), Class::Outage);
        let different = refused("PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/'");
        assert_eq!(different.class(), Class::Blocked);
    }

    #[test]
    fn exhausted_channels_are_reported_as_such() {
        let error = Error::from_channel_error(ErrorKind::ChannelsLimitReached.into());
        assert_eq!(error.class(), Class::Blocked);
        assert!(error.to_string().contains("`channel_max`"), "{error}");
    }
}
