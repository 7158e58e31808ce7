//! A process that is stopped does nothing, and goes on as if nothing had happened.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Where a process leaves itself or comes back: nothing passes while it is paused. Timers of its own may run out meanwhile,
/// but nobody hears of it before it goes on.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    shut: AtomicBool,
    /// Wakes in the order of waiting. A watch channel would wake in any order, and no run could be repeated.
    opened: Notify,
}

impl Gate {
    /// Stops the process, or lets it go on.
    pub fn shut(&self, shut: bool) {
        self.0.shut.store(shut, Ordering::Relaxed);
        self.0.opened.notify_waiters();
    }

    /// Waits while the process is stopped.
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
