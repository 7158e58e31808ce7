//! What engines see of an exporter: a queue that is never waited for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use relevo_core::trace::{Recorder, Span, SpanId, TraceId};
use tokio::sync::Notify;
use uuid::Uuid;

use super::{Counts, Ratio};

/// Spans on their way, and who may put some in.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    max: usize,
    batch: usize,
    /// There is a first span, or a whole batch. A wake for each of them would cost an engine more than all the rest.
    worth_a_look: Notify,
    sample: Ratio,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: VecDeque<Span>,
    /// Nobody takes any more.
    closed: bool,
}

impl Queue {
    /// Room for `max`, to be taken `batch` at a time.
    pub(super) fn new(max: usize, batch: usize, sample: Ratio, counts: Arc<Counts>) -> Self {
        let waiting = Mutex::default();
        Self { waiting, max, batch: batch.min(max), worth_a_look: Notify::new(), sample, counts }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting().spans.len()
    }

    /// Waits until there is a first one, or a whole batch; at times for neither.
    pub(super) async fn worth_a_look(&self) {
        self.worth_a_look.notified().await;
    }

    /// A batch, or what there is.
    pub(super) fn take(&self) -> Vec<Span> {
        let mut waiting = self.waiting();
        let batch = waiting.spans.len().min(self.batch);
        waiting.spans.drain(..batch).collect()
    }

    /// How many a whole batch is.
    pub(super) const fn batch(&self) -> usize {
        self.batch
    }

    /// Nothing comes in any more.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Nothing panics while it is held.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recorder for Queue {
    fn samples(&self, trace: TraceId) -> bool {
        self.sample.has(trace)
    }

    fn span_id(&self) -> SpanId {
        loop {
            // A random UUID has six bits that say so; none of them survives in both halves.
            let (high, low) = Uuid::new_v4().as_u64_pair();
            if let Some(id) = SpanId::from_bytes((high ^ low.rotate_left(32)).to_be_bytes()) {
                return id;
            }
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn record(&self, span: Span) {
        let mut waiting = self.waiting();
        if waiting.closed || waiting.spans.len() == self.max {
            drop(waiting);
            Counts::add(&self.counts.dropped, 1);
            return;
        }
        waiting.spans.push_back(span);
        let length = waiting.spans.len();
        drop(waiting);
        if length == 1 || length == self.batch {
            self.worth_a_look.notify_one();
        }
    }
}
