//! Opens connections, and reconnects the publisher when its connection is lost.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::tcp::{AsyncTcpStream, RustlsConnector, RustlsConnectorConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, ConnectionState, ErrorKind, Event};
use parking_lot::Mutex;
use relevo_core::retry::{ExponentialBackoff, Jitter};
use rustls::{AlertDescription, CertificateError};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};
use tracing::{info, warn};

use crate::classify::Error;
use crate::config::{Config, Tls};

/// A connection of this length counts as stable: after it, the next attempt starts quickly.
const STABLE_AFTER: Duration = Duration::from_secs(1);
/// How often a connection is checked, in addition to its events.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The time limit for closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The shortest and the longest pause between two attempts.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The pauses between attempts to connect or subscribe.
pub(crate) fn backoff() -> ExponentialBackoff {
    ExponentialBackoff::new(RETRY_PAUSE.0, RETRY_PAUSE.1)
}

/// The next pause, shortened at random so that clients do not reconnect together.
pub(crate) fn next_delay(backoff: &mut ExponentialBackoff) -> Duration {
    backoff.next(Jitter::from_random(fastrand::u32(..)))
}

/// Waits for the next pause.
pub(crate) async fn pause(backoff: &mut ExponentialBackoff) {
    sleep(next_delay(backoff)).await;
}

/// Connects to the first URL that responds. `name` is the connection name in the broker's tools.
///
/// The connection never recovers by itself: its owner must detect its end and open another. Each URL has its own
/// [`Config::connect_timeout`].
pub(crate) async fn connect(config: &Config, name: &str) -> Result<Connection, Error> {
    connect_from(config, name, 0).await.map(|(connection, _)| connection)
}

