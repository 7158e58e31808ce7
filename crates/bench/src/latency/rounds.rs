//! Several rounds of one measurement, on a machine that may be shared with other guests.

use std::fs;

use crate::engine::median;

/// How often a latency is measured. Another guest that takes the processor for a second spoils one round, rarely most
/// of them.
pub(crate) const ROUNDS: usize = 5;

/// The sorted milliseconds of each round.
pub(crate) struct Rounds(Vec<Vec<f64>>);

impl Rounds {
    /// No rounds yet.
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a round.
    pub(crate) fn push(&mut self, sorted: Vec<f64>) {
        self.0.push(sorted);
    }

    /// The median of this percentile over all rounds.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        median(self.each(percent))
    }

    /// The best and the worst round, as text.
    pub(crate) fn spread(&self, percent: usize) -> String {
        let each = self.each(percent);
        let (best, worst) = each.iter().fold((f64::MAX, f64::MIN), |(low, high), ms| (low.min(*ms), high.max(*ms)));
        format!("{} rounds, {best:.1} to {worst:.1} ms", each.len())
    }

    fn each(&self, percent: usize) -> Vec<f64> {
        self.0.iter().map(|sorted| percentile(sorted, percent)).collect()
    }
}

/// The percentile of a sorted list.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

/// CPU time that the host gave to other guests while this guest wanted to run.
pub(crate) struct Stolen {
    stolen: u64,
    all: u64,
}

impl Stolen {
    /// Starts the measurement.
    pub(crate) fn since_now() -> Self {
        let (stolen, all) = ticks();
        Self { stolen, all }
    }

    /// The stolen time, in percent of the time of all processors.
    pub(crate) fn percent(&self) -> f64 {
        let (stolen, all) = ticks();
        #[expect(clippy::cast_precision_loss, reason = "counts of hundredths of a second")]
        let share = (stolen - self.stolen) as f64 / (all - self.all).max(1) as f64;
        share * 100.0
    }
}

/// The stolen ticks and all ticks that the kernel counted. Zero if the kernel does not report them.
fn ticks() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal. The columns after these are included in the first two.
    let columns: Vec<u64> = first.split_whitespace().skip(1).take(8).filter_map(|text| text.parse().ok()).collect();
    (columns.get(7).copied().unwrap_or(0), columns.iter().sum())
}
