//! What engines see of an exporter: a queue that is never waited for.

use std::sync::Arc;

use jiff::Timestamp;
use relevo_core::trace::{Recorder, Span, SpanId, TraceId};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::{Counts, Ratio};

/// The near end of the queue.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) spans: mpsc::Sender<Span>,
    pub(super) sample: Ratio,
    pub(super) counts: Arc<Counts>,
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
        if self.spans.try_send(span).is_err() {
            Counts::add(&self.counts.dropped, 1);
        }
    }
}
