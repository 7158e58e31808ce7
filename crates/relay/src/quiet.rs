//! Limits how often a repeated event is logged.

use std::time::Duration;

use tokio::time::Instant;

/// The longest interval between two log lines for the same event.
const QUIET_MAX: Duration = Duration::from_mins(1);

/// Logs the first occurrence at once, then repeats at doubling intervals, with the number of occurrences.
///
/// A broker that accepts one message and fails at the next, for example with a full disk, fails several times a second.
/// The relay must not slow down for that, because other messages may pass. The log must not contain a line for each
/// failure.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// How long the next occurrences are not logged.
    length: Duration,
    until: Option<Instant>,
    last: Option<Instant>,
    untold: u64,
}

impl Quiet {
    /// Counts an occurrence. Returns `Some` if it must be logged now, with the number of occurrences since the last log
    /// line.
    pub(crate) fn happened(&mut self, now: Instant, first: Duration) -> Option<u64> {
        let before = self.last.replace(now);
        self.untold += 1;
        if before.is_none_or(|before| now.duration_since(before) >= QUIET_MAX) {
            // There was no occurrence for a long time, so this is a new event.
            self.length = first.min(QUIET_MAX);
        } else if self.until.is_some_and(|until| now < until) {
            return None;
        }
        self.until = Some(now + self.length);
        self.length = (self.length * 2).min(QUIET_MAX);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(100);
    const EVERY: Duration = Duration::from_millis(125);

    #[test]
    fn what_goes_on_is_told_at_growing_distances_and_counted() {
        let (begun, mut quiet) = (Instant::now(), Quiet::default());
        let moments = (0..8 * 600).map(|turn| begun + EVERY * turn);
        let told: Vec<(Instant, u64)> =
            moments.filter_map(|now| quiet.happened(now, FIRST).map(|times| (now, times))).collect();
        let apart: Vec<Duration> = told.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(apart.is_sorted() && apart.last() == Some(&QUIET_MAX), "{apart:?}");
        assert_eq!((told[0], told.len() < 20), ((begun, 1), true), "ten minutes are few lines: {apart:?}");
        assert_eq!(told.last().unwrap().1, 480, "none is forgotten");
    }

    #[test]
    fn what_comes_back_after_a_long_time_is_new() {
        let (mut now, mut quiet) = (Instant::now(), Quiet::default());
        for _ in 0..100 {
            quiet.happened(now, FIRST);
            now += EVERY;
        }
        assert!(quiet.happened(now, FIRST).is_none());
        now += QUIET_MAX;
        assert!(quiet.happened(now, FIRST).is_some());
        assert!(quiet.happened(now + EVERY, FIRST).is_some(), "and it is told as often as at first");
    }
}
