//! Spans of virtual time.

use std::time::Duration;

use relevo_core::random::SplitMix64;

/// A span of virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its beginning.
    pub from: Duration,
    /// Its end, not included.
    pub to: Duration,
}

impl Span {
    /// Somewhere `within` the first so many, at most so long.
    pub fn random(random: &mut SplitMix64, within: Duration, longest: Duration) -> Self {
        let from = random.time(Duration::ZERO, within);
        let to = from + random.time(Duration::from_millis(50), longest);
        Self { from, to: to.min(within) }
    }

    /// Whether a moment lies in it.
    pub fn contains(&self, at: Duration) -> bool {
        (self.from..self.to).contains(&at)
    }
}
