//! The configuration of the adapter.

use std::fmt;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri, SASLMechanism};
use relevo_config::{
    Certificates, Configured, DurationText, KeyPath, Problem, Reader, Secret, Section, SizeText, reference,
};
use relevo_core::host_scope::Transport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::classify::Error;
use crate::connection;
use crate::topology::Topology;

/// RabbitMQ. An address is `exchange/routing.key`. Destinations with the same settings share a connection.
#[derive(Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// `amqp[s]://user:password@host:port/vhost`: the nodes of a cluster, tried in turn. The default virtual host is
    /// `/`.
    #[serde(skip)]
    pub urls: Vec<String>,
    /// Replaces the user in the URLs.
    #[schemars(extend("examples" = ["relevo"]))]
    pub user: Option<String>,
    /// Replaces the password in the URLs.
    #[serde(skip)]
    pub password: Option<String>,
    /// The TLS settings of `amqps` URLs.
    #[serde(skip)]
    pub tls: Tls,
    /// The exchange of addresses that do not name one. If it does not exist, a durable topic exchange is created. Empty
    /// means the default exchange, where the routing key is a queue name.
    pub exchange: String,
    /// The `ce-source` of messages published here: a URI that names the outbox.
    pub source: String,
    /// The number of lanes. The lane of the key is appended to the routing key: `orders` becomes `orders.3`. Queues have
    /// the same number.
    #[schemars(extend("examples" = [8]))]
    pub lanes: Option<u16>,
    /// AMQP heartbeat interval in whole seconds. A connection that is silent for two intervals is closed.
    #[serde(with = "DurationText")]
    pub heartbeat: Duration,
    /// The time limit of one attempt to connect.
    #[serde(with = "DurationText")]
    pub connect_timeout: Duration,
    /// The time limit of a publisher confirm. It must be shorter than the relay's `publish_timeout`.
    #[serde(with = "DurationText")]
    pub confirm_timeout: Duration,
    /// The number of channels per exchange. A key always uses the same channel.
    pub channels_per_exchange: usize,
    /// The maximum number of unconfirmed messages per channel.
    pub in_flight_max: usize,
    /// The maximum payload size. The broker has its own limit, `max_message_size`.
    #[serde(with = "SizeText")]
    pub message_size_max: usize,
    /// `http[s]://user:password@host:15672`, tried in turn: the management APIs of the cluster's nodes, for policies and
    /// other data that AMQP does not have.
    #[serde(skip)]
    pub management_urls: Vec<String>,
    /// The configured topology.
    #[serde(skip)]
    pub topology: Topology,
}

/// The TLS settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Tls {
    /// The trusted CA certificates in PEM. The default is the public certificate authorities.
    #[serde(skip)]
    pub ca: Option<String>,
    /// The client certificate, for a broker that requires one.
    #[serde(skip)]
    pub identity: Option<Identity>,
    /// Authenticate with the client certificate instead of user and password (SASL EXTERNAL).
    pub sasl_external: bool,
}

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate and its intermediate certificates, in PEM.
    pub cert_chain: String,
    /// Its private key, in PEM.
    pub key: String,
}

