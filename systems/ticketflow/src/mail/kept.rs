//! A pool of connections to the mail server.
//!
//! lettre has a pool too. It reuses a connection after a timeout, and the next letter then reads the late response to the previous one
//! as its own. Here a connection is only reused after a letter was accepted.

use std::time::Duration;

use lettre::transport::smtp::client::AsyncSmtpConnection;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The maximum number of idle connections.
const CONNECTIONS_MAX: usize = 16;
/// A connection that was idle for longer is closed, because servers have short timeouts.
const IDLE_MAX: Duration = Duration::from_mins(1);

/// Idle connections, newest last, with the time since when each is idle.
#[derive(Default)]
pub(super) struct Kept(Mutex<Vec<(AsyncSmtpConnection, Instant)>>);

impl Kept {
    /// Takes a connection that still responds, if there is one.
    pub(super) async fn take(&self) -> Option<AsyncSmtpConnection> {
        loop {
            let (mut connection, _) = self.0.lock().pop()?;
            if connection.test_connected().await {
                return Some(connection);
            }
        }
    }

    /// Returns a connection to the pool.
    pub(super) fn put(&self, connection: AsyncSmtpConnection) {
        let now = Instant::now();
        let mut kept = self.0.lock();
        kept.retain(|(_, since)| now.duration_since(*since) < IDLE_MAX);
        if kept.len() < CONNECTIONS_MAX {
            kept.push((connection, now));
        }
    }
}
