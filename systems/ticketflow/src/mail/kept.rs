//! Connections that are kept open between letters.
//!
//! lettre has a pool too. It takes back what a letter left half way when its time was over, and the next letter then reads the
//! late answer to that one as its own. Here a connection comes back from a letter that was taken, and from no other.

use std::time::Duration;

use lettre::transport::smtp::client::AsyncSmtpConnection;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The most that are kept.
const CONNECTIONS_MAX: usize = 16;
/// A connection that was idle for longer is closed, because servers have short timeouts.
const IDLE_MAX: Duration = Duration::from_mins(1);

/// Connections with nothing under way, the newest last, each with when it came.
#[derive(Default)]
pub(super) struct Kept(Mutex<Vec<(AsyncSmtpConnection, Instant)>>);

impl Kept {
    /// One that still answers, if there is one.
    pub(super) async fn take(&self) -> Option<AsyncSmtpConnection> {
        loop {
            let (mut connection, _) = self.0.lock().pop()?;
            if connection.test_connected().await {
                return Some(connection);
            }
        }
    }

    /// Keeps one for the next letter.
    pub(super) fn put(&self, connection: AsyncSmtpConnection) {
        let now = Instant::now();
        let mut kept = self.0.lock();
        kept.retain(|(_, since)| now.duration_since(*since) < IDLE_MAX);
        if kept.len() < CONNECTIONS_MAX {
            kept.push((connection, now));
        }
    }
}