impl fmt::Debug for Identity {
    /// Shows no key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Config {
    /// The default configuration for this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { urls: vec![url.into()], ..Self::default() }
    }

    /// Rejects invalid settings. Returns the first problem.
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |problem: &str| Err(Error::Config(problem.to_owned()));
        self.endpoints()?;
        connection::tls_config(&self.tls)?;
        if self.exchange.len() > NAME_BYTES_MAX {
            return invalid("`exchange` is longer than 255 bytes");
        }
        if self.heartbeat < Duration::from_secs(1) || self.heartbeat > Duration::from_mins(10) {
            return invalid("`heartbeat` is not between 1 s and 10 min");
        }
        if self.connect_timeout.is_zero() || self.confirm_timeout.is_zero() {
            return invalid("a time limit is zero");
        }
        if self.channels_per_exchange == 0 || self.channels_per_exchange > CHANNELS_MAX {
            return invalid("`channels_per_exchange` is not between 1 and 64");
        }
        if self.in_flight_max == 0 || self.message_size_max == 0 {
            return invalid("a limit is zero");
        }
        if self.lanes == Some(0) {
            return invalid("`lanes` is zero");
        }
        if self.tls.sasl_external && self.tls.identity.is_none() {
            return invalid("`tls.sasl_external` needs a client certificate");
        }
        Ok(())
    }

    /// The URLs in the form of the client library, completed with the other settings.
    pub(crate) fn endpoints(&self) -> Result<Vec<AMQPUri>, Error> {
        if self.urls.is_empty() {
            return Err(Error::Config("no URL is configured".to_owned()));
        }
        self.urls.iter().map(|url| self.endpoint(url)).collect()
    }

    /// The connections to the broker and to its management API. Their texts contain no secret.
    pub(crate) fn transports(&self) -> Vec<Transport> {
        let endpoints = self.endpoints().unwrap_or_default().into_iter().map(|endpoint| {
            let host = endpoint.authority.host;
            Transport {
                key: "urls",
                name: format!("AMQP to `{host}`"),
                encrypted: endpoint.scheme != AMQPScheme::AMQP,
                problem: format!("messages and the password are sent to `{host}` in plain text"),
                fix: "use an `amqps://` URL; the broker needs a listener with TLS",
                host,
            }
        });
        let urls = self.management_urls.iter().filter_map(|url| url.split_once("://"));
        let management = urls.map(|(scheme, rest)| {
            let host = host(rest).to_owned();
            Transport {
                key: "management_urls",
                name: format!("management API of `{host}`"),
                encrypted: scheme != "http",
                problem: format!("the password is sent to the management API of `{host}` in plain text"),
                fix: "use an `https://` URL for `management_url`",
                host,
            }
        });
        endpoints.chain(management).collect()
    }

    fn endpoint(&self, url: &str) -> Result<AMQPUri, Error> {
        // The parser's error may contain a part of the URL, and so the password.
        let invalid = || {
            let url = without_secret(url);
            Error::Config(format!("the URL `{url}` is not like `amqp[s]://user:password@host:port/vhost`"))
        };
        let mut uri: AMQPUri = url.parse().map_err(|_| invalid())?;
        // The library does not parse IPv6 addresses and would connect to `localhost`.
        if let Some(host) = ipv6_host(url) {
            host.clone_into(&mut uri.authority.host);
        }
        // `host/` means the default virtual host here, although the standard reads it as an empty name.
        if uri.vhost.is_empty() {
            "/".clone_into(&mut uri.vhost);
        }
        if let Some(user) = &self.user {
            uri.authority.userinfo.username.clone_from(user);
        }
        if let Some(password) = &self.password {
            uri.authority.userinfo.password.clone_from(password);
        }
        let heartbeat = self.heartbeat.as_secs().max(1);
        uri.query.heartbeat.get_or_insert(u16::try_from(heartbeat).unwrap_or(u16::MAX));
        if self.tls.sasl_external {
            if uri.scheme == AMQPScheme::AMQP {
                return Err(Error::Config(
                    "a certificate can replace the password only with an `amqps` URL".to_owned(),
                ));
            }
            uri.query.auth_mechanism = Some(SASLMechanism::External);
        }
        Ok(uri)
    }
}

impl Default for Config {
    /// Without a server.
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            user: None,
            password: None,
            tls: Tls::default(),
            exchange: String::new(),
            source: "/relevo".to_owned(),
            lanes: None,
            heartbeat: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(5),
            confirm_timeout: Duration::from_secs(4),
            channels_per_exchange: 1,
            in_flight_max: 5_000,
            message_size_max: 16 << 20,
            management_urls: Vec::new(),
            topology: Topology::default(),
        }
    }
}

impl Section for Config {}

impl Section for Tls {}

/// The settings that may contain a password.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
struct Secrets {
    /// `amqp://user:password@host:port/vhost` or `amqps://…`: the nodes of a cluster, tried in turn. `url` sets a single
    /// one. The default virtual host is `/`.
    #[schemars(extend("examples" = [["amqp://relevo@localhost:5672/shop"]]))]
    urls: Vec<Secret>,
    /// Replaces the password in the URLs.
    #[schemars(extend("x-example-file" = "/run/credentials/relevo/rabbitmq-password"))]
    password: Option<Secret>,
    /// `http://user:password@host:15672` or `https://…`, tried in turn: the management APIs of the cluster's nodes, for
    /// policies and for most checks of `relevo doctor`. `management_url` sets a single one. Without a user, that of `urls`
    /// is used.
    #[schemars(extend("examples" = [["http://localhost:15672"]]))]
    management_urls: Vec<Secret>,
}

impl Section for Secrets {}

impl Configured for Config {
    fn read(reader: &mut Reader, at: &KeyPath) -> Option<Self> {
        let config = reader.read::<Self>(at);
        let secrets = reader.read::<Secrets>(at);
        let tls = reader.read::<Tls>(&at.name("tls"));
        let certificates = reader.read::<Certificates>(&at.name("tls"));
        let topology = Topology::read(reader, at);
        let (config, secrets, certificates) = (config?, secrets?, certificates?);
        if secrets.urls.is_empty() {
            let problem = Problem::new(format!("`{at}` has no `url`"));
            reader.problem(at, problem.hint("`url = \"amqp://user:password@host:port\"`, or `urls` for several"));
            return None;
        }
        let identity = certificates.identity().map(|(cert_chain, key)| Identity { cert_chain, key });
        let texts = |all: &[Secret]| all.iter().map(|one| one.reveal().to_owned()).collect();
        Some(Self {
            urls: texts(&secrets.urls),
            password: secrets.password.map(|password| password.reveal().to_owned()),
            tls: Tls { ca: certificates.ca(), identity, ..tls? },
            management_urls: texts(&secrets.management_urls),
            topology: topology?,
            ..config
        })
    }

