//! Waiting for unreachable servers without appearing stuck.

use std::pin::pin;
use std::time::Duration;

use relevo_core::retry::{ExponentialBackoff, Jitter};
use relevo_observe::RelayMonitor;
use tokio::time::{sleep, timeout};

use crate::config::DestinationConfig;

/// How often a wait reports progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// The time limit of a check of a broker, however large its topology is. Each request of a check has its own limit.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_mins(10);

/// Waits for `work`, and reports progress meanwhile: the work has its own time limit, and a restart of the process would
/// not end an outage.
pub(crate) async fn with_progress<T>(relay: &RelayMonitor, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        relay.made_progress();
        if let Ok(done) = timeout(PROGRESS_INTERVAL, work.as_mut()).await {
            return done;
        }
    }
}

/// The pauses of [`ExponentialBackoff`], shortened at random so that relays do not come back at once.
pub(crate) struct Pauses(ExponentialBackoff);

impl Pauses {
    pub(crate) fn of(destination: &DestinationConfig) -> Self {
        Self(ExponentialBackoff::new(
            destination.relay.advanced.outage_backoff_min,
            destination.relay.outage_backoff_max,
        ))
    }

    /// Waits for the next pause.
    pub(crate) async fn pass(&mut self, relay: &RelayMonitor) {
        let pause = self.0.next(Jitter::from_random(fastrand::u32(..)));
        with_progress(relay, sleep(pause)).await;
    }
}

#[cfg(test)]
mod tests {
    use relevo_observe::RelayLabels;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_broker_that_hangs_does_not_make_the_relay_look_stuck() {
        let stall_timeout = PROGRESS_INTERVAL * 2;
        let (outbox, destination) = ("shop".to_owned(), "main".to_owned());
        let (broker, location) = ("nats".to_owned(), String::new());
        let labels = RelayLabels { outbox, database: String::new(), destination, broker, location };
        let relay = RelayMonitor::new(labels).with_stall_timeout(stall_timeout);
        let mut hangs = pin!(with_progress(&relay, sleep(stall_timeout + PROGRESS_INTERVAL)));
        while timeout(PROGRESS_INTERVAL / 10, hangs.as_mut()).await.is_err() {
            assert!(relay.is_progressing(Instant::now()));
        }
        assert!(!relay.is_progressing(Instant::now() + stall_timeout), "there is no attempt any more");
    }
}
