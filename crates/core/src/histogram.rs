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
#[derive(Clone, Debug, Default, PartialEq)]
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

impl HistogramSnapshot {
    /// The values that were counted after an earlier snapshot of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().map(|(_, count)| *count).chain(std::iter::repeat(0));
        let grown = |((bound, count), before): (&(f64, u64), u64)| (*bound, count.saturating_sub(before));
        Self {
            sum: (self.sum - earlier.sum).max(0.0),
            count: self.count.saturating_sub(earlier.count),
            buckets: self.buckets.iter().zip(before).map(grown).collect(),
        }
    }

    /// The values of two histograms with the same bounds.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.sum += other.sum;
        self.count += other.count;
        self.buckets.iter_mut().zip(other.buckets).for_each(|(bucket, (_, count))| bucket.1 += count);
        self
    }

    /// The value below which this share of all values lies: 0.5 is the median. Within a bucket, values count as evenly
    /// distributed; above the highest bound, it is that bound. `None` without a value.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a quantile of buckets is inexact")]
        let as_float = |count: u64| count as f64;
        let all: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let wanted = as_float(all) * share;
        let (mut lower, mut below) = (0.0, 0.0);
        for (bound, count) in self.buckets.iter().filter(|_| all > 0) {
            let count = as_float(*count);
            if count > 0.0 && below + count >= wanted {
                return Some(if bound.is_finite() {
                    lower + (bound - lower) * (wanted - below) / count
                } else {
                    lower
                });
            }
            (lower, below) = (*bound, below + count);
        }
        None
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

    fn snapshot(counts: [u64; 3]) -> HistogramSnapshot {
        let [one, two, more] = counts;
        let buckets = vec![(1.0, one), (2.0, two), (f64::INFINITY, more)];
        HistogramSnapshot { sum: 0.0, count: counts.iter().sum(), buckets }
    }

    #[test]
    fn a_quantile_is_interpolated_within_its_bucket() {
        let quantile = |counts, share| snapshot(counts).quantile(share).map(|value| (value * 100.0).round() / 100.0);
        assert_eq!((quantile([10, 0, 0], 0.5), quantile([10, 0, 0], 0.99)), (Some(0.5), Some(0.99)));
        assert_eq!(quantile([0, 10, 0], 0.5), Some(1.5));
        assert_eq!(quantile([0, 0, 4], 0.5), Some(2.0), "above every bound, it is at least the highest");
        assert_eq!((quantile([0, 0, 0], 0.5), HistogramSnapshot::default().quantile(0.5)), (None, None));
    }

    #[test]
    fn an_earlier_snapshot_is_subtracted_and_another_histogram_is_added() {
        let (earlier, later) = (snapshot([5, 1, 0]), snapshot([15, 1, 2]));
        assert_eq!(later.since(&earlier), snapshot([10, 0, 2]));
        assert_eq!(later.since(&HistogramSnapshot::default()), later, "nothing was counted before");
        assert_eq!(earlier.merge(later), snapshot([20, 2, 2]));
    }
}
