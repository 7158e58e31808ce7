//! Measures the rate of acknowledgements while enough messages are in flight.

use std::time::{Duration, Instant};

/// With fewer messages in flight, the sender limits the rate, not the server.
const IN_FLIGHT_MIN: usize = 32;
/// The length of one measurement, counting only time with enough messages in flight.
const MEASURE_TIME: Duration = Duration::from_millis(100);
/// A server that syncs its disk before every acknowledgement stays below this rate; others are far above it.
const SLOW_PER_SECOND: u128 = 15_000;

/// The window holds what the server acknowledges in this time. The last message then waits about this long, far less
/// than its deadline.
const IN_FLIGHT_TIME: Duration = Duration::from_millis(500);
/// A smaller window would slow down a fast server before its rate is known.
pub(super) const WINDOW_MIN: usize = 256;
/// The window before the first measurement.
pub(super) const WINDOW_START: usize = 1_024;

/// Measures the rate of the server.
#[derive(Debug, Default)]
pub(super) struct AckRate {
    since: Option<Instant>,
    busy: Duration,
    settled: usize,
    slow: bool,
}

impl AckRate {
    /// Records that a message was sent.
    pub(super) fn sent(&mut self, in_flight: usize, now: Instant) {
        if self.since.is_none() && in_flight >= IN_FLIGHT_MIN {
            self.since = Some(now);
        }
    }

    /// Records acknowledgements, with the number still in flight. Returns the new window when a measurement is
    /// complete.
    pub(super) fn settled(&mut self, count: usize, in_flight: usize) -> Option<usize> {
        let since = self.since?;
        let now = Instant::now();
        self.since = (in_flight >= IN_FLIGHT_MIN).then_some(now);
        self.busy += now.saturating_duration_since(since);
        self.settled += count;
        if self.busy < MEASURE_TIME {
            return None;
        }
        let (settled, busy) = (self.settled as u128, self.busy.as_micros());
        (self.busy, self.settled) = (Duration::ZERO, 0);
        // This is permanent: batches are fast afterwards, which says nothing about single messages.
        self.slow |= settled * 1_000_000 < SLOW_PER_SECOND * busy;
        usize::try_from(settled * IN_FLIGHT_TIME.as_micros() / busy).ok()
    }

    /// Records a message that ended without an acknowledgement. Time with too few messages in flight does not count.
    pub(super) fn ended_unacknowledged(&mut self, in_flight: usize) {
        if in_flight < IN_FLIGHT_MIN {
            self.since = None;
        }
    }

    /// Whether a measurement ever found the server slow.
    pub(super) fn is_slow(&self) -> bool {
        self.slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured_rate(acknowledged: usize, took: Duration) -> AckRate {
        let mut pace = AckRate::default();
        let began = Instant::now().checked_sub(took).expect("the machine runs for longer");
        pace.sent(IN_FLIGHT_MIN, began);
        pace.settled(acknowledged, 0);
        pace
    }

    #[test]
    fn a_server_that_flushes_before_every_acknowledgement_is_slow() {
        assert!(measured_rate(6_000, Duration::from_secs(1)).is_slow());
        assert!(!measured_rate(76_000, Duration::from_secs(1)).is_slow());
    }

    #[test]
    fn the_window_is_half_a_second_of_acknowledgements() {
        let mut pace = AckRate::default();
        pace.sent(
            IN_FLIGHT_MIN,
            Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine runs for longer"),
        );
        let window = pace.settled(4_000, 0).expect("a measurement");
        assert!((900..=1_000).contains(&window), "{window}");
    }

    #[test]
    fn time_without_messages_in_flight_is_not_measured() {
        let mut pace = AckRate::default();
        pace.sent(
            IN_FLIGHT_MIN,
            Instant::now().checked_sub(Duration::from_mins(1)).expect("the machine runs for longer"),
        );
        pace.ended_unacknowledged(0);
        pace.sent(IN_FLIGHT_MIN, Instant::now());
        assert_eq!(pace.settled(IN_FLIGHT_MIN, 0), None);
        assert!(!pace.is_slow());
    }

    #[test]
    fn a_few_messages_are_not_measured() {
        assert!(!measured_rate(10, Duration::from_millis(10)).is_slow());
        let mut idle = AckRate::default();
        idle.sent(1, Instant::now());
        assert_eq!(idle.settled(1, 0), None);
        assert!(!idle.is_slow());
    }
}