/// Like [`connect`], but starts with another URL. Also returns the index of the URL that responded.
pub(crate) async fn connect_from(config: &Config, name: &str, first: usize) -> Result<(Connection, usize), Error> {
    let connector = tls_connector(&config.tls)?;
    let endpoints = config.endpoints()?;
    let mut last = Error::Config("there is no URL".to_owned());
    for step in 0..endpoints.len() {
        let node = (first + step) % endpoints.len();
        match attempt(config, &connector, endpoints[node].clone(), name).await {
            Ok(connection) => return Ok((connection, node)),
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
    let (deadline, seat, tls) = (config.connect_timeout, socket.clone(), connector.clone());
    let connection = Connection::connector(
        endpoint.clone(),
        runtime,
        async move |uri: AMQPUri, runtime| {
            // The library waits here on its own thread, which cannot be cancelled.
            let stream = timeout(deadline, async {
                let address = (uri.authority.host.as_str(), uri.authority.port);
                let stream =
                    AsyncTcpStream::connect(&runtime, tokio::net::lookup_host(address).await?.collect::<Vec<_>>());
                let stream = stream.await?;
                if let AsyncTcpStream::Plain(plain) = &stream {
                    seat.set(plain.get_ref().as_fd().try_clone_to_owned()?.into());
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

/// The state of the connection.
#[derive(Clone)]
pub(crate) enum BrokerConnection {
    /// The first attempt is running.
    Connecting,
    /// Connected.
    Up(LiveConnection),
    /// Not connected, with the cause.
    Down(Error),
    /// Closed by this program; it does not reconnect.
    Closed,
}

/// An open connection.
#[derive(Clone)]
pub(crate) struct LiveConnection {
    pub(crate) connection: Arc<Connection>,
    /// Unique to this connection.
    pub(crate) number: u64,
    /// Why the server currently accepts no messages.
    pub(crate) alarm: Option<Arc<str>>,
}

static NEXT_CONNECTION_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Maintains the connection until `closing` is set.
pub(crate) async fn maintain(
    config: Arc<Config>,
    state: watch::Sender<BrokerConnection>,
    mut closing: watch::Receiver<bool>,
) {
    let mut pauses = backoff();
    let mut first = 0;
    loop {
        let attempt = connect_from(&config, "relevo publisher", first);
        let attempt = tokio::select! {
            biased;
            () = wait_for_close(&mut closing) => break,
            attempt = attempt => attempt,
        };
        match attempt {
            Ok((connection, node)) => {
                let since = Instant::now();
                let line = LiveConnection {
                    connection: Arc::new(connection),
                    number: NEXT_CONNECTION_NUMBER.fetch_add(1, Ordering::Relaxed),
                    alarm: None,
                };
                info!("connected to RabbitMQ for publishing");
                state.send_replace(BrokerConnection::Up(line.clone()));
                let Some(error) = watch_connection(&line, &state, &mut closing).await else { break };
                warn!(error = %error, "the connection to RabbitMQ ended, will connect again");
                state.send_replace(BrokerConnection::Down(Error::Unreachable(error)));
                // Continue with the next node, because this one just failed.
                first = node + 1;
                if since.elapsed() > STABLE_AFTER {
                    pauses.reset();
                }
            }
            Err(error) => {
                log_failure(&state, &error);
                state.send_replace(BrokerConnection::Down(error));
                first = 0;
            }
        }
        tokio::select! {
            biased;
            () = wait_for_close(&mut closing) => break,
            () = pause(&mut pauses) => {}
        }
    }
    state.send_replace(BrokerConnection::Closed);
}

/// Returns when the publisher is closed or dropped.
async fn wait_for_close(closing: &mut watch::Receiver<bool>) {
    closing.wait_for(|closing| *closing).await.ok();
}

/// Logs changes, not every attempt.
fn log_failure(state: &watch::Sender<BrokerConnection>, error: &Error) {
    if !matches!(&*state.borrow(), BrokerConnection::Down(last) if last.class() == error.class()) {
        warn!(error = %error, "RabbitMQ cannot be connected to, will try again");
    }
}

/// Watches a connection until it ends. Returns the cause, or `None` if this program closed it.
async fn watch_connection(
    line: &LiveConnection,
    state: &watch::Sender<BrokerConnection>,
    closing: &mut watch::Receiver<bool>,
) -> Option<lapin::Error> {
    let mut events = Box::pin(line.connection.events_listener());
    let mut look = interval(CHECK_INTERVAL);
    loop {
        let event = tokio::select! {
            biased;
            () = wait_for_close(closing) => {
                timeout(CLOSE_TIMEOUT, line.connection.close(200, "closed".into())).await.ok();
                return None;
            }
            event = events.next() => event,
            _ = look.tick() => Some(Event::Connected),
        };
        match event {
            // Errors of channels arrive here too.
            Some(Event::Error(error)) if !line.connection.status().connected() => return Some(error),
            Some(Event::ConnectionBlocked(reason)) => {
                warn!(%reason, "RabbitMQ has raised an alarm and takes no messages");
                state.send_replace(BrokerConnection::Up(LiveConnection { alarm: Some(reason.into()), ..line.clone() }));
            }
            Some(Event::ConnectionUnblocked) => {
                info!("RabbitMQ takes messages again");
                state.send_replace(BrokerConnection::Up(line.clone()));
            }
            Some(_) if line.connection.status().connected() => {}
            Some(_) | None => return Some(ErrorKind::InvalidConnectionState(ConnectionState::Closed).into()),
        }
    }
}

/// The TLS connector. Fails if the certificates are invalid.
pub(crate) fn tls_connector(tls: &Tls) -> Result<RustlsConnector, Error> {
    let wrong = |what: &str, why: &dyn std::fmt::Display| Error::Config(format!("{what} cannot be read: {why}"));
    let certificates = |pem: &str| CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let trust = match &tls.ca {
        Some(pem) => RustlsConnectorConfig::default()
            .with_parsable_certificates(certificates(pem).map_err(|why| wrong("the CA certificate", &why))?),
        None => RustlsConnectorConfig::new_with_webpki_root_certs(),
    };
    match &tls.identity {
        Some(identity) => {
            let chain = certificates(&identity.cert_chain).map_err(|why| wrong("the client certificate", &why))?;
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
                .map_err(|why| wrong("the key of the client certificate", &why))?;
            trust.connector_with_single_cert(chain, key)
        }
        None => trust.connector_with_no_client_auth(),
    }
    .map_err(|why| wrong("the certificates", &why))
}

/// Maps a failed attempt to connect.
fn connect_error(error: lapin::Error, endpoint: &AMQPUri) -> Error {
    match error.kind() {
        ErrorKind::ProtocolError(said) => match said.kind() {
            AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => {
                Error::LoginRefused { user: endpoint.authority.userinfo.username.clone() }
            }
            AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => {
                Error::VhostRefused { vhost: endpoint.vhost.clone(), why: said.get_message().to_string() }
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
        rustls::Error::InvalidCertificate(why) => Error::ServerCertificate(match why {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => "is expired".to_owned(),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "is not valid yet".to_owned()
            }
            CertificateError::UnknownIssuer => "is from an authority that is not trusted".to_owned(),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "is for another name".to_owned()
            }
            CertificateError::Revoked => "is revoked".to_owned(),
            other => format!("is not accepted: {other}"),
        }),
        rustls::Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => Error::ClientCertificate("wants a client certificate".to_owned()),
            AlertDescription::CertificateExpired => {
                Error::ClientCertificate("refuses the client certificate: it is expired".to_owned())
            }
            AlertDescription::UnknownCA => Error::ClientCertificate(
                "refuses the client certificate: it is from an authority that it does not trust".to_owned(),
            ),
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown => {
                Error::ClientCertificate(format!("refuses the client certificate: {alert:?}"))
            }
            other => Error::Handshake(format!("it ended TLS with {other:?}")),
        },
        rustls::Error::InvalidMessage(_) => Error::Handshake("it does not speak TLS there".to_owned()),
        other => Error::Handshake(other.to_string()),
    }
}
