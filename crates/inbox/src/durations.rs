//! Histogram of durations with fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets in seconds. One more bucket contains longer durations.
pub const BOUNDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Counts durations per bucket.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

/// A snapshot of [`ConsumerStatus::durations`](crate::ConsumerStatus::durations).
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds in seconds, the last one infinite, each with the number of values in that bucket alone.
    pub buckets: Vec<(f64, u64)>,
    /// Number of values.
    pub count: u64,
    /// Sum of all values.
    pub sum: Duration,
}

impl Durations {
    pub(crate) fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn histogram(&self) -> Histogram {
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        // Summed from the buckets, so that both always agree.
        let count = buckets.iter().map(|(_, count)| count).sum();
        Histogram { buckets, count, sum: Duration::from_micros(self.sum_us.load(Ordering::Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_in_the_first_bucket_that_is_wide_enough() {
        let durations = Durations::default();
        for ms in [0, 1, 2, 3, 30_000, 30_001, 3_600_000] {
            durations.observe(Duration::from_millis(ms));
        }
        let Histogram { buckets, count, sum } = durations.histogram();
        let filled: Vec<(f64, u64)> = buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.001, 2), (0.0025, 1), (0.005, 1), (30.0, 1), (f64::INFINITY, 2)]);
        assert_eq!((count, sum), (7, Duration::from_millis(3_660_007)));
    }
}
