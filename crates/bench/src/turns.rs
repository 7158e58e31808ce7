//! Pairs of a rate and a reference rate measured next to it.

use std::fmt;

use crate::engine::median;

/// Pairs of rates: the measured one, and the reference.
#[derive(Default)]
pub(crate) struct Turns(Vec<(f64, f64)>);

impl Turns {
    /// Adds a pair.
    pub(crate) fn push(&mut self, rate: f64, reference: f64) {
        self.0.push((rate, reference));
    }

    /// The median of the ratios. Each rate is compared only with the reference that was measured next to it.
    pub(crate) fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    fn ratios(&self) -> Vec<f64> {
        self.0.iter().map(|(rate, reference)| rate / reference).collect()
    }
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, reference): (Vec<_>, Vec<_>) = self.0.iter().copied().unzip();
        let ratios = self.ratios();
        let (low, high) = ratios.iter().fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(*one), high.max(*one)));
        let (rate, reference, rounds) = (median(rate), median(reference), ratios.len());
        write!(f, "{rate:.0}/s against {reference:.0}/s; {rounds} rounds, {low:.2} to {high:.2}")
    }
}
