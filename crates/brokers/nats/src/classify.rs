//! What can go wrong, and what each means to the relay or the inbox.

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
use relevo_core::{Class, Failure};

/// Anything that a library said.
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why the broker could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration can never work.
    #[error("the configuration of NATS is wrong: {0}")]
    Config(String),
    /// The first connection has not been made yet. Nothing was sent.
    #[error("not connected to NATS yet")]
    Connecting,
    /// No server can be reached. Nothing was sent.
    #[error("no NATS server can be reached")]
    Unreachable(#[source] ConnectError),
    /// The connection broke, and there is no new one yet. Nothing was sent.
    #[error("the connection to NATS is lost")]
    Disconnected,
    /// The connection takes nothing any more. The message was not sent.
    #[error("the connection to NATS took nothing for {} ms", .0.as_millis())]
    Stalled(Duration),
    /// The server does not know us.
    #[error("NATS refuses the login: user, password, token, key or their rights are wrong")]
    LoginRefused(#[source] ConnectError),
    /// The server's certificate is expired, of another host or of an authority that we do not trust.
    #[error("the certificate of the NATS server is not accepted")]
    ServerCertificate(#[source] ConnectError),
    /// The server does not accept our certificate, or misses one.
    #[error("the NATS server does not accept our certificate")]
    ClientCertificate(#[source] ConnectError),
    /// The two sides cannot agree on an encrypted connection.
    #[error("no encrypted connection to NATS can be made")]
    Tls(#[source] ConnectError),
    /// We may not publish there.
    #[error("NATS does not permit us to publish to `{0}`")]
    NotPermitted(String),
    /// We may not receive acknowledgements.
    #[error("NATS does not permit us to subscribe to our own inbox `{0}`, where acknowledgements come")]
    InboxNotPermitted(String),
    /// We may not receive what is sent there.
    #[error("NATS does not permit us to subscribe to `{0}`")]
    NotPermittedToListen(String),
    /// The address is no subject.
    #[error("`{address}` is no subject: {why}")]
    Subject {
        /// The address.
        address: String,
        /// Why not.
        why: &'static str,
    },
    /// A header's name cannot be sent.
    #[error("the header name `{0}` cannot be sent: NATS takes visible ASCII without a colon")]
    HeaderName(String),
    /// The message is larger than we or the server allow.
    #[error("the message is {bytes} bytes with its headers, more than the {max} that are allowed")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        max: usize,
    },
    /// The message is larger than its stream allows.
    #[error("the message is larger than its stream allows: {0}")]
    TooLargeForStream(String),
    /// The headers are larger than JetStream stores.
    #[error("the headers are larger than JetStream stores: {0}")]
    HeadersTooLarge(String),
    /// No stream listens to the subject. Nothing was stored.
    #[error("no stream listens to the subject")]
    NoStream,
    /// Another stream than the expected one listens to the subject. Nothing was stored.
    #[error("the subject belongs to another stream than the expected one: {0}")]
    WrongStream(String),
    /// The stream takes nothing any more, by its settings. Nothing was stored.
    #[error("the stream takes no messages: {0}")]
    Sealed(String),
    /// JetStream is switched off, for the server or for our account.
    #[error("JetStream is not enabled: {0}")]
    NotEnabled(String),
    /// The stream is full, or could not be written. Nothing was stored.
    #[error("the stream is full or cannot be written: {0}")]
    Full(String),
    /// The stream is full and stays so. Nothing was stored.
    #[error("the stream has been full or could not be written for {} s: {why}", .lasted.as_secs())]
    StaysFull {
        /// For how long at least.
        lasted: Duration,
        /// JetStream's words.
        why: String,
    },
    /// The server or the account has no room left. Nothing was stored.
    #[error("JetStream has no room left: {0}")]
    NoRoom(String),
    /// The stream or JetStream is out of order for now. Nothing was stored.
    #[error("JetStream is not available: {0}")]
    Unavailable(String),
    /// The server refused it for a reason that is not listed here. Nothing was stored.
    #[error("JetStream refused it with code {code}: {description}")]
    Refused {
        /// JetStream's code.
        code: u64,
        /// JetStream's words.
        description: String,
    },
    /// The connection broke before the acknowledgement came. It may have been stored.
    #[error("the connection to NATS was lost before the acknowledgement")]
    Lost,
    /// No acknowledgement came in time. It may have been stored.
    #[error("NATS did not acknowledge within {} ms", .0.as_millis())]
    Unconfirmed(Duration),
    /// The server is still busy with the same message, sent earlier. It may have been stored.
    #[error("NATS has not finished with the same message, sent earlier: {0}")]
    InProcess(String),
    /// The acknowledgement cannot be read. It may have been stored.
    #[error("the acknowledgement cannot be read: {0}")]
    Acknowledgement(String),
    /// The one reason of all that waited together: messages for a connection, or answers for one write.
    #[error(transparent)]
    Common(Arc<Error>),
    /// The consumer was closed before the answers were confirmed. They may have been kept.
    #[error("the consumer was closed before the answers were confirmed")]
    Closed,
    /// The server has no such group: a durable consumer or what its consumers share is missing.
    #[error("the group `{0}` is not at the server, or not whole")]
    NoGroup(String),
    /// Something at the server is not as it was asked for, or the server ignored a part of it.
    #[error("{what} differs from what was asked for: {difference}")]
    Differs {
        /// What it is.
        what: String,
        /// What it has, and what was asked for.
        difference: String,
    },
    /// What a lane's consumers share cannot be read: somebody else wrote it, or a newer version did.
    #[error("the record of the lane `{0}` cannot be read")]
    Record(String),
    /// A call of the JetStream API failed. It may have been carried out.
    #[error("{what} failed")]
    Api {
        /// Which call, in a few words.
        what: &'static str,
        /// What the library said.
        #[source]
        source: Source,
    },
}

/// How long a full stream asks the relay to wait.
pub(crate) const FULL_PAUSE: Duration = Duration::from_secs(1);

impl Error {
    /// What it means to the sender or the receiver.
    pub fn class(&self) -> Class {
        match self {
            // Each passes by itself; nothing was sent or stored.
            Self::Connecting | Self::Unreachable(_) | Self::Disconnected | Self::Stalled(_) => Class::Outage,
            // A person must act, and waiting mends nothing.
            Self::Config(_)
            | Self::LoginRefused(_)
            | Self::ServerCertificate(_)
            | Self::ClientCertificate(_)
            | Self::Tls(_)
            | Self::NotPermitted(_)
            | Self::InboxNotPermitted(_)
            | Self::NotPermittedToListen(_)
            | Self::Subject { .. }
            | Self::NoStream
            | Self::WrongStream(_)
            | Self::Sealed(_)
            | Self::StaysFull { .. }
            | Self::NotEnabled(_)
            | Self::NoGroup(_)
            | Self::Differs { .. }
            | Self::Record(_)
            // It said no for a reason of its own: that says nothing against the message, and must not bury it.
            | Self::Refused { .. } => Class::Blocked,
            Self::HeaderName(_) | Self::TooLarge { .. } | Self::TooLargeForStream(_) | Self::HeadersTooLarge(_) => {
                Class::Poison
            }
            // Consumers, limits or the cluster make it pass without anybody's help at the relay.
            Self::Full(_) | Self::NoRoom(_) | Self::Unavailable(_) => Class::Throttled(FULL_PAUSE),
            Self::Lost
            | Self::Unconfirmed(_)
            | Self::InProcess(_)
            | Self::Acknowledgement(_)
            | Self::Closed
            | Self::Api { .. } => Class::Unknown,
            Self::Common(reason) => reason.class(),
        }
    }
}

impl Error {
    /// Whether what it is about may have been stored all the same.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.class() == Class::Unknown
    }

    /// The same for another message of its batch.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Unconfirmed(within) => Self::Unconfirmed(*within),
            Self::Acknowledgement(why) => Self::Acknowledgement(why.clone()),
            _ => Self::Lost,
        }
    }
}

