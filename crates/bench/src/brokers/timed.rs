//! A broker that records when each message was confirmed.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::{Broker, Capabilities, OutcomeSender, Publication};

use crate::latency::Receipts;

/// Forwards all calls, and records the time of each confirmation.
pub(super) struct Timed {
    inner: Arc<dyn Broker>,
    receipts: Receipts,
    millis: Arc<Mutex<Vec<f64>>>,
}

impl Timed {
    pub(super) fn new(inner: Arc<dyn Broker>, receipts: Receipts) -> Self {
        Self { inner, receipts, millis: Arc::default() }
    }

    /// The times from each call of `publish` to the confirmation of each of its messages, in milliseconds.
    pub(super) fn millis(&self) -> Arc<Mutex<Vec<f64>>> {
        Arc::clone(&self.millis)
    }

    fn pass_on(&self, start: Instant, batch: &[Publication], reports: &OutcomeReceiver, confirms: &OutcomeSender) {
        let now = Instant::now();
        let reported = reports.take();
        let took = (now - start).as_secs_f64() * 1000.0;
        self.millis.lock().extend(reported.iter().map(|_| took));
        let mut receipts = self.receipts.lock();
        for (_, index, _) in reported.iter().filter(|(_, _, outcome)| outcome.is_ok()) {
            receipts.entry(batch[*index].message.id).or_insert(now);
        }
        drop(receipts);
        confirms.report_all(reported.into_iter().map(|(_, index, outcome)| (index, outcome)));
    }
}

#[async_trait]
impl Broker for Timed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn is_unreachable(&self) -> bool {
        self.inner.is_unreachable()
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        let start = Instant::now();
        let reports = OutcomeReceiver::default();
        let own = reports.sender(0);
        let mut publishing = self.inner.publish(batch, &own);
        loop {
            tokio::select! {
                biased;
                () = reports.ready() => self.pass_on(start, batch, &reports, confirms),
                () = &mut publishing => break,
            }
        }
        self.pass_on(start, batch, &reports, confirms);
    }
}
