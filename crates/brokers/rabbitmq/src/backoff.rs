//! The pauses between attempts.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

const FLOOR: Duration = Duration::from_millis(100);
const CEILING: Duration = Duration::from_secs(5);

/// Pauses that double from 100 ms to 5 s. Each is shortened by up to a half, so that clients do not reconnect together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    attempts: u32,
}

impl Backoff {
    /// The next pause.
    pub(crate) fn next(&mut self) -> Duration {
        let full = FLOOR.saturating_mul(1 << self.attempts.min(10)).min(CEILING);
        self.attempts = self.attempts.saturating_add(1);
        // The keys of a new hasher are random.
        let [random, ..] = RandomState::new().hash_one(self.attempts).to_le_bytes();
        full.mul_f64(0.5 + f64::from(random) / 510.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_ceiling_and_never_vanish() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.next()).collect();
        assert!(pauses[0] >= FLOOR / 2 && pauses[0] <= FLOOR, "{pauses:?}");
        assert!(pauses[10..].iter().all(|pause| *pause >= CEILING / 2 && *pause <= CEILING), "{pauses:?}");
    }
}
