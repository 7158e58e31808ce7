//! What can go wrong, and what each means to the relay or the inbox.

use std::time::Duration;

use async_nats::ConnectError;
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
    /// The connection was given up by [`close`](crate::NatsBroker::close). Nothing was sent.
    #[error("the connection to NATS is closed")]
    Closed,
    /// No server can be reached. Nothing was sent.
    #[error("no NATS server can be reached")]
    Unreachable(#[source] ConnectError),
    /// The connection broke, and there is no new one yet. Nothing was sent.
    #[error("the connection to NATS is lost")]
    Disconnected,
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
    #[error("no stream listens to `{0}`")]
    NoStream(String),
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
    /// The acknowledgement cannot be read. It may have been stored.
    #[error("the acknowledgement cannot be read")]
    Acknowledgement(#[source] serde_json::Error),
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
            Self::Connecting | Self::Closed | Self::Unreachable(_) | Self::Disconnected => Class::Outage,
            // A person must act, and waiting mends nothing.
            Self::Config(_)
            | Self::LoginRefused(_)
            | Self::ServerCertificate(_)
            | Self::ClientCertificate(_)
            | Self::Tls(_)
            | Self::NotPermitted(_)
            | Self::InboxNotPermitted(_)
            | Self::Subject { .. }
            | Self::NoStream(_)
            | Self::WrongStream(_)
            | Self::Sealed(_)
            | Self::NotEnabled(_) => Class::Blocked,
            Self::HeaderName(_) | Self::TooLarge { .. } | Self::TooLargeForStream(_) | Self::HeadersTooLarge(_) => {
                Class::Poison
            }
            // Consumers, limits or the cluster make it pass without anybody's help at the relay.
            Self::Full(_) | Self::NoRoom(_) | Self::Unavailable(_) => Class::Throttled(FULL_PAUSE),
            // The server answered, and stored nothing.
            Self::Refused { .. } => Class::Transient,
            Self::Lost | Self::Unconfirmed(_) | Self::Acknowledgement(_) | Self::Api { .. } => Class::Unknown,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.class(), error)
    }
}
