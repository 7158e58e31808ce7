//! Waits until every message of a `publish` call has an outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use relevo_core::{Outcome, OutcomeSender};
use tokio::sync::Notify;

/// A call of `publish` with messages in flight.
#[derive(Debug)]
pub(crate) struct PublishCall {
    confirms: OutcomeSender,
    /// The number of messages without an outcome, plus one while the call is still sending.
    pending: AtomicUsize,
    finished: Notify,
}

impl PublishCall {
    pub(crate) fn new(confirms: &OutcomeSender) -> Arc<Self> {
        Arc::new(Self { confirms: confirms.clone(), pending: AtomicUsize::new(1), finished: Notify::new() })
    }

    /// Completes when every message has an outcome. Must be called once, after the last message was sent.
    pub(crate) async fn finished(&self) {
        self.complete(1);
        self.finished.notified().await;
    }

    /// Adds a message without an outcome.
    pub(super) fn add(&self) {
        self.pending.fetch_add(1, Ordering::AcqRel);
    }

    /// Reports outcomes.
    pub(super) fn report(&self, outcomes: Vec<(usize, Outcome)>) {
        let count = outcomes.len();
        self.confirms.report_all(outcomes);
        self.complete(count);
    }

    pub(super) fn complete(&self, count: usize) {
        if self.pending.fetch_sub(count, Ordering::AcqRel) == count {
            self.finished.notify_one();
        }
    }
}
