//! Ranges of virtual time.

use std::time::Duration;

use relevo_core::random::SplitMix64;

/// A range of virtual time.
#[derive(Clone, Copy, Debug)]
pub struct TimeRange {
    /// Start of the range.
    pub from: Duration,
    /// End of the range, exclusive.
    pub to: Duration,
}

impl TimeRange {
    /// A random range between zero and `within`, at most `longest` long.
    pub fn random(random: &mut SplitMix64, within: Duration, longest: Duration) -> Self {
        let from = random.time(Duration::ZERO, within);
        let to = from + random.time(Duration::from_millis(50), longest);
        Self { from, to: to.min(within) }
    }

    /// Whether the range contains a moment.
    pub fn contains(&self, at: Duration) -> bool {
        (self.from..self.to).contains(&at)
    }
}
