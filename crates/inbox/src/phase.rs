//! Whether a member runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::stats::Stats;

/// Where a member is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// It was made and not run.
    #[default]
    New,
    /// It runs.
    Runs,
    /// It was told to stop, and has.
    Stopped,
    /// It ended by itself, or was dropped in the middle: nobody takes messages any more.
    Died,
}

const PHASES: [Phase; 4] = [Phase::New, Phase::Runs, Phase::Stopped, Phase::Died];

/// A phase that one writes and many read.
#[derive(Debug, Default)]
pub(crate) struct SharedPhase(AtomicU8);

impl SharedPhase {
    pub(crate) fn get(&self) -> Phase {
        PHASES[usize::from(self.0.load(Ordering::Relaxed))]
    }

    fn set(&self, phase: Phase) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }
}

/// Says that a member runs, and when it is dropped that it does not any more.
pub(crate) struct Life {
    stats: Arc<Stats>,
    end: Phase,
}

impl Life {
    pub(crate) fn begin(stats: Arc<Stats>) -> Self {
        stats.phase.set(Phase::Runs);
        Self { stats, end: Phase::Died }
    }

    /// It ended as it was told to.
    pub(crate) fn was_told(mut self) {
        self.end = Phase::Stopped;
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.stats.phase.set(self.end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_that_is_dropped_was_no_orderly_one() {
        let stats = Arc::<Stats>::default();
        assert_eq!(stats.phase(), Phase::New);
        let life = Life::begin(Arc::clone(&stats));
        assert_eq!(stats.phase(), Phase::Runs);
        drop(life);
        assert_eq!(stats.phase(), Phase::Died);
        Life::begin(Arc::clone(&stats)).was_told();
        assert_eq!(stats.phase(), Phase::Stopped);
    }
}