    fn schema() -> serde_json::Value {
        let schema = reference::merge(reference::schema_of::<Self>(), &reference::schema_of::<Secrets>());
        let tls = reference::merge(reference::schema_of::<Tls>(), &reference::schema_of::<Certificates>());
        Topology::add_schema(reference::with(schema, "tls", tls))
    }
}

/// Names and routing keys are short strings in AMQP.
pub(crate) const NAME_BYTES_MAX: usize = 255;
const CHANNELS_MAX: usize = 64;

fn ipv6_host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(host, _)| host)
}

/// The host of `user:password@host:port/path`.
fn host(rest: &str) -> &str {
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let authority = host.split('/').next().unwrap_or(host);
    match authority.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((host, _)) => host,
        None => authority.split_once(':').map_or(authority, |(host, _)| host),
    }
}

/// A URL without its secrets: everything before the last `@` is removed, except the scheme.
fn without_secret(url: &str) -> String {
    let Some((login, host)) = url.rsplit_once('@') else {
        // A password in the place of a URL has no scheme.
        return if url.contains("://") { url.to_owned() } else { "***".to_owned() };
    };
    match login.split_once("://") {
        Some((scheme, _)) if scheme.bytes().all(|letter| letter.is_ascii_lowercase()) => {
            format!("{scheme}://***@{host}")
        }
        _ => format!("***@{host}"),
    }
}

impl fmt::Debug for Config {
    /// Shows no secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let without_secrets = |urls: &[String]| urls.iter().map(|url| without_secret(url)).collect::<Vec<_>>();
        let (urls, management_urls) = (without_secrets(&self.urls), without_secrets(&self.management_urls));
        f.debug_struct("Config")
            .field("urls", &urls)
            .field("user", &self.user)
            .field("tls", &self.tls)
            .field("exchange", &self.exchange)
            .field("source", &self.source)
            .field("lanes", &self.lanes)
            .field("heartbeat", &self.heartbeat)
            .field("connect_timeout", &self.connect_timeout)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("channels_per_exchange", &self.channels_per_exchange)
            .field("in_flight_max", &self.in_flight_max)
            .field("message_size_max", &self.message_size_max)
            .field("management_urls", &management_urls)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_shows_no_secret() {
        let mut config = Config::new("amqp://user:swordfish@host:5672/v");
        config.password = Some("swordfish".to_owned());
        config.management_urls = vec!["http://user:swordfish@host:15672".to_owned()];
        config.tls.identity = Some(Identity { cert_chain: String::new(), key: "swordfish".to_owned() });
        let shown = format!("{config:?}");
        assert!(shown.contains("host:5672") && !shown.contains("swordfish"), "{shown}");
    }

    #[test]
    fn an_invalid_url_is_reported_without_its_password() {
        for url in [
            "http://user:hunter2@host",
            "user:hunter2@host",
            "amqp:user:hunter2@host:5672",
            "user:hunter2://@host",
            "amqp://user:hunt@er2@host",
            "amqp://user:hunter2@host:port",
            "hunter2",
        ] {
            let mut config = Config::new(url);
            config.management_urls = vec![url.to_owned()];
            // The library accepts some of these as URLs.
            let problem = config.validate().err().map(|error| error.to_string());
            for shown in problem.into_iter().chain([format!("{config:?}")]) {
                assert!(
                    !shown.contains("hunt") && shown.contains(if url == "hunter2" { "***" } else { "@host" }),
                    "{shown}"
                );
            }
        }
    }

    #[test]
    fn urls_are_completed_by_the_other_settings() {
        let config = Config { user: Some("u".into()), password: Some("p".into()), ..Config::new("amqp://[::1]:5673/") };
        let endpoint = config.endpoints().expect("a URL").remove(0);
        assert_eq!((endpoint.authority.host.as_str(), endpoint.authority.port), ("::1", 5673));
        assert_eq!((endpoint.vhost.as_str(), endpoint.query.heartbeat), ("/", Some(5)));
        let user = endpoint.authority.userinfo;
        assert_eq!((user.username.as_str(), user.password.as_str()), ("u", "p"));
    }

    #[test]
    fn an_impossible_configuration_is_rejected() {
        let base = || Config::new("amqp://localhost");
        let external = Tls { sasl_external: true, ..Tls::default() };
        for config in [
            Config { urls: vec![], ..base() },
            Config { channels_per_exchange: 0, ..base() },
            Config { lanes: Some(0), ..base() },
            Config { heartbeat: Duration::ZERO, ..base() },
            Config { exchange: "x".repeat(256), ..base() },
            Config { tls: external, ..base() },
        ] {
            assert!(config.validate().is_err(), "{config:?}");
        }
        assert!(base().validate().is_ok());
    }
}
