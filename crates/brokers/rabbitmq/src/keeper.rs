//! Maintains the connection for publishing, and reconnects when it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::{Connection, ConnectionState, ErrorKind, Event};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep, timeout};
use tracing::{info, warn};

use crate::backoff::Backoff;
use crate::classify::Error;
use crate::config::Config;
use crate::connection;

/// A connection of this length counts as stable: after it, the next attempt starts quickly.
const STABLE_AFTER: Duration = Duration::from_secs(1);
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

/// Maintains the connection until `closing` is set.
pub(crate) async fn maintain(
    config: Arc<Config>,
    state: watch::Sender<BrokerConnection>,
    mut closing: watch::Receiver<bool>,
) {
    let mut backoff = Backoff::default();
    let mut first = 0;
    loop {
        let attempt = connection::connect_from(&config, "relevo publisher", first);
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
                    backoff = Backoff::default();
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
            () = sleep(backoff.next()) => {}
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
