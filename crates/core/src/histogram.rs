//! A histogram that threads update without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// The sum is stored in millionths of the unit, so that one atomic integer addition updates it.
const PARTS: f64 = 1e6;

/// Counts values per bucket. All counters only increase.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One counter for each bound, and one for values above the last bound.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// A copy of a histogram's counters.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramSnapshot {
    /// The sum of all values.
    pub sum: f64,
    /// The number of values.
    pub count: u64,
    /// The upper bound of each bucket and its own count, which is not cumulative. The last bound is [`f64::INFINITY`].
    pub buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// Creates a histogram. The bounds must be in ascending order.
    pub fn new(bounds: &'static [f64]) -> Self {
        assert!(bounds.is_sorted(), "bounds must be in ascending order");
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    /// Counts one value. A negative value counts as zero.
    pub fn observe(&self, value: f64) {
        let value = value.max(0.0);
        // For few bounds, a linear search is faster than a binary search.
        let at = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and `as` saturates"
        )]
        self.sum.fetch_add((value * PARTS) as u64, Ordering::Relaxed);
    }

    /// Copies the counters. The count always equals the sum of the buckets, even while other threads add values.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        #[expect(clippy::cast_precision_loss, reason = "a sum may be inexact")]
        let sum = self.sum.load(Ordering::Relaxed) as f64 / PARTS;
        HistogramSnapshot { sum, count: buckets.iter().map(|(_, count)| count).sum(), buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_the_first_bucket_that_contains_it() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for value in [-3.0, 0.5, 0.75, 1.0, 7.0, 9.0] {
            histogram.observe(value);
        }
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.buckets, [(0.5, 2), (1.0, 2), (f64::INFINITY, 2)]);
        assert_eq!(snapshot.count, 6);
        assert!((snapshot.sum - 18.25).abs() < 1e-9, "{}", snapshot.sum);
    }
}
