//! Maintains the connection for publishing. A lost connection is replaced by a new one.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{Client, Event, ServerAddr, ServerError, Subject, Subscriber};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use relevo_core::Failure;
use tokio::sync::{mpsc, watch};
use tracing::{info, warn};

use super::atomic_batches::BatchSupport;
use super::encode::parse_ack;
use super::unconfirmed::UnconfirmedMessages;
use crate::classify::Error;
use crate::config::Config;
use crate::connection;

/// How often overdue acknowledgements are checked.
const EXPIRE_INTERVAL: Duration = Duration::from_millis(100);
/// How long messages for a denied subject are not sent: the server would report each one.
const DENIED_TTL: Duration = Duration::from_millis(500);
const DENIED_MAX: usize = 1_024;
/// The maximum number of acknowledgements that are processed together.
const ACK_CHUNK: usize = 256;

/// One connection. It is never restored when it is lost: messages in flight would wait for acknowledgements that cannot
/// arrive.
#[derive(Debug)]
pub(crate) struct PublishConnection {
    pub(crate) client: Client,
    pub(crate) unconfirmed: UnconfirmedMessages,
    pub(crate) batch_support: BatchSupport,
    reply_inbox: String,
    denied: Mutex<BTreeMap<String, Instant>>,
}

/// The inputs of a connection.
pub(crate) struct ConnectionEvents {
    events: mpsc::Receiver<Event>,
    acks: Subscriber,
    /// Whether the server returned the settings of the stream.
    batch_support_known: bool,
}

impl PublishConnection {
    /// Connects to this server.
    pub(crate) async fn open(config: &Config, server: &ServerAddr) -> Result<(Self, ConnectionEvents), Error> {
        let (sender, events) = mpsc::channel(256);
        let options = connection::options(config)?
            // A restored connection would silently lose messages that were not written yet. The library tries once, and
            // stops when it finds that its handle was dropped.
            .max_reconnects(1)
            .ignore_discovered_servers()
            .skip_subject_validation(true)
            .subscription_capacity(config.in_flight_max + ACK_CHUNK)
            .event_callback(move |event| {
                // Events beyond the capacity are repeated denials; a lost connection is also detected in other ways.
                sender.try_send(event).ok();
                std::future::ready(())
            });
        let client = options.connect(server.clone()).await.map_err(connection::connect_error)?;
        let reply_inbox = client.new_inbox() + ".";
        // This fails only if the connection is already lost.
        let acks = client.subscribe(format!("{reply_inbox}*")).await.map_err(|_| Error::Disconnected)?;
        let clustered = client.server_info().cluster.is_some();
        let unconfirmed = UnconfirmedMessages::new(config.in_flight_max, config.confirm_timeout, clustered);
        let batch_support = BatchSupport::default();
        let batch_support_known = batch_support.query(&client, config).await;
        Ok((
            Self { client, unconfirmed, batch_support, reply_inbox, denied: Mutex::default() },
            ConnectionEvents { events, acks, batch_support_known },
        ))
    }

    /// Runs until the connection is lost, and returns the cause. Every waiting message has an outcome by then.
    pub(crate) async fn run(&self, events: ConnectionEvents, config: &Config) -> Error {
        let batch_support_known = events.batch_support_known;
        let mut listening = pin!(self.listen(events));
        if batch_support_known {
            return listening.await;
        }
        tokio::select! {
            error = &mut listening => error,
            () = self.batch_support.query_until_answered(&self.client, config) => listening.await,
        }
    }

    async fn listen(&self, events: ConnectionEvents) -> Error {
        let ConnectionEvents { mut events, acks, .. } = events;
        let mut acks = acks.ready_chunks(ACK_CHUNK);
        let mut expire = tokio::time::interval(EXPIRE_INTERVAL);
        let error = loop {
            tokio::select! {
                biased;
                event = events.recv() => match event {
                    Some(Event::Disconnected | Event::Closed) | None => break Error::Disconnected,
                    Some(Event::ServerError(error)) => if let Some(error) = self.on_server_error(&error) { break error },
                    Some(_) => {}
                },
                chunk = acks.next() => match chunk {
                    Some(chunk) => self.unconfirmed.settle(chunk.iter().filter_map(|message| {
                        let token = message.subject.strip_prefix(self.reply_inbox.as_str())?.parse().ok()?;
                        Some((token, parse_ack(message)))
                    })),
                    None => break Error::Disconnected,
                },
                now = expire.tick() => self.unconfirmed.expire(now.into_std()),
            }
        };
        self.unconfirmed.connection_lost();
        error
    }

