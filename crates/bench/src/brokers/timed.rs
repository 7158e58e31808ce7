//! A broker that notes when each message was confirmed.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use relevo_core::broker::Reports;
use relevo_core::{Broker, Capabilities, Confirms, Publication};

use crate::latency::Receipts;

/// Passes everything on, and notes the time of each confirmation.
pub(super) struct Timed {
    inner: Arc<dyn Broker>,
    receipts: Receipts,
}

impl Timed {
    pub(super) fn new(inner: Arc<dyn Broker>, receipts: Receipts) -> Self {
        Self { inner, receipts }
    }

    fn pass_on(&self, batch: &[Publication], reports: &Reports, confirms: &Confirms) {
        let now = Instant::now();
        let reported = reports.take();
        let mut receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
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

    async fn publish(&self, batch: &[Publication], confirms: &Confirms) {
        let reports = Reports::default();
        let own = reports.confirms(0);
        let mut publishing = self.inner.publish(batch, &own);
        loop {
            tokio::select! {
                biased;
                () = reports.ready() => self.pass_on(batch, &reports, confirms),
                () = &mut publishing => break,
            }
        }
        self.pass_on(batch, &reports, confirms);
    }
}
