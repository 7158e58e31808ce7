//! The engines' side of an exporter: a queue that never blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use relevo_core::trace::{SpanData, SpanId, SpanRecorder, TraceId};
use tokio::sync::Notify;
use uuid::Uuid;

use super::{Ratio, SpanCounts};

/// Spans that wait to be sent, and the sampling settings.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    max: usize,
    batch: usize,
    /// Notified for the first span and for a full batch. A notification per span would cost an engine more than
    /// everything else.
    ready: Notify,
    sample: Ratio,
    counts: Arc<SpanCounts>,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: VecDeque<SpanData>,
    /// Whether the exporter has stopped taking spans.
    closed: bool,
}

impl Queue {
    /// A queue of at most `max` spans, taken `batch` at a time.
    pub(super) fn new(max: usize, batch: usize, sample: Ratio, counts: Arc<SpanCounts>) -> Self {
        let waiting = Mutex::default();
        Self { waiting, max, batch: batch.min(max), ready: Notify::new(), sample, counts }
    }

    /// The number of waiting spans.
    pub(super) fn len(&self) -> usize {
        self.waiting().spans.len()
    }

    /// Waits until there is a first span or a full batch. It may return early.
    pub(super) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Takes a full batch, or all waiting spans if there are fewer.
    pub(super) fn take(&self) -> Vec<SpanData> {
        let mut waiting = self.waiting();
        let batch = waiting.spans.len().min(self.batch);
        waiting.spans.drain(..batch).collect()
    }

    /// The size of a full batch.
    pub(super) const fn batch(&self) -> usize {
        self.batch
    }

    /// Rejects all further spans.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // No code panics while it holds the lock.
        self.waiting.lock()
    }
}

impl SpanRecorder for Queue {
    fn is_sampled(&self, trace: TraceId) -> bool {
        self.sample.samples(trace)
    }

    fn new_span_id(&self) -> SpanId {
        loop {
            // A version 4 UUID has six fixed bits. The rotation combines each of them with a random bit.
            let (high, low) = Uuid::new_v4().as_u64_pair();
            if let Some(id) = SpanId::from_bytes((high ^ low.rotate_left(32)).to_be_bytes()) {
                return id;
            }
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn record(&self, span: SpanData) {
        let mut waiting = self.waiting();
        if waiting.closed || waiting.spans.len() == self.max {
            drop(waiting);
            SpanCounts::add(&self.counts.dropped, 1);
            return;
        }
        waiting.spans.push_back(span);
        let length = waiting.spans.len();
        drop(waiting);
        if length == 1 || length == self.batch {
            self.ready.notify_one();
        }
    }
}
