//! Limits the messages in flight on one connection.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::classify::Error;

/// The window for messages in flight. It follows the rate of the server: with a slow server, messages of a full window
/// would pass their deadline.
#[derive(Debug)]
pub(super) struct InFlightWindow {
    permits: Semaphore,
    max: usize,
    size: Mutex<WindowSize>,
}

#[derive(Debug)]
struct WindowSize {
    window: usize,
    /// The excess after the window shrank: this many must end before a new message may start.
    excess: usize,
}

impl InFlightWindow {
    pub(super) fn new(max: usize) -> Self {
        let window = max.min(WINDOW_START);
        Self { permits: Semaphore::new(window), max, size: Mutex::new(WindowSize { window, excess: 0 }) }
    }

    /// Waits for capacity for one message or a batch. Fails when the connection is lost.
    pub(super) async fn acquire(&self, messages: usize) -> Result<(), Error> {
        let weight = u32::try_from(self.weight(messages)).expect("the smallest window is small");
        let permit = self.permits.acquire_many(weight).await.map_err(|_| Error::Disconnected)?;
        // The capacity is released when the message has an outcome.
        permit.forget();
        Ok(())
    }

    /// The capacity that a message or a batch needs. The server stores a batch at once, so even a large one must fit
    /// into the smallest window.
    pub(super) fn weight(&self, messages: usize) -> usize {
        messages.min(WINDOW_MIN).min(self.max)
    }

    /// Releases capacity, except for the excess after the window shrank.
    pub(super) fn release(&self, weight: usize) {
        self.release_in(&mut self.size.lock(), weight);
    }

    /// Sets the window, within the limits.
    pub(super) fn resize(&self, window: usize) {
        let window = window.clamp(WINDOW_MIN.min(self.max), self.max);
        let mut size = self.size.lock();
        if window >= size.window {
            let more = window - size.window;
            self.release_in(&mut size, more);
        } else {
            let less = size.window - window;
            size.excess += less - self.permits.forget_permits(less);
        }
        size.window = window;
    }

    /// Fails all waiters: the connection is lost.
    pub(super) fn close(&self) {
        self.permits.close();
    }

    fn release_in(&self, size: &mut WindowSize, weight: usize) {
        let reduced = size.excess.min(weight);
        size.excess -= reduced;
        self.permits.add_permits(weight - reduced);
    }
}

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

    #[tokio::test]
    async fn a_shrinking_window_admits_nothing_until_enough_was_released() {
        let window = InFlightWindow::new(1_000);
        for _ in 0..1_000 {
            window.acquire(1).await.expect("it has capacity");
        }
        window.resize(300);
        window.release(700);
        assert_eq!(window.permits.available_permits(), 0);
        window.release(300);
        assert_eq!(window.permits.available_permits(), 300);
        window.resize(5_000);
        assert_eq!(window.permits.available_permits(), 1_000, "never more than the maximum");
    }

    #[tokio::test]
    async fn the_largest_batch_fits_into_the_smallest_window() {
        let window = InFlightWindow::new(8_000);
        window.resize(1);
        window.acquire(1_000).await.expect("it has capacity");
        let small = InFlightWindow::new(10);
        small.acquire(1_000).await.expect("it has capacity");
    }

    fn measured_rate(acknowledged: usize, took: Duration) -> AckRate {
        let mut rate = AckRate::default();
        let began = Instant::now().checked_sub(took).expect("the machine has run for longer");
        rate.sent(IN_FLIGHT_MIN, began);
        rate.settled(acknowledged, 0);
        rate
    }

    #[test]
    fn a_server_that_flushes_before_every_acknowledgement_is_slow() {
        assert!(measured_rate(6_000, Duration::from_secs(1)).is_slow());
        assert!(!measured_rate(76_000, Duration::from_secs(1)).is_slow());
    }

    #[test]
    fn the_window_is_half_a_second_of_acknowledgements() {
        let mut rate = AckRate::default();
        rate.sent(
            IN_FLIGHT_MIN,
            Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine has run for longer"),
        );
        let window = rate.settled(4_000, 0).expect("a measurement");
        assert!((900..=1_000).contains(&window), "{window}");
    }

    #[test]
    fn time_without_messages_in_flight_is_not_measured() {
        let mut rate = AckRate::default();
        rate.sent(
            IN_FLIGHT_MIN,
            Instant::now().checked_sub(Duration::from_mins(1)).expect("the machine has run for longer"),
        );
        rate.ended_unacknowledged(0);
        rate.sent(IN_FLIGHT_MIN, Instant::now());
        assert_eq!(rate.settled(IN_FLIGHT_MIN, 0), None);
        assert!(!rate.is_slow());
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
