//! Opens connections, and reconnects when a connection is lost.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::ConfigBuilderExt as _;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::tcp::{AsyncTcpStream, RustlsConnector};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ErrorKind};
use parking_lot::Mutex;
use relevo_core::retry::{ExponentialBackoff, Jitter};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, crypto};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::{Instant, sleep, timeout};

use crate::classify::Error;
use crate::config::{Config, Tls};

/// The shortest and the longest pause between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A connection that was open for this long resets the pauses.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Connects again when a connection is lost. The publisher, the lanes and the member announcements use it alike.
pub(crate) struct Reconnect<'a> {
    config: &'a Config,
    /// The connection name in the broker's tools.
    name: &'a str,
    pauses: ExponentialBackoff,
    first_url: usize,
    attempted: bool,
    connected_at: Option<Instant>,
}

impl<'a> Reconnect<'a> {
    pub(crate) fn new(config: &'a Config, name: &'a str) -> Self {
        Self { config, name, pauses: backoff(), first_url: 0, attempted: false, connected_at: None }
    }

    /// The next connection, or the error of the attempt. Callers repeat the call when the connection or the attempt has
    /// ended: it waits between attempts, and longer after each that failed or did not last.
    ///
    /// After a lost connection it begins with the next URL, because the last one has just failed.
    pub(crate) async fn next(&mut self) -> Result<Connection, Error> {
        if self.connected_at.take().is_some_and(|since| since.elapsed() > STABLE_AFTER) {
            self.pauses.reset();
        }
        if std::mem::replace(&mut self.attempted, true) {
            pause(&mut self.pauses).await;
        }
        match connect_from(self.config, self.name, std::mem::take(&mut self.first_url)).await {
            Ok((connection, url)) => {
                self.first_url = url + 1;
                self.connected_at = Some(Instant::now());
                Ok(connection)
            }
            Err(error) => Err(error),
        }
    }
}

/// The pauses between attempts to connect, to subscribe, or to publish a retry.
pub(crate) fn backoff() -> ExponentialBackoff {
    ExponentialBackoff::new(PAUSE_MIN, PAUSE_MAX)
}

/// Waits for the next pause, shortened at random so that clients do not reconnect together.
pub(crate) async fn pause(backoff: &mut ExponentialBackoff) {
    sleep(backoff.next(Jitter::from_random(fastrand::u32(..)))).await;
}

/// Connects to the first URL that responds. `name` is the connection name in the broker's tools.
///
/// The connection never recovers by itself: its owner must detect its end and open another. Each URL has its own
/// [`Config::connect_timeout`].
pub(crate) async fn connect(config: &Config, name: &str) -> Result<Connection, Error> {
    connect_from(config, name, 0).await.map(|(connection, _)| connection)
}

