//! Rates and latencies of the last seconds, without a database of time series.

use std::collections::VecDeque;
use std::time::Duration;

use relevo_core::histogram::HistogramSnapshot;
use tokio::time::Instant;

/// The length of the window.
const WINDOW: Duration = Duration::from_secs(10);

/// Snapshots of a counter and of a histogram over the last ten seconds.
#[derive(Debug, Default)]
pub(crate) struct RateWindow(VecDeque<Snapshot>);

#[derive(Debug)]
struct Snapshot {
    at: Instant,
    count: u64,
    latency: HistogramSnapshot,
}

/// What happened within a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    /// Counted values per second. Zero while there is only one snapshot.
    pub(crate) per_second: f64,
    /// The median of the histogram. `None` without a value.
    pub(crate) p50: Option<f64>,
    /// The 99th percentile of the histogram. `None` without a value.
    pub(crate) p99: Option<f64>,
}

impl RateWindow {
    /// Adds a snapshot, and removes those that the window does not need any more.
    pub(crate) fn record(&mut self, at: Instant, count: u64, latency: HistogramSnapshot) {
        self.0.push_back(Snapshot { at, count, latency });
        // The oldest snapshot is the last one that is at least as old as the window.
        while self.0.get(1).is_some_and(|second| at.duration_since(second.at) >= WINDOW) {
            self.0.pop_front();
        }
    }

    /// The rates between the oldest snapshot and the newest.
    pub(crate) fn rates(&self) -> Rates {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else { return Rates::default() };
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        if seconds == 0.0 {
            return Rates::default();
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate may be inexact")]
        let per_second = last.count.saturating_sub(first.count) as f64 / seconds;
        let latency = last.latency.since(&first.latency);
        Rates { per_second, p50: latency.quantile(0.5), p99: latency.quantile(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency(fast: u64, slow: u64) -> HistogramSnapshot {
        let buckets = vec![(1.0, fast), (3.0, slow), (f64::INFINITY, 0)];
        HistogramSnapshot { sum: 0.0, count: fast + slow, buckets }
    }

    #[test]
    fn rates_are_of_the_window_alone() {
        let (mut window, start) = (RateWindow::default(), Instant::now());
        assert_eq!(window.rates(), Rates::default());
        window.record(start, 1000, latency(1000, 0));
        assert_eq!(window.rates(), Rates::default(), "one snapshot is no rate");
        let second = Duration::from_secs(1);
        window.record(start + second, 1010, latency(1000, 10));
        assert_eq!(window.rates(), Rates { per_second: 10.0, p50: Some(2.0), p99: Some(2.98) });
        for passed in 2..=30 {
            window.record(start + passed * second, 1010, latency(1000, 10));
        }
        assert_eq!(window.rates(), Rates::default(), "nothing happened in the last ten seconds");
        assert_eq!(window.0.len(), 11);
    }

    #[test]
    fn snapshots_that_came_late_still_give_the_right_rate() {
        let (mut window, start) = (RateWindow::default(), Instant::now());
        window.record(start, 0, latency(0, 0));
        window.record(start + Duration::from_mins(1), 600, latency(600, 0));
        assert_eq!(window.rates().per_second.to_bits(), 10.0_f64.to_bits());
    }
}
