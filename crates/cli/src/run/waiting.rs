//! Waiting for what is away, without looking stuck.

use std::pin::pin;
use std::time::Duration;

use relevo_core::retry::{ExponentialBackoff, Jitter};
use tokio::time::{sleep, timeout};

use super::seen::Seen;
use crate::config::Destination;

/// So often a wait shows that it is one.
const TURN_EVERY: Duration = Duration::from_secs(1);
/// No check of a broker takes longer, however large its topology is. Each request of a check has its own time limit.
pub(super) const CHECK_MAX: Duration = Duration::from_mins(10);

/// What the work comes to. Meanwhile the relay counts as one that turns: its work has a deadline of its own, and to
/// restart the process would not mend what it waits for.
pub(super) async fn turning<T>(seen: &Seen, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    loop {
        seen.turns_on();
        if let Ok(done) = timeout(TURN_EVERY, work.as_mut()).await {
            return done;
        }
    }
}

/// The pauses of [`ExponentialBackoff`], shortened at random so that relays do not come back at once.
pub(super) struct Pauses(ExponentialBackoff);

impl Pauses {
    pub(super) fn of(destination: &Destination) -> Self {
        Self(ExponentialBackoff::new(destination.relay.outage_backoff_min, destination.relay.outage_backoff_max))
    }

    /// Waits for the next pause.
    pub(super) async fn pass(&mut self, seen: &Seen) {
        let pause = self.0.next(Jitter::from_random(fastrand::u32(..)));
        turning(seen, sleep(pause)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use relevo_core::Routes;
    use tokio::sync::Notify;
    use tokio::time::Instant;

    use super::*;
    use crate::run::pulse::Pulse;
    use crate::run::seen::{Named, Shared};

    #[tokio::test]
    async fn a_broker_that_hangs_does_not_make_the_relay_look_stuck() {
        let (stuck_after, changed) = (TURN_EVERY * 2, Arc::new(Notify::new()));
        let named =
            Named { outbox: "shop".to_owned(), destination: "main".to_owned(), broker: "nats", place: String::new() };
        let seen = Arc::new(Seen::new(named, Shared::default(), Routes::default(), stuck_after, changed));
        let pulse = Pulse::new(vec![Arc::clone(&seen)], Instant::now());
        let mut hangs = pin!(turning(&seen, sleep(stuck_after + TURN_EVERY)));
        while timeout(TURN_EVERY / 10, hangs.as_mut()).await.is_err() {
            assert!(pulse.beats(Instant::now()));
        }
        assert!(!pulse.beats(Instant::now() + stuck_after), "nothing turns any more");
    }
}
