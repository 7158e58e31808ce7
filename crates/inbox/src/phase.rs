//! Run state of a member.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::stats::ConsumerStatus;

/// Run state of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RunState {
    /// It was created and has not started.
    #[default]
    New,
    /// It is running.
    Running,
    /// It was stopped through its stop token.
    Stopped,
    /// It ended with an error or was dropped while running, and receives no messages any more.
    Failed,
}

const RUN_STATES: [RunState; 4] = [RunState::New, RunState::Running, RunState::Stopped, RunState::Failed];

/// A run state with one writer and many readers.
#[derive(Debug, Default)]
pub(crate) struct SharedRunState(AtomicU8);

impl SharedRunState {
    pub(crate) fn get(&self) -> RunState {
        RUN_STATES[usize::from(self.0.load(Ordering::Relaxed))]
    }

    fn set(&self, phase: RunState) {
        self.0.store(phase as u8, Ordering::Relaxed);
    }
}

/// Sets the run state to running, and to its final state when dropped.
pub(crate) struct RunStateGuard {
    status: Arc<ConsumerStatus>,
    final_state: RunState,
}

impl RunStateGuard {
    pub(crate) fn start(status: Arc<ConsumerStatus>) -> Self {
        status.run_state.set(RunState::Running);
        Self { status, final_state: RunState::Failed }
    }

    /// Records that the member stopped as requested.
    pub(crate) fn mark_stopped(mut self) {
        self.final_state = RunState::Stopped;
    }
}

impl Drop for RunStateGuard {
    fn drop(&mut self) {
        self.status.run_state.set(self.final_state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_guard_reports_a_failure() {
        let stats = Arc::<ConsumerStatus>::default();
        assert_eq!(stats.run_state(), RunState::New);
        let life = RunStateGuard::start(Arc::clone(&stats));
        assert_eq!(stats.run_state(), RunState::Running);
        drop(life);
        assert_eq!(stats.run_state(), RunState::Failed);
        RunStateGuard::start(Arc::clone(&stats)).mark_stopped();
        assert_eq!(stats.run_state(), RunState::Stopped);
    }
}
