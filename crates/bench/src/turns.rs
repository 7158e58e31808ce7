//! Pairs of a rate and a reference rate measured next to it.

use std::fmt;

use crate::engine::median;

/// Pairs of rates: ours, and the reference.
#[derive(Default)]
pub(crate) struct Turns(Vec<(f64, f64)>);

impl Turns {
    /// Adds a pair.
    pub(crate) fn push(&mut self, ours: f64, beside: f64) {
        self.0.push((ours, beside));
    }

    /// The median of the ratios. Each rate is compared only with the reference that was measured next to it.
    pub(crate) fn ratio(&self) -> f64 {
        median(self.ratios())
    }

    fn ratios(&self) -> Vec<f64> {
        self.0.iter().map(|(ours, beside)| ours / beside).collect()
    }
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ours, beside): (Vec<_>, Vec<_>) = self.0.iter().copied().unzip();
        let ratios = self.ratios();
        let (low, high) = ratios.iter().fold((f64::MAX, f64::MIN), |(low, high), one| (low.min(*one), high.max(*one)));
        let (ours, beside, turns) = (median(ours), median(beside), ratios.len());
        write!(f, "{ours:.0}/s against {beside:.0}/s; {turns} turns, {low:.2} to {high:.2}")
    }
}
