//! Connections to a server, their TLS settings, and the meaning of connect errors.

use std::error::Error as _;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::rustls::pki_types::pem::PemObject as _;
use async_nats::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use async_nats::rustls::{AlertDescription, ClientConfig, Error as TlsError, RootCertStore, crypto};
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError};
use parking_lot::Mutex;
use relevo_core::retry::{ExponentialBackoff, Jitter};
use tokio::sync::watch;

use crate::classify::Error;
use crate::config::{Auth, Config, Tls};

/// The shortest and the longest delay between two attempts to connect.
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_secs(2);

/// Opens a connection that the library restores when it is lost. The first attempt must succeed.
pub(crate) async fn connect(config: &Config) -> Result<Client, Error> {
    options(config)?.connect(servers(config)?).await.map_err(connect_error)
}

/// Opens a connection that also reports permission errors, for calls that would otherwise wait without a response. Each
/// time it is restored, it notifies `connected`.
pub(crate) async fn connect_reporting_denials(
    config: &Config,
    report: impl Fn(Error) + Send + Sync + 'static,
    connected: watch::Sender<()>,
) -> Result<Client, Error> {
    let options = options(config)?.event_callback(move |event| {
        match event {
            Event::Connected => {
                connected.send_replace(());
            }
            Event::ServerError(ServerError::Other(text)) => {
                if let Some(error) = permission_error(&text) {
                    report(error);
                }
            }
            _ => {}
        }
        std::future::ready(())
    });
    options.connect(servers(config)?).await.map_err(connect_error)
}

/// The context of every JetStream API call.
pub(crate) fn jetstream(client: &Client, config: &Config) -> Context {
    ContextBuilder::new().timeout(config.confirm_timeout).build(client.clone())
}

/// The missing permission, if the server reports a violation.
pub(crate) fn permission_error(text: &str) -> Option<Error> {
    if let Some(subject) = quoted(text, "Permissions Violation for Publish to ") {
        return Some(Error::PublishDenied(subject.to_owned()));
    }
    let subject = quoted(text, "Permissions Violation for Subscription to ")?.to_owned();
    let is_inbox = subject.starts_with("_INBOX.");
    Some(if is_inbox { Error::ReplyInboxDenied(subject) } else { Error::SubscribeDenied(subject) })
}

fn quoted<'a>(text: &'a str, before: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(before.len())?;
    let rest = start.eq_ignore_ascii_case(before).then_some(rest)?;
    rest.strip_prefix('"')?.split('"').next()
}

/// The options of every connection.
pub(crate) fn options(config: &Config) -> Result<ConnectOptions, Error> {
    // TLS must also apply to the servers that a cluster announces, because it does so without a scheme.
    let encrypted = config.tls.required || config.urls.iter().any(|url| url.starts_with("tls://"));
    let options = ConnectOptions::new()
        .name("relevo")
        .connection_timeout(config.connect_timeout)
        .request_timeout(Some(config.confirm_timeout))
        .ping_interval(config.ping_interval)
        .reconnect_delay_callback(reconnect_delays())
        .require_tls(encrypted)
        .tls_client_config(client_config(&config.tls)?);
    let options = if config.tls.handshake_first { options.tls_first() } else { options };
    Ok(match &config.auth {
        Auth::None => options,
        Auth::UserPassword { user, password } => options.user_and_password(user.clone(), password.clone()),
        Auth::Token(token) => options.token(token.clone()),
        Auth::NKey(seed) => options.nkey(validate_seed(seed)?),
        Auth::Credentials(text) => {
            options.credentials(text).map_err(|_| Error::Config("the credentials are invalid".to_owned()))?
        }
    })
}

/// Checks the seed here. The library would detect an invalid seed only when it connects, and report a refused login.
fn validate_seed(seed: &str) -> Result<String, Error> {
    let seed = seed.trim();
    let is_seed = seed.len() == 58
        && seed.starts_with("SU")
        && seed.bytes().all(|byte| byte.is_ascii_uppercase() || (b'2'..=b'7').contains(&byte));
    is_seed
        .then(|| seed.to_owned())
        .ok_or_else(|| Error::Config("the NKey is not the seed of a user (`SU…`)".to_owned()))
}

/// The validated servers of the configuration.
pub(crate) fn servers(config: &Config) -> Result<Vec<ServerAddr>, Error> {
    if config.urls.is_empty() {
        return Err(Error::Config("`urls` is empty".to_owned()));
    }
    config.urls.iter().map(|url| server(url)).collect()
}

fn server(url: &str) -> Result<ServerAddr, Error> {
    let server: ServerAddr =
        url.parse().map_err(|_| Error::Config("a URL does not have the form `nats://host:port`".to_owned()))?;
    if server.host().is_empty() {
        return Err(Error::Config("a URL has no host".to_owned()));
    }
    if !matches!(server.scheme(), "nats" | "tls") {
        return Err(Error::Config(format!(
            "a URL begins with `{}://`, not with `nats://` or `tls://`",
            server.scheme()
        )));
    }
    if server.has_user_pass() {
        return Err(Error::Config("a URL contains credentials: set them as `auth`, which is never printed".to_owned()));
    }
    Ok(server)
}

