//! Run state of a member.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::stats::Stats;

/// Run state of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// It was created and has not started.
    #[default]
    New,
    /// It is running.
    Runs,
    /// It was stopped through its stop token.
    Stopped,
    /// It ended with an error or was dropped while running, and receives no messages any more.
    Died,
}

const PHASES: [Phase; 4] = [Phase::New, Phase::Runs, Phase::Stopped, Phase::Died];

/// A run state with one writer and many readers.
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

/// Sets the run state to running, and to its final state when dropped.
pub(crate) struct Life {
    stats: Arc<Stats>,
    end: Phase,
}

impl Life {
    pub(crate) fn begin(stats: Arc<Stats>) -> Self {
        stats.phase.set(Phase::Runs);
        Self { stats, end: Phase::Died }
    }

    /// Records that the member stopped as requested.
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