/// Like [`connect`], but starts with another URL. Also returns the index of the URL that responded.
async fn connect_from(config: &Config, name: &str, first: usize) -> Result<(Connection, usize), Error> {
    let connector = RustlsConnector::from(tls_config(&config.tls)?);
    let endpoints = config.endpoints()?;
    let mut last = Error::Config("no URL is configured".to_owned());
    for step in 0..endpoints.len() {
        let url = (first + step) % endpoints.len();
        match attempt(config, &connector, endpoints[url].clone(), name).await {
            Ok(connection) => return Ok((connection, url)),
            // An error that needs an operator is more useful than the report that another node is down.
            Err(Error::Unreachable(_) | Error::NoResponse(_)) if last.needs_operator() => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Error {
    /// Whether an attempt to connect failed with an error that needs an operator.
    fn needs_operator(&self) -> bool {
        !matches!(self, Self::Unreachable(_) | Self::NoResponse(_) | Self::Config(_))
    }
}

async fn attempt(
    config: &Config,
    connector: &RustlsConnector,
    endpoint: AMQPUri,
    name: &str,
) -> Result<Connection, Error> {
    let socket = SocketHandle::default();
    let properties = ConnectionProperties::default().with_connection_name(name.into());
    let runtime = lapin::runtime::default_runtime().map_err(Error::Unreachable)?;
    let (limit, handle, tls) = (config.connect_timeout, socket.clone(), connector.clone());
    let connection = Connection::connector(
        endpoint.clone(),
        runtime,
        async move |uri: AMQPUri, runtime| {
            // The library waits here on its own thread, which cannot be cancelled.
            let stream = timeout(limit, async {
                let address = (uri.authority.host.as_str(), uri.authority.port);
                let stream =
                    AsyncTcpStream::connect(&runtime, tokio::net::lookup_host(address).await?.collect::<Vec<_>>());
                let stream = stream.await?;
                if let AsyncTcpStream::Plain(plain) = &stream {
                    handle.set(plain.get_ref().as_fd().try_clone_to_owned()?.into());
                }
                match uri.scheme {
                    AMQPScheme::AMQP => Ok(stream),
                    AMQPScheme::AMQPS => stream.into_rustls(&tls, &uri.authority.host).await,
                }
            });
            Ok(stream.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?)
        },
        properties,
    );
    match timeout(config.connect_timeout, connection).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(connect_error(error, &endpoint)),
        Err(_) => {
            // A server that accepts and never responds would block the library's thread for ever.
            socket.shut_down();
            Err(Error::NoResponse(config.connect_timeout))
        }
    }
}

/// A second handle of a connection's socket.
#[derive(Clone, Default)]
struct SocketHandle(Arc<Mutex<Option<TcpStream>>>);

impl SocketHandle {
    fn set(&self, stream: TcpStream) {
        *self.0.lock() = Some(stream);
    }

    fn shut_down(&self) {
        if let Some(stream) = &*self.0.lock() {
            // It may already be closed.
            stream.shutdown(Shutdown::Both).ok();
        }
    }
}

/// The TLS settings of AMQP and of the management API. Fails if the certificates are invalid.
pub(crate) fn tls_config(tls: &Tls) -> Result<ClientConfig, Error> {
    let invalid = |what: &str, error: &dyn std::fmt::Display| Error::Config(format!("{what} cannot be used: {error}"));
    let certificates = |pem: &str| CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid("TLS", &error))?;
    let builder = match &tls.ca {
        None => builder.with_webpki_roots(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            // A bundle of authorities may contain certificates of a kind that is not supported.
            let parsed = certificates(pem).map_err(|error| invalid("the CA certificate", &error))?;
            let (added, _) = roots.add_parsable_certificates(parsed);
            if added == 0 {
                return Err(invalid("the CA certificate", &"it contains no usable certificate"));
            }
            builder.with_root_certificates(roots)
        }
    };
    let Some(identity) = &tls.identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(&identity.cert_chain).map_err(|error| invalid("the client certificate", &error))?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
        .map_err(|error| invalid("the key of the client certificate", &error))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| invalid("the client certificate", &error))
}

/// Maps a failed attempt to connect.
fn connect_error(error: lapin::Error, endpoint: &AMQPUri) -> Error {
    match error.kind() {
        ErrorKind::ProtocolError(response) => match response.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => {
                Error::LoginRefused { user: endpoint.authority.userinfo.username.clone() }
            }
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => {
                Error::VhostRefused { vhost: endpoint.vhost.clone(), reason: response.get_message().to_string() }
            }
            _ => Error::Unreachable(error),
        },
        ErrorKind::IOError(io) => find_tls_error(io).unwrap_or(Error::Unreachable(error)),
        ErrorKind::InvalidProtocolVersion(_) | ErrorKind::ParsingError(_) => Error::Handshake(error.to_string()),
        _ => Error::Unreachable(error),
    }
}

/// Maps a TLS error, if it is one.
fn find_tls_error(io: &io::Error) -> Option<Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = io.get_ref().map(|inner| inner as _);
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls_error(tls));
        }
        cause = error.source();
    }
    None
}

fn tls_error(error: &rustls::Error) -> Error {
    match error {
        rustls::Error::InvalidCertificate(error) => Error::ServerCertificate(match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "is expired".to_owned(),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "is not valid yet".to_owned()
            }
            CertificateError::UnknownIssuer => "has an issuer that is not trusted".to_owned(),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "is for another name".to_owned()
            }
            CertificateError::Revoked => "is revoked".to_owned(),
            other => format!("is not accepted: {other}"),
        }),
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => {
                Error::ClientCertificate("requires a client certificate".to_owned())
            }
            AlertDescription::CertificateExpired => {
                Error::ClientCertificate("refuses the client certificate: it is expired".to_owned())
            }
            AlertDescription::UnknownCA => {
                Error::ClientCertificate("refuses the client certificate: its issuer is not trusted".to_owned())
            }
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown => {
                Error::ClientCertificate(format!("refuses the client certificate: {alert:?}"))
            }
            other => Error::Handshake(format!("TLS alert {other:?}")),
        },
        rustls::Error::InvalidMessage(_) => Error::Handshake("the port does not use TLS".to_owned()),
        other => Error::Handshake(other.to_string()),
    }
}
