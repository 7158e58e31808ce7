//! Waiting for what is away, without looking stuck.

use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::seen::Seen;
use crate::config::{Broker, Destination};

/// So often a wait shows that it is one.
const TURN_EVERY: Duration = Duration::from_secs(1);
/// What a look asks beside the pieces of the topology: three times everything, eight questions each.
const QUESTIONS: usize = 24;
/// No look takes longer, however much there is to ask.
const LOOK_MAX: Duration = Duration::from_mins(10);

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

/// After so long a look at the broker is given up. Each of its questions has the deadline of a connect; this one counts
/// where they are all slow, or none is answered in a way that the client library notices.
pub(super) fn look_deadline(broker: &Broker) -> Duration {
    let (connect, servers, pieces) = match broker {
        Broker::Embedded { .. } => return LOOK_MAX,
        Broker::Rabbitmq(config) => {
            let all = config.topology.declarations();
            let pieces = all.exchanges.len() + all.queues.len() + all.bindings.len() + all.policies.len();
            (config.connect_timeout, config.urls.len(), pieces)
        }
        Broker::Nats(config) => {
            let groups = config.topology.groups.iter().map(|group| 2 + usize::from(group.lanes.unwrap_or(1)));
            (config.connect_timeout, config.urls.len(), config.topology.streams.len() + groups.sum::<usize>())
        }
    };
    // A look connects up to three times, and compares, makes and compares again.
    let calls = QUESTIONS + 3 * (servers + pieces);
    connect.saturating_mul(u32::try_from(calls).unwrap_or(u32::MAX)).min(LOOK_MAX)
}

/// Pauses that double up to a limit, each up to half shorter by chance, so that many do not come back at once.
pub(super) struct Pauses {
    next: Duration,
    max: Duration,
}

impl Pauses {
    pub(super) fn of(destination: &Destination) -> Self {
        Self { next: destination.relay.outage_backoff_min, max: destination.relay.outage_backoff_max }
    }

    /// Waits for the next one to pass.
    pub(super) async fn pass(&mut self, seen: &Seen) {
        let pause = self.draw();
        turning(seen, sleep(pause)).await;
    }

    fn draw(&mut self) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(self.max);
        // The keys of a new hasher are random.
        let [random, ..] = RandomState::new().hash_one(full).to_le_bytes();
        full.mul_f64(0.5 + f64::from(random) / 510.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use relevo_broker_nats as nats;
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

    #[test]
    fn pauses_double_to_a_limit_and_lose_at_most_half() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(5));
        let mut pauses = Pauses { next: min, max };
        let drawn: Vec<Duration> = (0..200).map(|_| pauses.draw()).collect();
        assert!(drawn[0] >= min / 2 && drawn[0] <= min, "{drawn:?}");
        assert!(drawn[10..].iter().all(|pause| *pause >= max / 2 && *pause <= max), "{drawn:?}");
        assert!(drawn[10..].windows(2).any(|two| two[0] != two[1]), "chance has a part in it");
    }

    #[test]
    fn a_look_has_time_for_every_server_and_every_piece() {
        let of = |config: nats::Config| look_deadline(&Broker::Nats(Box::new(config)));
        let small = of(nats::Config::new("nats://a"));
        assert!(small > Duration::from_secs(15), "{small:?}");
        let urls = ["nats://a", "nats://b"].map(str::to_owned).to_vec();
        assert!(of(nats::Config { urls, ..nats::Config::new("") }) > small);
        let connect_timeout = Duration::from_hours(1);
        assert_eq!(of(nats::Config { connect_timeout, ..nats::Config::new("nats://a") }), LOOK_MAX);
    }
}
