//! Limits how often a repeated event is logged.

use std::time::Duration;

use tokio::time::Instant;

/// The longest interval between two log lines for the same event.
const INTERVAL_MAX: Duration = Duration::from_mins(1);

/// Logs the first occurrence at once, then repeats at doubling intervals, with the number of occurrences.
///
/// A broker that accepts one message and fails at the next, for example with a full disk, fails several times a second.
/// The relay must not slow down for that, because other messages may pass. The log must not contain a line for each
/// failure.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle {
    /// How long the next occurrences are not logged.
    interval: Duration,
    silent_until: Option<Instant>,
    last: Option<Instant>,
    unlogged: u64,
}

impl LogThrottle {
    /// Counts an occurrence. Returns `Some` if it must be logged now, with the number of occurrences since the last log
    /// line.
    pub(crate) fn occurred(&mut self, now: Instant, first: Duration) -> Option<u64> {
        let before = self.last.replace(now);
        self.unlogged += 1;
        if before.is_none_or(|before| now.duration_since(before) >= INTERVAL_MAX) {
            // There was no occurrence for a long time, so this is a new event.
            self.interval = first.min(INTERVAL_MAX);
        } else if self.silent_until.is_some_and(|until| now < until) {
            return None;
        }
        self.silent_until = Some(now + self.interval);
        self.interval = (self.interval * 2).min(INTERVAL_MAX);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const EVERY: Duration = Duration::from_millis(125);

    #[test]
    fn repeats_are_logged_at_doubling_intervals() {
        let (start, mut throttle) = (Instant::now(), LogThrottle::default());
        let times = (0..8 * 600).map(|number| start + EVERY * number);
        let logged: Vec<(Instant, u64)> =
            times.filter_map(|now| throttle.occurred(now, FIRST).map(|count| (now, count))).collect();
        let intervals: Vec<Duration> = logged.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(intervals.is_sorted() && intervals.last() == Some(&INTERVAL_MAX), "{intervals:?}");
        assert_eq!((logged[0], logged.len() < 20), ((start, 1), true), "few lines in ten minutes: {intervals:?}");
        assert_eq!(logged.last().unwrap().1, 480, "every occurrence is counted");
    }

    #[test]
    fn a_repeat_after_a_long_pause_is_logged_at_once() {
        let (mut now, mut throttle) = (Instant::now(), LogThrottle::default());
        for _ in 0..100 {
            throttle.occurred(now, FIRST);
            now += EVERY;
        }
        assert!(throttle.occurred(now, FIRST).is_none());
        now += INTERVAL_MAX;
        assert!(throttle.occurred(now, FIRST).is_some());
        assert!(throttle.occurred(now + EVERY, FIRST).is_some(), "the intervals start again");
    }
}
