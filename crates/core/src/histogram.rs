//! How values are spread, counted by any number of threads without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// Values are added up in millionths of their unit, so that one atomic addition does it.
const PARTS: f64 = 1e6;

/// How many values were at most as large as each of some bounds. Each number only grows.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for what is above them all.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// What a histogram had counted at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Spread {
    /// All values together.
    pub sum: f64,
    /// How many there were.
    pub count: u64,
    /// Each bound with how many were above the bound before and not above this one; the last is [`f64::INFINITY`].
    pub buckets: Vec<(f64, u64)>,
}

impl Histogram {
    /// A histogram with these bounds, which rise.
    pub fn new(bounds: &'static [f64]) -> Self {
        assert!(bounds.is_sorted(), "bounds rise");
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0) }
    }

    /// Counts one value; one below zero counts as zero.
    pub fn observe(&self, value: f64) {
        let value = value.max(0.0);
        // Few bounds: looking at them in turn is quicker than cutting them in half.
        let at = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "not negative, and `as` saturates"
        )]
        self.sum.fetch_add((value * PARTS) as u64, Ordering::Relaxed);
    }

    /// What was counted so far. Its count is that of its buckets, whatever is counted meanwhile.
    pub fn spread(&self) -> Spread {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
        #[expect(clippy::cast_precision_loss, reason = "a sum may be inexact")]
        let sum = self.sum.load(Ordering::Relaxed) as f64 / PARTS;
        Spread { sum, count: buckets.iter().map(|(_, count)| count).sum(), buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        for value in [-3.0, 0.5, 0.75, 1.0, 7.0, 9.0] {
            histogram.observe(value);
        }
        let spread = histogram.spread();
        assert_eq!(spread.buckets, [(0.5, 2), (1.0, 2), (f64::INFINITY, 2)]);
        assert_eq!(spread.count, 6);
        assert!((spread.sum - 18.25).abs() < 1e-9, "{}", spread.sum);
    }
}
