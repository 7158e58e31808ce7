//! Several rounds of one measurement, on a machine that may have other guests.

use std::fs;

use crate::engine::median;

/// How often a latency is measured. A neighbour that takes the processor for a second spoils a round, seldom most of them.
pub(crate) const ROUNDS: usize = 5;

/// Sorted milliseconds of each round.
pub(crate) struct Rounds(Vec<Vec<f64>>);

impl Rounds {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// A further round.
    pub(crate) fn push(&mut self, sorted: Vec<f64>) {
        self.0.push(sorted);
    }

    /// Of the round in the middle.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        median(self.each(percent))
    }

    /// The best and the worst round.
    pub(crate) fn spread(&self, percent: usize) -> String {
        let each = self.each(percent);
        let (best, worst) = each.iter().fold((f64::MAX, f64::MIN), |(low, high), ms| (low.min(*ms), high.max(*ms)));
        format!("{} rounds, {best:.1} to {worst:.1} ms", each.len())
    }

    fn each(&self, percent: usize) -> Vec<f64> {
        self.0.iter().map(|sorted| percentile(sorted, percent)).collect()
    }
}

/// Of a sorted list.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// Time that the host gave to others while this guest wanted to run.
pub(crate) struct Stolen {
    stolen: u64,
    all: u64,
}

impl Stolen {
    /// From now on.
    pub(crate) fn since_now() -> Self {
        let (stolen, all) = ticks();
        Self { stolen, all }
    }

    /// In percent of all processors' time.
    pub(crate) fn percent(&self) -> f64 {
        let (stolen, all) = ticks();
        #[expect(clippy::cast_precision_loss, reason = "counts of hundredths of a second")]
        let share = (stolen - self.stolen) as f64 / (all - self.all).max(1) as f64;
        share * 100.0
    }
}

/// What the kernel counted as stolen, and everything; zero where it does not tell.
fn ticks() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal; what follows is part of the first two.
    let columns: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|text| text.parse().ok()).collect();
    (columns.get(7).copied().unwrap_or(0), columns.iter().sum())
}
