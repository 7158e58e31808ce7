//! How often the same news is told.

use std::time::Duration;

use tokio::time::Instant;

/// The longest time between two lines that say the same.
const QUIET_MAX: Duration = Duration::from_mins(1);

/// Tells news at once, and repeats of it at times that grow further and further apart.
///
/// A destination that takes one message and fails at the next, as a full disk does, is found away several times a second.
/// What is sent must not wait for longer because of that, for other messages may pass; the log must not say it each time.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// How long nothing is told after the next line.
    length: Duration,
    until: Option<Instant>,
    last: Option<Instant>,
    untold: u64,
}

impl Quiet {
    /// It happened. `Some` if it is to be told now: with how often it happened since that was last done.
    pub(crate) fn happened(&mut self, now: Instant, first: Duration) -> Option<u64> {
        let before = self.last.replace(now);
        self.untold += 1;
        if before.is_none_or(|before| now.duration_since(before) >= QUIET_MAX) {
            // It was well for long: this is something new.
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
