//! Waiting for what is away, without looking stuck.

use std::pin::pin;
use std::time::Duration;

use relevo_core::retry::{ExponentialBackoff, Jitter};
use relevo_observe::RelayMonitor;
use tokio::time::{sleep, timeout};

use crate::config::Destination;

/// So often a wait shows that it is one.
const TURN_EVERY: Duration = Duration::from_secs(1);
/// No check of a broker takes longer, however large its topology is. Each request of a check has its own time limit.
pub(super) const CHECK_MAX: Duration = Duration::from_mins(10);

/// What the work comes to. Meanwhile the relay counts as one that turns: its work has a deadline of its own, and to
/// restart the process would not mend what it waits for.
pub(super) async fn turning<T>(relay: &RelayMonitor, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        relay.made_progress();
        if let Ok(done) = timeout(TURN_EVERY, work.as_mut()).await {
            return done;
        }
    }
}

/// The pauses of [`ExponentialBackoff`], shortened at random so that relays do not come back at once.
pub(super) struct Pauses(ExponentialBackoff);

impl Pauses {
    pub(super) fn of(destination: &Destination) -> Self {
        Self(ExponentialBackoff::new(
            destination.relay.advanced.outage_backoff_min,
            destination.relay.outage_backoff_max,
        ))
    }

    /// Waits for the next pause.
    pub(super) async fn pass(&mut self, relay: &RelayMonitor) {
        let pause = self.0.next(Jitter::from_random(fastrand::u32(..)));
        turning(relay, sleep(pause)).await;
    }
}

#[cfg(test)]
mod tests {
    use relevo_observe::RelayLabels;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_broker_that_hangs_does_not_make_the_relay_look_stuck() {
        let stall_timeout = TURN_EVERY * 2;
        let (outbox, destination) = ("shop".to_owned(), "main".to_owned());
        let (broker, location) = ("nats".to_owned(), String::new());
        let labels = RelayLabels { outbox, destination, broker, location };
        let relay = RelayMonitor::new(labels).with_stall_timeout(stall_timeout);
        let mut hangs = pin!(turning(&relay, sleep(stall_timeout + TURN_EVERY)));
        while timeout(TURN_EVERY / 10, hangs.as_mut()).await.is_err() {
            assert!(relay.is_progressing(Instant::now()));
        }
        assert!(!relay.is_progressing(Instant::now() + stall_timeout), "there is no attempt any more");
    }
}