    /// The reply subject of a token.
    pub(crate) fn reply_subject(&self, token: u64) -> Subject {
        format!("{}{token}", self.reply_inbox).into()
    }

    /// Whether the server recently refused a publish to this subject.
    pub(crate) fn is_denied(&self, subject: &str) -> bool {
        let denied = self.denied.lock();
        !denied.is_empty() && denied.get(subject).is_some_and(|since| since.elapsed() < DENIED_TTL)
    }

    /// Handles a server error, which does not name a message. Returns an error if the connection is unusable.
    fn on_server_error(&self, error: &ServerError) -> Option<Error> {
        let ServerError::Other(text) = error else { return None };
        match connection::permission_error(text)? {
            Error::PublishDenied(subject) => {
                let mut denied = self.denied.lock();
                denied.retain(|_, since| since.elapsed() < DENIED_TTL);
                if denied.len() < DENIED_MAX {
                    denied.insert(subject.clone(), Instant::now());
                }
                drop(denied);
                self.unconfirmed.deny(&subject);
                None
            }
            error => Some(error),
        }
    }
}

/// The state of the connection, as publishers see it.
#[derive(Clone, Debug)]
pub(crate) enum BrokerConnection {
    /// Connected.
    Up(Arc<PublishConnection>),
    /// Not connected, with the cause.
    Down(Arc<Error>),
}

/// The maximum number of servers that are used in addition to the configured ones.
const DISCOVERED_MAX: usize = 64;

/// A connection of this length counts as stable.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Connects, and replaces a lost connection by a new one, until it is dropped.
pub(crate) async fn maintain(config: Config, configured: Vec<ServerAddr>, state: watch::Sender<BrokerConnection>) {
    let mut servers = configured.clone();
    let mut failures = 0;
    let mut backoff = connection::backoff();
    let mut delay = Duration::ZERO;
    loop {
        let server = servers[failures % servers.len()].clone();
        let error = match PublishConnection::open(&config, &server).await {
            Ok((connection, events)) => {
                info!(server = server.host(), port = server.port(), "connected to NATS");
                servers = known_servers(&configured, &connection);
                let connection = Arc::new(connection);
                let began = Instant::now();
                state.send_replace(BrokerConnection::Up(Arc::clone(&connection)));
                let error = connection.run(events, &config).await;
                // Keep the failure count if the server accepts and then closes connections, so that the delays grow.
                if connection.unconfirmed.has_stored() || began.elapsed() >= STABLE_AFTER {
                    failures = 0;
                    backoff.reset();
                }
                error
            }
            // That server is not in the configuration, so its TLS error does not concern the configuration.
            Err(error @ (Error::ServerCertificate(_) | Error::ClientCertificate(_) | Error::Tls(_)))
                if !configured.contains(&server) =>
            {
                let (host, port, error) = (server.host(), server.port(), error_chain(Arc::new(error)));
                warn!(server = host, port, error, "TLS handshake with a discovered NATS server failed");
                Error::Disconnected
            }
            Err(error) => error,
        };
        let error = Arc::new(error);
        if failures == 0 {
            let (host, port, error) = (server.host(), server.port(), error_chain(Arc::clone(&error)));
            warn!(server = host, port, error, "not connected to NATS, will retry");
        }
        failures += 1;
        state.send_replace(BrokerConnection::Down(error));
        // Every server is tried once before the delay grows.
        if failures == 1 || failures.is_multiple_of(servers.len()) {
            delay = backoff.next(connection::jitter());
        }
        tokio::time::sleep(delay).await;
    }
}

/// The configured servers, and those that the cluster announces.
fn known_servers(configured: &[ServerAddr], connection: &PublishConnection) -> Vec<ServerAddr> {
    let mut servers = configured.to_vec();
    for url in connection.client.server_info().connect_urls.iter().take(DISCOVERED_MAX) {
        match url.parse::<ServerAddr>() {
            Ok(server) if !servers.contains(&server) => servers.push(server),
            _ => {}
        }
    }
    servers
}

fn error_chain(error: Arc<Error>) -> String {
    Failure::from(Error::Shared(error)).error_chain()
}
