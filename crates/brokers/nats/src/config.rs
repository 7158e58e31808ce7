//! The servers, the credentials and the limits.

use std::fmt;
use std::time::Duration;

use relevo_config::{
    Certificates, Checks, Configured, DurationText, KeyPath, Problem, Reader, Secret, Section, SizeText, reference,
};
use relevo_core::host_scope::Transport;
use relevo_core::slot::SLOTS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::classify::Error;
use crate::connection;
use crate::publish::IN_FLIGHT_MAX;
use crate::topology::Topology;
use crate::topology::validate::is_stream_name;

/// NATS JetStream. An address is a subject. Destinations with the same settings share a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// `nats://host:port` or `tls://host:port`: the nodes of one cluster, tried in turn. `url` sets a single one. The URLs
    /// contain no credentials.
    #[schemars(extend("examples" = [["nats://localhost:4222"]]))]
    pub urls: Vec<String>,
    /// The credentials.
    #[serde(skip)]
    pub auth: Auth,
    /// The TLS settings.
    #[serde(skip)]
    pub tls: Tls,
    /// The `ce-source` of messages published here: a URI that names the outbox.
    pub source: String,
    /// The number of lanes. The lane of the key is appended to the subject: `orders` is published as `orders.3`. Consumers
    /// have the same number.
    #[schemars(extend("examples" = [8]))]
    pub lanes: Option<u16>,
    /// The stream that must store every message; the server checks it on every publish. Required for atomic batches. A
    /// stream that is named only here is created for the subjects `NAME.>`, and routes publish to `NAME.{topic}` by
    /// default.
    #[schemars(extend("examples" = ["ORDERS"]))]
    pub stream: Option<String>,
    /// The time limit of one attempt to connect.
    #[serde(with = "DurationText")]
    pub connect_timeout: Duration,
    /// The time limit of an acknowledgement. It must be shorter than the relay's `publish_timeout`, so that
    /// the relay gets the cause of the failure.
    #[serde(with = "DurationText")]
    pub confirm_timeout: Duration,
    /// The maximum number of unacknowledged messages per connection.
    pub in_flight_max: usize,
    /// Whether messages are published in atomic batches.
    pub atomic_batches: AtomicBatches,
    /// The ping interval of an idle connection. After two pings without a response, the connection is closed.
    #[serde(with = "DurationText")]
    pub ping_interval: Duration,
    /// The maximum size of a message, headers and payload together. A lower limit of the server takes precedence.
    #[serde(with = "SizeText")]
    pub message_size_max: usize,
    /// `http://host:8222`, the monitoring port of the server. `doctor` can read the sync interval only there. The URL
    /// contains no credentials.
    #[schemars(extend("examples" = ["http://localhost:8222"]))]
    pub monitoring_url: Option<String>,
    /// The configured streams and groups.
    #[serde(skip)]
    pub topology: Topology,
}

impl Config {
    /// The default configuration for this server.
    pub fn new(url: impl Into<String>) -> Self {
        Self { urls: vec![url.into()], ..Self::default() }
    }

    /// Rejects invalid settings, for the publisher and for the administrator. It sends no request to the server.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let invalid = |reason: String| Err(Error::Config(reason));
        if !(1..=IN_FLIGHT_MAX).contains(&self.in_flight_max) {
            return invalid(format!("`in_flight_max` is {}, not between 1 and {IN_FLIGHT_MAX}", self.in_flight_max));
        }
        if self.lanes.is_some_and(|lanes| !(1..=SLOTS).contains(&lanes)) {
            return invalid(format!("`lanes` is not between 1 and {SLOTS}"));
        }
        if self.confirm_timeout.is_zero() || self.connect_timeout.is_zero() || self.ping_interval.is_zero() {
            return invalid("`connect_timeout`, `confirm_timeout` or `ping_interval` is zero".to_owned());
        }
        if self.stream.as_ref().is_some_and(|stream| !is_stream_name(stream)) {
            return invalid("`stream` is not a valid stream name".to_owned());
        }
        connection::servers(self)?;
        // An invalid key or certificate is reported here, not at the first connection.
        connection::options(self).map(drop)
    }

    /// The connections to the servers. A server may require TLS although its URL does not.
    pub(crate) fn transports(&self) -> Vec<Transport> {
        let servers = connection::servers(self).unwrap_or_default().into_iter().map(|server| {
            let host = server.host().to_owned();
            Transport {
                key: "urls",
                name: format!("NATS at `{host}`"),
                encrypted: server.tls_required() || self.tls.required || self.tls.handshake_first,
                problem: format!("messages and credentials are sent to `{host}` without encryption"),
                fix: "use a `tls://` URL; the server needs a `tls` block",
                host,
            }
        });
        servers.collect()
    }
}

impl Default for Config {
    /// Without a server.
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            auth: Auth::None,
            tls: Tls::default(),
            source: "/relevo".to_owned(),
            lanes: None,
            stream: None,
            connect_timeout: Duration::from_secs(5),
            confirm_timeout: Duration::from_secs(4),
            in_flight_max: 8_000,
            atomic_batches: AtomicBatches::Auto,
            ping_interval: Duration::from_secs(2),
            message_size_max: 1 << 20,
            monitoring_url: None,
            topology: Topology::default(),
        }
    }
}

