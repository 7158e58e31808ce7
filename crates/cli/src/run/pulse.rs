//! Whether every relay's loop still turns: a stuck one must not be hidden by others that do.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::seen::{Phase, Seen};

/// When each relay was last seen to turn.
#[derive(Debug)]
pub(crate) struct Pulse {
    relays: Vec<Arc<Seen>>,
    last: Mutex<Vec<(u64, Instant)>>,
}

impl Pulse {
    pub(crate) fn new(relays: Vec<Arc<Seen>>, now: Instant) -> Self {
        let last = relays.iter().map(|_| (0, now)).collect();
        Self { relays, last: Mutex::new(last) }
    }

    /// For each relay, whether it turned since it was last looked at, or not long ago.
    pub(crate) fn take(&self, now: Instant) -> Vec<(&Seen, bool)> {
        // The list is whole after every change.
        let mut last = self.last.lock();
        let pairs = self.relays.iter().zip(last.iter_mut());
        pairs
            .map(|(seen, (turns, at))| {
                let turned = seen.turns();
                if turned != *turns {
                    (*turns, *at) = (turned, now);
                }
                let ended = seen.phase() == Phase::Ended;
                (&**seen, ended || now.duration_since(*at) < seen.stuck_after)
            })
            .collect()
    }

    /// Whether nothing is stuck.
    pub(crate) fn beats(&self, now: Instant) -> bool {
        self.take(now).into_iter().all(|(_, turns)| turns)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use relevo_core::Routes;
    use tokio::sync::Notify;

    use super::*;
    use crate::run::seen::{Named, Shared};

    fn seen(destination: &str) -> Arc<Seen> {
        let (routes, changed) = (Routes::default(), Arc::new(Notify::new()));
        let (outbox, destination) = ("shop".to_owned(), destination.to_owned());
        let named = Named { outbox, destination, broker: "embedded", place: String::new() };
        Arc::new(Seen::new(named, Shared::default(), routes, Duration::from_secs(20), changed))
    }

    #[test]
    fn one_relay_that_is_stuck_stops_the_pulse_of_all() {
        let mut now = Instant::now();
        let (turning, stuck) = (seen("turning"), seen("stuck"));
        let pulse = Pulse::new(vec![Arc::clone(&turning), Arc::clone(&stuck)], now);
        stuck.turns_on();
        for _ in 0..4 {
            turning.turns_on();
            assert!(pulse.beats(now));
            now += Duration::from_secs(5);
        }
        turning.turns_on();
        assert!(!pulse.beats(now));
        let stuck_ones: Vec<_> = pulse.take(now).into_iter().filter(|(_, turns)| !turns).collect();
        assert_eq!(stuck_ones.iter().map(|(seen, _)| seen.named.destination.as_str()).collect::<Vec<_>>(), ["stuck"]);
        stuck.turns_on();
        assert!(pulse.beats(now), "one that turns again is well");
    }
}