/// The delays before attempts to connect.
pub(crate) fn backoff() -> ExponentialBackoff {
    ExponentialBackoff::new(DELAY_MIN, DELAY_MAX)
}

/// A random part of a delay, so that clients do not reconnect together.
pub(crate) fn jitter() -> Jitter {
    Jitter::from_random(fastrand::u32(..))
}

/// The delays of the library, which numbers its attempts from 1 after each loss of the connection.
fn reconnect_delays() -> impl Fn(usize) -> Duration + Send + Sync + 'static {
    let backoff = Mutex::new(backoff());
    move |attempt| {
        let mut backoff = backoff.lock();
        if attempt <= 1 {
            backoff.reset();
        }
        backoff.next(jitter())
    }
}

/// The TLS configuration for the client library.
pub(crate) fn client_config(tls: &Tls) -> Result<ClientConfig, Error> {
    // Set explicitly, so that a provider installed by another part of the program has no effect.
    let provider = crypto::ring::default_provider();
    let builder = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| config_error("tls", &error))?
        .with_root_certificates(roots(tls)?);
    let Some(identity) = &tls.identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(&identity.cert_chain, "the client certificate")?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
        .map_err(|error| config_error("the client key", &error))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|error| config_error("the client certificate and its key", &error))
}

fn roots(tls: &Tls) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = &tls.ca {
        for certificate in certificates(ca, "the certificate authority")? {
            roots.add(certificate).map_err(|error| config_error("the certificate authority", &error))?;
        }
    } else {
        // On a system without certificates, the TLS handshake fails with an error that explains it.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    Ok(roots)
}

fn certificates(pem: &str, what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| config_error(what, &error))?;
    if certificates.is_empty() {
        return Err(Error::Config(format!("{what} contains no certificate")));
    }
    Ok(certificates)
}

fn config_error(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::Config(format!("{what} is invalid: {error}"))
}

/// Maps a failed attempt to connect.
pub(crate) fn connect_error(error: ConnectError) -> Error {
    match (error.kind(), tls_cause(&error)) {
        (ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication, _) => Error::LoginRefused(error),
        (_, Some(TlsCause::Server)) => Error::ServerCertificate(error),
        (_, Some(TlsCause::Client)) => Error::ClientCertificate(error),
        (ConnectErrorKind::Tls, _) | (_, Some(TlsCause::Handshake)) => Error::Tls(error),
        (ConnectErrorKind::ServerParse, _) => Error::Config(error.to_string()),
        (
            ConnectErrorKind::Dns | ConnectErrorKind::TimedOut | ConnectErrorKind::Io | ConnectErrorKind::MaxReconnects,
            None,
        ) => Error::Unreachable(error),
    }
}

enum TlsCause {
    Server,
    Client,
    Handshake,
}

fn tls_cause(error: &ConnectError) -> Option<TlsCause> {
    let mut cause = error.source();
    while let Some(source) = cause {
        let inner = source.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = inner.and_then(|inner| inner.downcast_ref()).or_else(|| source.downcast_ref::<TlsError>());
        if let Some(tls) = tls {
            return Some(match tls {
                TlsError::InvalidCertificate(_) => TlsCause::Server,
                TlsError::AlertReceived(
                    AlertDescription::BadCertificate
                    | AlertDescription::UnsupportedCertificate
                    | AlertDescription::CertificateRevoked
                    | AlertDescription::CertificateExpired
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::CertificateRequired
                    | AlertDescription::NoCertificate
                    | AlertDescription::UnknownCA
                    | AlertDescription::AccessDenied,
                ) => TlsCause::Client,
                _ => TlsCause::Handshake,
            });
        }
        cause = source.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_of_the_connection_begins_with_short_delays() {
        let delay = reconnect_delays();
        for _ in 0..2 {
            assert!(delay(1) <= DELAY_MIN);
            for attempt in 2..20 {
                assert!((DELAY_MIN / 2..=DELAY_MAX).contains(&delay(attempt)));
            }
            assert!(delay(20) >= DELAY_MAX / 2);
        }
    }

    #[test]
    fn the_missing_permission_is_recognised() {
        let describe = |text| permission_error(text).map(|error| error.to_string());
        let publish = describe("Permissions Violation for Publish to \"a.b\"").expect("a violation");
        assert!(publish.ends_with("publish to `a.b`"), "{publish}");
        let subscribe =
            describe("permissions violation for subscription to \"a.B\" using queue \"q\"").expect("a violation");
        assert!(subscribe.ends_with("subscribe to `a.B`"), "{subscribe}");
        let inbox = describe("Permissions Violation for Subscription to \"_INBOX.x.*\"").expect("a violation");
        assert!(inbox.contains("inbox"), "{inbox}");
        assert_eq!((describe("ñ"), describe("Slow Consumer")), (None, None));
    }

    #[test]
    fn a_url_with_a_login_or_wrong_scheme_is_rejected_without_echo() {
        for url in ["nats://u:hush@localhost:4222", "http://localhost", "nats://", ""] {
            let error = server(url).expect_err(url);
            assert!(!error.to_string().contains("hush"), "{error}");
        }
    }
}
