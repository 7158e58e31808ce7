//! The connection of a publisher.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::{Connection, ConnectionState, ErrorKind, Event};
use tokio::sync::watch;
use tokio::time::{interval, timeout};
use tracing::{info, warn};

use crate::classify::Error;
use crate::config::Config;
use crate::connection::Reconnect;

/// How often a connection is checked, in addition to its events.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The time limit for closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

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

/// Keeps the publisher connected until `closing` is set.
pub(super) async fn run(
    config: Arc<Config>,
    name: String,
    state: watch::Sender<BrokerConnection>,
    mut closing: watch::Receiver<bool>,
) {
    let mut connections = Reconnect::new(&config, &name);
    loop {
        let attempt = tokio::select! {
            biased;
            () = wait_for_close(&mut closing) => break,
            attempt = connections.next() => attempt,
        };
        match attempt {
            Ok(connection) => {
                let live = LiveConnection {
                    connection: Arc::new(connection),
                    number: NEXT_CONNECTION_NUMBER.fetch_add(1, Ordering::Relaxed),
                    alarm: None,
                };
                info!(connection = name, "connected to RabbitMQ for publishing");
                state.send_replace(BrokerConnection::Up(live.clone()));
                let Some(error) = watch_connection(&live, &state, &mut closing).await else { break };
                warn!(connection = name, %error, "the connection to RabbitMQ was lost, will reconnect");
                state.send_replace(BrokerConnection::Down(Error::Unreachable(error)));
            }
            Err(error) => {
                log_failure(&state, &error);
                state.send_replace(BrokerConnection::Down(error));
            }
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
        warn!(%error, "cannot connect to RabbitMQ, will retry");
    }
}

/// Watches a connection until it ends. Returns the cause, or `None` if this program closed it.
async fn watch_connection(
    live: &LiveConnection,
    state: &watch::Sender<BrokerConnection>,
    closing: &mut watch::Receiver<bool>,
) -> Option<lapin::Error> {
    let mut events = Box::pin(live.connection.events_listener());
    let mut check = interval(CHECK_INTERVAL);
    loop {
        let event = tokio::select! {
            biased;
            () = wait_for_close(closing) => {
                timeout(CLOSE_TIMEOUT, live.connection.close(200, "closed".into())).await.ok();
                return None;
            }
            event = events.next() => event,
            _ = check.tick() => Some(Event::Connected),
        };
        match event {
            // Errors of channels arrive here too.
            Some(Event::Error(error)) if !live.connection.status().connected() => return Some(error),
            Some(Event::ConnectionBlocked(reason)) => {
                warn!(%reason, "RabbitMQ has a resource alarm and accepts no messages");
                state.send_replace(BrokerConnection::Up(LiveConnection { alarm: Some(reason.into()), ..live.clone() }));
            }
            Some(Event::ConnectionUnblocked) => {
                info!("RabbitMQ accepts messages again");
                state.send_replace(BrokerConnection::Up(live.clone()));
            }
            Some(_) if live.connection.status().connected() => {}
            Some(_) | None => return Some(ErrorKind::InvalidConnectionState(ConnectionState::Closed).into()),
        }
    }
}