/// Which of our errors JetStream's answer to a publish is, by its code. In none of them was the message stored.
pub(crate) fn answered(code: u64, description: String) -> Error {
    // https://github.com/nats-io/nats-server/blob/main/server/errors.json
    match code {
        MESSAGE_EXCEEDS_MAXIMUM => Error::TooLargeForStream(description),
        HEADER_EXCEEDS_MAXIMUM => Error::HeadersTooLarge(description),
        STREAM_NOT_MATCH | STREAM_NOT_FOUND => Error::WrongStream(description),
        STREAM_SEALED => Error::Sealed(description),
        NOT_ENABLED | NOT_ENABLED_FOR_ACCOUNT | NO_LIMITS => Error::NotEnabled(description),
        STORE_FAILED => Error::Full(description),
        ACCOUNT_RESOURCES | INSUFFICIENT_RESOURCES | MEMORY_RESOURCES | STORAGE_RESOURCES | STREAM_LIMITS => {
            Error::NoRoom(description)
        }
        NOT_AVAILABLE
        | NOT_LEADER
        | NO_PEERS
        | STREAM_OFFLINE
        | STREAM_OFFLINE_REASON
        | CONSUMER_OFFLINE
        | TOO_MANY_REQUESTS => Error::Unavailable(description),
        DUPLICATE_IN_PROCESS => Error::InProcess(description),
        _ => Error::Refused { code, description },
    }
}

/// A call of the JetStream API that failed. A refusal by the server has the class of its code; of any other failure it is
/// unknown whether the call was carried out.
pub(crate) fn api(what: &'static str, error: impl Into<Source>) -> Error {
    let source: Source = error.into();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*source);
    while let Some(error) = cause {
        if let Some(code) = refusal(error) {
            let description = format!("{what}: {error}");
            return match code {
                // Of a publish it says that the subject is another stream's; of a call that there is no such stream.
                ErrorCode::STREAM_NOT_FOUND => Error::Refused { code: code.0, description },
                code => answered(code.0, description),
            };
        }
        let unanswered = error.downcast_ref::<RequestError>();
        if unanswered.is_some_and(|error| error.kind() == RequestErrorKind::NoResponders) {
            return Error::NotEnabled(format!("{what}: nobody answers at this server for our account"));
        }
        cause = error.source();
    }
    Error::Api { what, source }
}

/// The code with which the server refused a call. The library keeps it in the kinds of its errors, not among their sources.
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
    match error.downcast_ref::<ConsumerInfoError>().map(|error| error.kind()) {
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

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.class(), error)
    }
}
