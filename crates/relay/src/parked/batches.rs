//! Runs: batches of parked keys that are being retried.

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

/// Runs in flight, and the results of finished ones.
#[derive(Debug, Default)]
pub(crate) struct ParkedBatches {
    open: BTreeMap<u64, OpenBatch>,
    next_id: u64,
    finished: Vec<ParkedSettlement>,
    /// Spans of the messages that finished runs delivered.
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

    /// Whether a run of this key is in flight, or its result is not recorded yet.
    pub(crate) fn holds_key(&self, key: &str) -> bool {
        self.open.values().any(|flight| flight.key == key) || self.finished.iter().any(|ended| ended.key == key)
    }

    pub(crate) fn holds_shard(&self, shard: u16) -> bool {
        self.open.values().any(|flight| flight.lease.shard == shard)
            || self.finished.iter().any(|ended| ended.lease.shard == shard)
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Releases the address that the run should probe, whatever the result of the run is.
    pub(crate) fn release(&mut self, run: u64, address: Arc<str>) {
        if let Some(flight) = self.open.get_mut(&run) {
            flight.released = Some(address);
        }
    }

    /// Adds the span of a delivered message. It ends when the delivery is recorded.
    pub(crate) fn attach_span(&mut self, run: u64, span: Option<ActiveSpan>) {
        if let Some(flight) = self.open.get_mut(&run) {
            flight.spans.extend(span);
        }
    }

    /// Records that a message of the run was confirmed.
    pub(crate) fn delivered(&mut self, run: u64, no: i64, released: Option<Arc<str>>) {
        let Some(flight) = self.open.get_mut(&run) else { return };
        flight.delivered.push(no);
        flight.remaining -= 1;
        if released.is_some() {
            flight.released = released;
        }
        if flight.remaining == 0 {
            self.finish(run, None);
        }
    }

    /// Records that a message of the run failed. The messages after it stay parked.
    pub(crate) fn failed(&mut self, run: u64, no: i64, stopped: PublishFailure) {
        self.finish(run, Some((no, stopped)));
    }

    /// Ends a run. If any message was confirmed, the run has a result to record.
    pub(crate) fn abandon(&mut self, run: u64) {
        if self.open.get(&run).is_some_and(|flight| !flight.delivered.is_empty()) {
            self.finish(run, None);
        }
        self.open.remove(&run);
    }

    /// Ends every run with the messages confirmed so far.
    pub(crate) fn finish_all(&mut self) {
        let open: Vec<u64> = self.open.keys().copied().collect();
        for run in open {
            self.abandon(run);
        }
    }

    pub(crate) fn take_finished(&mut self) -> Vec<ParkedSettlement> {
        std::mem::take(&mut self.finished)
    }

    pub(crate) fn take_spans(&mut self) -> Vec<ActiveSpan> {
        std::mem::take(&mut self.spans)
    }

    fn finish(&mut self, run: u64, stopped: Option<(i64, PublishFailure)>) {
        let Some(flight) = self.open.remove(&run) else { return };
        let OpenBatch { lease, key, delivered, released, spans, .. } = flight;
        self.spans.extend(spans);
        self.finished.push(ParkedSettlement { lease, key, delivered, failed: stopped, released_address: released });
    }
}
