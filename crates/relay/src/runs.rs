//! Runs: batches of parked keys that are being retried.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::store::{Advance, Lease, Stopped};
use relevo_core::trace::Open;

#[derive(Debug)]
struct Flight {
    lease: Lease,
    key: ByteString,
    remaining: usize,
    delivered: Vec<i64>,
    released: Option<Arc<str>>,
    /// Spans that end when the delivered messages are settled.
    spans: Vec<Open>,
}

/// Runs in flight, and the results of finished ones.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    flights: BTreeMap<u64, Flight>,
    next_id: u64,
    ended: Vec<Advance>,
    /// Spans of the messages that finished runs delivered.
    spans: Vec<Open>,
}

impl Runs {
    pub(crate) fn start(&mut self, lease: Lease, key: ByteString, messages: usize) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let (delivered, spans) = (Vec::new(), Vec::new());
        self.flights.insert(id, Flight { lease, key, remaining: messages, delivered, released: None, spans });
        id
    }

    /// Whether a run of this key is in flight, or its result is not recorded yet.
    pub(crate) fn holds_key(&self, key: &str) -> bool {
        self.flights.values().any(|flight| flight.key == key) || self.ended.iter().any(|ended| ended.key == key)
    }

    pub(crate) fn holds_shard(&self, shard: u16) -> bool {
        self.flights.values().any(|flight| flight.lease.shard == shard)
            || self.ended.iter().any(|ended| ended.lease.shard == shard)
    }

    pub(crate) fn len(&self) -> usize {
        self.flights.len()
    }

    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Releases the address that the run should probe, whatever the result of the run is.
    pub(crate) fn release(&mut self, run: u64, address: Arc<str>) {
        if let Some(flight) = self.flights.get_mut(&run) {
            flight.released = Some(address);
        }
    }

    /// Adds the span of a delivered message. It ends when the delivery is recorded.
    pub(crate) fn will_settle(&mut self, run: u64, span: Option<Open>) {
        if let Some(flight) = self.flights.get_mut(&run) {
            flight.spans.extend(span);
        }
    }

    /// Records that a message of the run was confirmed.
    pub(crate) fn delivered(&mut self, run: u64, no: i64, released: Option<Arc<str>>) {
        let Some(flight) = self.flights.get_mut(&run) else { return };
        flight.delivered.push(no);
        flight.remaining -= 1;
        if released.is_some() {
            flight.released = released;
        }
        if flight.remaining == 0 {
            self.end(run, None);
        }
    }

    /// Records that a message of the run failed. The messages after it stay parked.
    pub(crate) fn stopped(&mut self, run: u64, no: i64, stopped: Stopped) {
        self.end(run, Some((no, stopped)));
    }

    /// Ends a run. If any message was confirmed, the run has a result to record.
    pub(crate) fn abandon(&mut self, run: u64) {
        if self.flights.get(&run).is_some_and(|flight| !flight.delivered.is_empty()) {
            self.end(run, None);
        }
        self.flights.remove(&run);
    }

    /// Ends every run with the messages confirmed so far.
    pub(crate) fn end_all(&mut self) {
        let open: Vec<u64> = self.flights.keys().copied().collect();
        for run in open {
            self.abandon(run);
        }
    }

    pub(crate) fn take_ended(&mut self) -> Vec<Advance> {
        std::mem::take(&mut self.ended)
    }

    pub(crate) fn take_spans(&mut self) -> Vec<Open> {
        std::mem::take(&mut self.spans)
    }

    fn end(&mut self, run: u64, stopped: Option<(i64, Stopped)>) {
        let Some(flight) = self.flights.remove(&run) else { return };
        let Flight { lease, key, delivered, released, spans, .. } = flight;
        self.spans.extend(spans);
        self.ended.push(Advance { lease, key, delivered, stopped, released });
    }
}
