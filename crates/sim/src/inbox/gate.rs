//! Pauses a process. A paused process does nothing, and later continues without noticing.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// All calls and replies of a process pass through here, and wait while it is paused. Its own timers may expire
/// meanwhile, but that has no effect before it continues.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    shut: AtomicBool,
    /// Wakes waiters in their order. A watch channel would wake them in any order, and no run could be repeated.
    opened: Notify,
}

impl Gate {
    /// Pauses or resumes the process.
    pub fn shut(&self, shut: bool) {
        self.0.shut.store(shut, Ordering::Relaxed);
        self.0.opened.notify_waiters();
    }

    /// Waits while the process is paused.
    pub async fn pass(&self) {
        loop {
            let mut opened = pin!(self.0.opened.notified());
            opened.as_mut().enable();
            if !self.0.shut.load(Ordering::Relaxed) {
                return;
            }
            opened.await;
        }
    }
}