impl Section for Config {
    fn validate(&self, checks: &mut Checks<'_>) {
        let Some(url) = &self.monitoring_url else { return };
        let reason = if url.contains('@') {
            "`monitoring_url` must not contain credentials"
        } else if url.strip_prefix("http://").is_none_or(str::is_empty) {
            "`monitoring_url` must begin with `http://`"
        } else {
            return;
        };
        checks.report("monitoring_url", Problem::new(reason).hint("`http://host:8222`"));
    }
}

impl Configured for Config {
    fn read(reader: &mut Reader, at: &KeyPath) -> Option<Self> {
        let config = reader.read::<Self>(at);
        let login = reader.read::<Login>(at);
        let tls = reader.read::<Tls>(&at.name("tls"));
        let certificates = reader.read::<Certificates>(&at.name("tls"));
        let topology = Topology::read(reader, at);
        let (config, certificates) = (config?, certificates?);
        if config.urls.is_empty() {
            let problem = Problem::new(format!("`{at}` has no `url`"));
            reader.problem(at, problem.hint("`url = \"nats://host:port\"`, or `urls` for several"));
            return None;
        }
        let identity = certificates.identity().map(|(cert_chain, key)| Identity { cert_chain, key });
        let tls = Tls { ca: certificates.ca(), identity, ..tls? };
        Some(Self { auth: login?.into(), tls, topology: topology?, ..config })
    }

    fn schema() -> serde_json::Value {
        let schema = reference::merge(reference::schema_of::<Self>(), &reference::schema_of::<Login>());
        let tls = reference::merge(reference::schema_of::<Tls>(), &reference::schema_of::<Certificates>());
        Topology::add_schema(reference::with(schema, "tls", tls))
    }
}

/// The credentials: a user with a password, a token, an `NKey` or a credentials file.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Login {
    /// The user name. It needs a password.
    #[schemars(extend("examples" = ["relevo"]))]
    user: Option<String>,
    /// The password.
    #[schemars(extend("x-example-file" = "/run/credentials/relevo/nats-password"))]
    password: Option<Secret>,
    /// A token that all clients share.
    #[schemars(extend("x-example-file" = "/run/credentials/relevo/nats-token"))]
    token: Option<Secret>,
    /// The seed of an `NKey`.
    #[schemars(extend("x-example-file" = "/run/credentials/relevo/nats.nk"))]
    nkey: Option<Secret>,
    /// The content of a credentials file: a JWT and its seed.
    #[schemars(extend("x-example-file" = "/run/credentials/relevo/nats.creds"))]
    credentials: Option<Secret>,
}

impl Section for Login {
    fn validate(&self, checks: &mut Checks<'_>) {
        let has_user = self.user.is_some() || self.password.is_some();
        let ways = [has_user, self.token.is_some(), self.nkey.is_some(), self.credentials.is_some()];
        if ways.into_iter().filter(|way| *way).count() > 1 {
            let problem = Problem::new("only one kind of credentials is allowed");
            let keys = ["token", "nkey", "credentials", "user"];
            checks.report_any(&keys, problem.hint("a user with a password, a token, an NKey or a credentials file"));
        }
        if self.user.is_some() != self.password.is_some() {
            let problem = Problem::new("a login needs both `user` and `password`");
            checks.report_any(&["user", "password"], problem.hint("set `user` and `password_file` or `password_env`"));
        }
    }
}

impl From<Login> for Auth {
    fn from(login: Login) -> Self {
        let text = |secret: Secret| secret.reveal().to_owned();
        match login {
            Login { user: Some(user), password: Some(password), .. } => {
                Self::UserPassword { user, password: text(password) }
            }
            Login { token: Some(token), .. } => Self::Token(text(token)),
            Login { nkey: Some(seed), .. } => Self::NKey(text(seed)),
            Login { credentials: Some(credentials), .. } => Self::Credentials(text(credentials)),
            _ => Self::None,
        }
    }
}

/// The credentials of the client. Debug output shows no secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Auth {
    /// No credentials.
    #[default]
    None,
    /// A user name and a password.
    UserPassword {
        /// The user name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token that all clients share.
    Token(String),
    /// The seed of an `NKey`. The server knows only the public key.
    NKey(String),
    /// The content of a credentials file: a JWT and its seed.
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

/// The TLS settings. A `tls://` URL or a server that requires TLS also enables TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Tls {
    /// Whether to refuse a connection without TLS.
    pub required: bool,
    /// Whether TLS starts before the server sends its information (`handshake_first` in the server's configuration).
    pub handshake_first: bool,
    /// The trusted CA certificates in PEM, which replace those of the system.
    #[serde(skip)]
    pub ca: Option<String>,
    /// The client certificate.
    #[serde(skip)]
    pub identity: Option<Identity>,
}

impl Section for Tls {}

/// A certificate and its key, both in PEM. Debug output shows neither.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by its intermediate certificates.
    pub cert_chain: String,
    /// Its private key.
    pub key: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Whether messages are published in atomic batches. A server from version 2.12 on stores a batch with one disk write.
///
/// Batches need [`Config::stream`] and a stream with `allow_atomic_publish`; otherwise messages are published one by
/// one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AtomicBatches {
    /// When acknowledgements are slow, as with `sync_interval: always`.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Whenever the server and the stream support them.
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
