//! Pauses a process. A paused process does nothing, and later continues without noticing.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// All calls and replies of a process pass through here, and wait while it is paused. Its own timers may expire
/// meanwhile, but that has no effect before it continues.
#[derive(Clone, Debug, Default)]
pub struct PauseGate(Arc<PauseState>);

#[derive(Debug, Default)]
struct PauseState {
    paused: AtomicBool,
    /// Wakes waiters in their order. A watch channel would wake them in any order, and no run could be repeated.
    resumed: Notify,
}

impl PauseGate {
    /// Pauses or resumes the process.
    pub fn set_paused(&self, shut: bool) {
        self.0.paused.store(shut, Ordering::Relaxed);
        self.0.resumed.notify_waiters();
    }

    /// Waits while the process is paused.
    pub async fn wait_while_paused(&self) {
        loop {
            let mut opened = pin!(self.0.resumed.notified());
            opened.as_mut().enable();
            if !self.0.paused.load(Ordering::Relaxed) {
                return;
            }
            opened.await;
        }
    }
}
