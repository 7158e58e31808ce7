//! Where the servers are, how to get in, and the limits.

use std::fmt;
use std::time::Duration;

use relevo_core::slot::SLOTS;

use crate::classify::Error;
use crate::link;
use crate::publish::IN_FLIGHT_MAX;
use crate::topology::Topology;

/// Where the servers are, how to get in, and the limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `nats://host:port` or `tls://host:port`, tried in turn: the nodes of one cluster. They hold no login.
    pub urls: Vec<String>,
    /// Who we are.
    pub auth: Auth,
    /// How the connection is encrypted.
    pub tls: Tls,
    /// What `ce-source` says of messages that are published here: a URI that names the outbox.
    pub source: String,
    /// Appends a word to the subject, the lane of the key among so many: `orders` is sent as `orders.3`.
    pub lanes: Option<u16>,
    /// The stream that everything must be stored in; the server checks it on every publish. Atomic batches need it.
    pub stream: Option<String>,
    /// How long one attempt to connect may take.
    pub connect_deadline: Duration,
    /// How long an acknowledgement may take; shorter than the relay's own deadline, so that the reason is known.
    pub ack_deadline: Duration,
    /// At most so many messages of a connection wait for their acknowledgement.
    pub in_flight_max: usize,
    /// Whether messages are sent in atomic batches.
    pub atomic: Atomic,
    /// An idle connection is pinged so often; after two pings without an answer it counts as lost.
    pub ping_every: Duration,
    /// The largest message, headers and payload together. If the server allows less, that counts.
    pub message_bytes_max: usize,
    /// `http://host:8222`, the server's monitoring port: only there `doctor` can read the sync interval.
    pub monitor_url: Option<String>,
    /// The streams and groups that are wanted.
    pub topology: Topology,
}

impl Config {
    /// The defaults, for this server.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            urls: vec![url.into()],
            auth: Auth::None,
            tls: Tls::default(),
            source: "/relevo".to_owned(),
            lanes: None,
            stream: None,
            connect_deadline: Duration::from_secs(5),
            ack_deadline: Duration::from_secs(4),
            in_flight_max: 8_000,
            atomic: Atomic::Auto,
            ping_every: Duration::from_secs(2),
            message_bytes_max: 1 << 20,
            monitor_url: None,
            topology: Topology::default(),
        }
    }

    /// Refuses what can never work, for the publisher and the administrator alike. It asks nothing of the server.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Config(what));
        if !(1..=IN_FLIGHT_MAX).contains(&self.in_flight_max) {
            return wrong(format!("`in_flight_max` is {}, not between 1 and {IN_FLIGHT_MAX}", self.in_flight_max));
        }
        if self.lanes.is_some_and(|lanes| !(1..=SLOTS).contains(&lanes)) {
            return wrong(format!("`lanes` is not between 1 and {SLOTS}"));
        }
        if self.ack_deadline.is_zero() || self.connect_deadline.is_zero() || self.ping_every.is_zero() {
            return wrong("a deadline or interval is zero".to_owned());
        }
        if let Some(stream) = &self.stream
            && (stream.is_empty() || stream.contains(|char: char| !char.is_ascii_graphic() || ".*>/\\".contains(char)))
        {
            return wrong(format!("`{stream}` cannot be the name of a stream"));
        }
        link::servers(self)?;
        // A wrong key or certificate is found here, not at the first connection.
        link::options(self).map(drop)
    }
}

/// Who we are to the server. Debug output shows no secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Auth {
    /// Nobody in particular.
    #[default]
    None,
    /// A name and a password.
    UserPassword {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that all clients share.
    Token(String),
    /// The seed of an `NKey`: the server knows only its public half.
    NKey(String),
    /// The text of a credentials file: a JWT and the seed that goes with it.
    Credentials(String),
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::UserPassword { user, .. } => {
                f.debug_struct("UserPassword").field("user", user).finish_non_exhaustive()
            }
            Self::Token(_) => f.write_str("Token(..)"),
            Self::NKey(_) => f.write_str("NKey(..)"),
            Self::Credentials(_) => f.write_str("Credentials(..)"),
        }
    }
}

/// How the connection is encrypted. A URL with `tls://` asks for it too, and so does a server that requires it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whether a connection without it is refused.
    pub required: bool,
    /// Whether it begins before the server says anything (`handshake_first` in the server's configuration).
    pub first: bool,
    /// The certificates of the authorities to trust, in PEM, instead of the system's.
    pub ca: Option<String>,
    /// The certificate that we show.
    pub identity: Option<Identity>,
}

/// A certificate and its key, both in PEM. Debug output shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, and those between it and the authority.
    pub cert_chain: String,
    /// Its private key.
    pub key: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Whether messages are sent in atomic batches, which a server from 2.12 on stores with one write to the disk.
///
/// Each of them needs [`Config::stream`] and a stream with `allow_atomic_publish`; without, messages go one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomic {
    /// Where acknowledgements turn out to be slow, as with `sync_interval: always`.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Wherever server and stream can.
    Always,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_secret() {
        let identity = Identity { cert_chain: "hush-1".to_owned(), key: "hush-2".to_owned() };
        let tls = Tls { identity: Some(identity), ..Tls::default() };
        let user = "u".to_owned();
        for auth in [
            Auth::UserPassword { user, password: "hush-3".to_owned() },
            Auth::Token("hush-4".to_owned()),
            Auth::NKey("hush-5".to_owned()),
            Auth::Credentials("hush-6".to_owned()),
        ] {
            let shown = format!("{:?}", Config { auth, tls: tls.clone(), ..Config::new("nats://localhost") });
            assert!(!shown.contains("hush"), "{shown}");
        }
    }
}
