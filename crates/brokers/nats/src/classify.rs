//! Errors of the broker, and the failure class of each.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{
    ConsumerInfoError, ConsumerInfoErrorKind, CreateStreamError, CreateStreamErrorKind, GetStreamError,
    GetStreamErrorKind,
};
use async_nats::jetstream::stream::{
    ConsumerError, ConsumerErrorKind, PurgeError, PurgeErrorKind, RawMessageError, RawMessageErrorKind,
};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{ConnectError, RequestError, RequestErrorKind};
use relevo_core::replay_source::ReplaySourceError;
use relevo_core::{Class, Failure};

/// Any error of a library.
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a broker call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is invalid.
    #[error("invalid NATS configuration: {0}")]
    Config(String),
    /// The first connection does not exist yet. Nothing was sent.
    #[error("not connected to NATS yet")]
    Connecting,
    /// No server can be reached. Nothing was sent.
    #[error("NATS is unreachable")]
    Unreachable(#[source] ConnectError),
    /// The connection was lost and not restored yet. Nothing was sent.
    #[error("the connection to NATS is lost")]
    Disconnected,
    /// The connection accepts no more data. The message was not sent.
    #[error("the connection to NATS accepted no data for {} ms", .0.as_millis())]
    SendTimeout(Duration),
    /// The server refused the credentials.
    #[error("NATS refused the login: check the user, password, token or key, and its permissions")]
    LoginRefused(#[source] ConnectError),
    /// The server's certificate is expired, is for another host or has an untrusted issuer.
    #[error("the certificate of the NATS server is not trusted")]
    ServerCertificate(#[source] ConnectError),
    /// The server refused the client certificate, or requires one.
    #[error("NATS refused the client certificate")]
    ClientCertificate(#[source] ConnectError),
    /// The TLS handshake failed.
    #[error("the TLS handshake with NATS failed")]
    Tls(#[source] ConnectError),
    /// The account has no permission to publish to the subject.
    #[error("no permission to publish to `{0}`")]
    PublishDenied(String),
    /// The account has no permission to receive acknowledgements.
    #[error("no permission to subscribe to the reply inbox `{0}`, which receives acknowledgements")]
    ReplyInboxDenied(String),
    /// The account has no permission to subscribe to the subject.
    #[error("no permission to subscribe to `{0}`")]
    SubscribeDenied(String),
    /// The address is not a valid subject.
    #[error("`{address}` is not a valid subject: {reason}")]
    InvalidAddress {
        /// The address.
        address: String,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// The header name is not valid in NATS.
    #[error("invalid header name `{0}`: NATS requires visible ASCII characters without a colon")]
    InvalidHeaders(String),
    /// The message exceeds the limit of the configuration or the server.
    #[error("the message has {bytes} bytes with its headers; the limit is {max}")]
    TooLarge {
        /// The size of the message.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The message exceeds the limit of its stream.
    #[error("the message exceeds the limit of its stream: {0}")]
    TooLargeForStream(String),
    /// The headers exceed the limit of JetStream.
    #[error("the headers exceed the limit of JetStream: {0}")]
    HeadersTooLarge(String),
    /// No stream stores the subject. Nothing was stored.
    #[error("no stream stores the subject")]
    NoStream,
    /// A different stream than the expected one stores the subject. Nothing was stored.
    #[error("a different stream than the expected one stores the subject: {0}")]
    WrongStream(String),
    /// The settings of the stream do not allow new messages. Nothing was stored.
    #[error("the stream does not allow new messages: {0}")]
    StreamSealed(String),
    /// JetStream is disabled for the server or the account.
    #[error("JetStream is not enabled: {0}")]
    JetStreamDisabled(String),
    /// The stream is full or not writable. Nothing was stored.
    #[error("the stream is full or not writable: {0}")]
    StreamFull(String),
    /// The stream has been full or not writable for too long. Nothing was stored.
    #[error("the stream has been full or not writable for {} s: {description}", .lasted.as_secs())]
    StreamStaysFull {
        /// How long it has lasted, at least.
        lasted: Duration,
        /// The description from JetStream.
        description: String,
    },
    /// The server or the account is out of resources. Nothing was stored.
    #[error("JetStream is out of resources: {0}")]
    InsufficientResources(String),
    /// The stream or JetStream is temporarily unavailable. Nothing was stored.
    #[error("JetStream is unavailable: {0}")]
    Unavailable(String),
    /// The server refused the message with any other code. Nothing was stored.
    #[error("JetStream refused the request with code {code}: {description}")]
    Refused {
        /// The error code of JetStream.
        code: u64,
        /// The description from JetStream.
        description: String,
    },
    /// The connection was lost before the acknowledgement. The message may have been stored.
    #[error("the connection to NATS was lost before the acknowledgement")]
    ConnectionLost,
    /// No acknowledgement arrived in time. The message may have been stored.
    #[error("NATS did not acknowledge within {} ms", .0.as_millis())]
    Unconfirmed(Duration),
    /// The server is still processing an earlier copy of the message. It may have been stored.
    #[error("NATS is still processing an earlier copy of the message: {0}")]
    DuplicateInProcess(String),
    /// The acknowledgement is invalid. The message may have been stored.
    #[error("invalid acknowledgement: {0}")]
    InvalidAck(String),
    /// One error for everything that waited together: messages for a connection, or acknowledgements for one write.
    #[error(transparent)]
    Shared(Arc<Error>),
    /// The consumer was closed before the acknowledgements were confirmed. They may have been recorded.
    #[error("the consumer was closed before the acknowledgements were confirmed")]
    Closed,
    /// The group is missing or incomplete: a durable consumer or the bucket of lanes does not exist.
    #[error("consumer group `{0}` is missing or incomplete on the server")]
    GroupNotFound(String),
    /// Something on the server has different settings, or the server ignored a setting.
    #[error("{object} has different settings: {difference}")]
    Mismatch {
        /// The object that differs.
        object: String,
        /// The existing and the requested settings.
        difference: String,
    },
    /// The record of a lane is invalid: another program or a newer version wrote it.
    #[error("invalid lane record `{0}`")]
    InvalidLaneRecord(String),
    /// A JetStream API call failed. The server may have executed it.
    #[error("cannot {operation}")]
    Api {
        /// What the call does, such as "get the stream".
        operation: &'static str,
        /// The error of the library.
        #[source]
        source: Source,
    },
}

/// The pause that a full stream requests from the relay.
pub(crate) const THROTTLE_PAUSE: Duration = Duration::from_secs(1);

impl Error {
    /// The failure class of this error.
    pub fn class(&self) -> Class {
        match self {
            // These pass without an operator. Nothing was sent or stored.
            Self::Connecting | Self::Unreachable(_) | Self::Disconnected | Self::SendTimeout(_) => Class::Outage,
            // An operator must act; waiting does not help.
            Self::Config(_)
            | Self::LoginRefused(_)
            | Self::ServerCertificate(_)
            | Self::ClientCertificate(_)
            | Self::Tls(_)
            | Self::PublishDenied(_)
            | Self::ReplyInboxDenied(_)
            | Self::SubscribeDenied(_)
            | Self::InvalidAddress { .. }
            | Self::NoStream
            | Self::WrongStream(_)
            | Self::StreamSealed(_)
            | Self::StreamStaysFull { .. }
            | Self::JetStreamDisabled(_)
            | Self::GroupNotFound(_)
            | Self::Mismatch { .. }
            | Self::InvalidLaneRecord(_)
            // The server refused with an unlisted code. The message itself may be valid, so it must not be
            // dead-lettered.
            | Self::Refused { .. } => Class::Blocked,
            Self::InvalidHeaders(_) | Self::TooLarge { .. } | Self::TooLargeForStream(_) | Self::HeadersTooLarge(_) => {
                Class::Poison
            }
            // Consumers, limits or the cluster resolve these without an operator.
            Self::StreamFull(_) | Self::InsufficientResources(_) | Self::Unavailable(_) => Class::Throttled(THROTTLE_PAUSE),
            Self::ConnectionLost
            | Self::Unconfirmed(_)
            | Self::DuplicateInProcess(_)
            | Self::InvalidAck(_)
            | Self::Closed
            | Self::Api { .. } => Class::Unknown,
            Self::Shared(error) => error.class(),
        }
    }
}

impl Error {
    /// Whether the message may have been stored despite the error.
    pub(crate) fn may_be_stored(&self) -> bool {
        self.class() == Class::Unknown
    }

    /// The same error for another message of the batch.
    pub(crate) fn for_another_message(&self) -> Self {
        match self {
            Self::Unconfirmed(timeout) => Self::Unconfirmed(*timeout),
            Self::InvalidAck(reason) => Self::InvalidAck(reason.clone()),
            _ => Self::ConnectionLost,
        }
    }
}

/// Maps the error code of a publish response. The message was not stored in any of these cases.
pub(crate) fn from_api_code(code: u64, description: String) -> Error {
    // https://github.com/nats-io/nats-server/blob/main/server/errors.json
    match code {
        MESSAGE_EXCEEDS_MAXIMUM => Error::TooLargeForStream(description),
        HEADER_EXCEEDS_MAXIMUM => Error::HeadersTooLarge(description),
        STREAM_NOT_MATCH | STREAM_NOT_FOUND => Error::WrongStream(description),
        STREAM_SEALED => Error::StreamSealed(description),
        NOT_ENABLED | NOT_ENABLED_FOR_ACCOUNT | NO_LIMITS => Error::JetStreamDisabled(description),
        STORE_FAILED => Error::StreamFull(description),
        ACCOUNT_RESOURCES | INSUFFICIENT_RESOURCES | MEMORY_RESOURCES | STORAGE_RESOURCES | STREAM_LIMITS => {
            Error::InsufficientResources(description)
        }
        NOT_AVAILABLE
        | NOT_LEADER
        | NO_PEERS
        | STREAM_OFFLINE
        | STREAM_OFFLINE_REASON
        | CONSUMER_OFFLINE
        | TOO_MANY_REQUESTS => Error::Unavailable(description),
        DUPLICATE_IN_PROCESS => Error::DuplicateInProcess(description),
        _ => Error::Refused { code, description },
    }
}

/// Maps a failed JetStream API call. A refusal has the class of its code. After any other failure it is unknown whether
/// the server executed the call.
pub(crate) fn api_error(operation: &'static str, error: impl Into<Source>) -> Error {
    let source: Source = error.into();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*source);
    while let Some(error) = cause {
        if let Some(code) = refusal(error) {
            let description = format!("cannot {operation}: {error}");
            return match code {
                // For a publish, this code means that another stream stores the subject. For an API call, the stream
                // does not exist.
                ErrorCode::STREAM_NOT_FOUND => Error::Refused { code: code.0, description },
                code => from_api_code(code.0, description),
            };
        }
        let request = error.downcast_ref::<RequestError>();
        if request.is_some_and(|error| error.kind() == RequestErrorKind::NoResponders) {
            return Error::JetStreamDisabled(format!("cannot {operation}: no responder for this account"));
        }
        cause = error.source();
    }
    Error::Api { operation, source }
}

/// The error code of a refusal. The library stores it in the kind of its errors, not in their sources.
fn refusal(error: &(dyn std::error::Error + 'static)) -> Option<ErrorCode> {
    macro_rules! of_kind {
        ($($error:ident $kind:ident),*) => {
            $(if let Some($kind::JetStream(refusal)) = error.downcast_ref::<$error>().map(|error| error.kind()) {
                return Some(refusal.error_code());
            })*
        };
    }
    of_kind!(
        CreateStreamError CreateStreamErrorKind,
        GetStreamError GetStreamErrorKind,
        ConsumerError ConsumerErrorKind,
        ConsumerInfoError ConsumerInfoErrorKind,
        RawMessageError RawMessageErrorKind,
        PurgeError PurgeErrorKind
    );
    match error.downcast_ref::<ConsumerInfoError>().map(async_nats::error::Error::kind) {
        Some(ConsumerInfoErrorKind::NotFound) => return Some(ErrorCode::CONSUMER_NOT_FOUND),
        Some(ConsumerInfoErrorKind::StreamNotFound) => return Some(ErrorCode::STREAM_NOT_FOUND),
        Some(ConsumerInfoErrorKind::Offline) => return Some(ErrorCode::CONSUMER_OFFLINE),
        _ => {}
    }
    error.downcast_ref::<jetstream::Error>().map(jetstream::Error::error_code)
}

const ACCOUNT_RESOURCES: u64 = 10_002;
const NO_PEERS: u64 = 10_005;
const NOT_AVAILABLE: u64 = 10_008;
const NOT_LEADER: u64 = 10_009;
const INSUFFICIENT_RESOURCES: u64 = 10_023;
const MEMORY_RESOURCES: u64 = 10_028;
const NOT_ENABLED_FOR_ACCOUNT: u64 = 10_039;
const STORAGE_RESOURCES: u64 = 10_047;
const STREAM_LIMITS: u64 = 10_053;
const MESSAGE_EXCEEDS_MAXIMUM: u64 = 10_054;
const STREAM_NOT_FOUND: u64 = 10_059;
const STREAM_NOT_MATCH: u64 = 10_060;
const NOT_ENABLED: u64 = 10_076;
const STORE_FAILED: u64 = 10_077;
const HEADER_EXCEEDS_MAXIMUM: u64 = 10_097;
const STREAM_SEALED: u64 = 10_109;
const STREAM_OFFLINE: u64 = 10_118;
const CONSUMER_OFFLINE: u64 = 10_119;
const NO_LIMITS: u64 = 10_120;
const DUPLICATE_IN_PROCESS: u64 = 10_158;
const TOO_MANY_REQUESTS: u64 = 10_167;
const STREAM_OFFLINE_REASON: u64 = 10_194;

impl From<Error> for ReplaySourceError {
    fn from(error: Error) -> Self {
        Failure::from(error).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.class(), error)
    }
}
