//! Batches of parked keys that are being retried.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::PublishFailure;
use relevo_core::outbox::parked::ParkedSettlement;
use relevo_core::trace::ActiveSpan;

#[derive(Debug)]
struct OpenBatch {
    lease: Lease,
    key: ByteString,
    remaining: usize,
    delivered: Vec<i64>,
    released: Option<Arc<str>>,
    /// Spans that end when the delivered messages are settled.
    spans: Vec<ActiveSpan>,
}

/// Batches in flight, and the results of finished ones.
#[derive(Debug, Default)]
pub(crate) struct ParkedBatches {
    open: BTreeMap<u64, OpenBatch>,
    next_id: u64,
    finished: Vec<ParkedSettlement>,
    /// Spans of the messages that finished batches delivered.
    spans: Vec<ActiveSpan>,
}

impl ParkedBatches {
    pub(crate) fn start(&mut self, lease: Lease, key: ByteString, messages: usize) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let (delivered, spans) = (Vec::new(), Vec::new());
        self.open.insert(id, OpenBatch { lease, key, remaining: messages, delivered, released: None, spans });
        id
    }

    /// Whether a batch of this key is in flight, or its result is not recorded yet.
    pub(crate) fn holds_key(&self, key: &str) -> bool {
        self.open.values().any(|open| open.key == key) || self.finished.iter().any(|finished| finished.key == key)
    }

    pub(crate) fn holds_shard(&self, shard: u16) -> bool {
        self.open.values().any(|open| open.lease.shard == shard)
            || self.finished.iter().any(|finished| finished.lease.shard == shard)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Releases the address that the batch should probe, whatever the result of the batch is.
    pub(crate) fn release(&mut self, batch: u64, address: Arc<str>) {
        if let Some(open) = self.open.get_mut(&batch) {
            open.released = Some(address);
        }
    }

    /// Adds the span of a delivered message. It ends when the delivery is recorded.
    pub(crate) fn attach_span(&mut self, batch: u64, span: Option<ActiveSpan>) {
        if let Some(open) = self.open.get_mut(&batch) {
            open.spans.extend(span);
        }
    }

    /// Records that a message of the batch was confirmed.
    pub(crate) fn delivered(&mut self, batch: u64, ordinal: i64, released: Option<Arc<str>>) {
        let Some(open) = self.open.get_mut(&batch) else { return };
        open.delivered.push(ordinal);
        open.remaining -= 1;
        if released.is_some() {
            open.released = released;
        }
        if open.remaining == 0 {
            self.finish(batch, None);
        }
    }

    /// Records that a message of the batch failed. The messages after it stay parked.
    pub(crate) fn failed(&mut self, batch: u64, ordinal: i64, failure: PublishFailure) {
        self.finish(batch, Some((ordinal, failure)));
    }

    /// Ends a batch. If any message was confirmed, the batch has a result to record.
    pub(crate) fn abandon(&mut self, batch: u64) {
        if self.open.get(&batch).is_some_and(|open| !open.delivered.is_empty()) {
            self.finish(batch, None);
        }
        self.open.remove(&batch);
    }

    /// Ends every batch with the messages confirmed so far.
    pub(crate) fn finish_all(&mut self) {
        let open: Vec<u64> = self.open.keys().copied().collect();
        for batch in open {
            self.abandon(batch);
        }
    }

    pub(crate) fn take_finished(&mut self) -> Vec<ParkedSettlement> {
        std::mem::take(&mut self.finished)
    }

    pub(crate) fn take_spans(&mut self) -> Vec<ActiveSpan> {
        std::mem::take(&mut self.spans)
    }

    /// Returns results that the store did not record, in front of newer ones.
    pub(crate) fn restore(&mut self, settlements: Vec<ParkedSettlement>, spans: Vec<ActiveSpan>) {
        self.finished.splice(..0, settlements);
        self.spans.extend(spans);
    }

    fn finish(&mut self, batch: u64, failed: Option<(i64, PublishFailure)>) {
        let Some(open) = self.open.remove(&batch) else { return };
        let OpenBatch { lease, key, delivered, released, spans, .. } = open;
        self.spans.extend(spans);
        self.finished.push(ParkedSettlement { lease, key, delivered, failed, released_address: released });
    }
}
