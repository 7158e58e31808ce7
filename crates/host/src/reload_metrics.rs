//! Counts of configuration reloads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use relevo_observe::metrics;

/// Counts of configuration reloads.
#[derive(Debug)]
pub(crate) struct Reloads {
    good: AtomicU64,
    bad: AtomicU64,
    last_good: AtomicI64,
}

impl Default for Reloads {
    fn default() -> Self {
        Self { good: AtomicU64::new(0), bad: AtomicU64::new(0), last_good: AtomicI64::new(1) }
    }
}

impl Reloads {
    pub(crate) fn count(&self, good: bool) {
        let counter = if good { &self.good } else { &self.bad };
        counter.fetch_add(1, Ordering::Relaxed);
        self.last_good.store(i64::from(good), Ordering::Relaxed);
    }
}

/// The metrics of configuration reloads.
#[derive(Debug)]
pub(crate) struct ReloadMetrics(pub(crate) Arc<Reloads>);

impl Collector for ReloadMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let counters = [
            (metrics::CONFIG_RELOADS, "Configuration reloads that were applied", &self.0.good),
            (metrics::CONFIG_RELOAD_FAILURES, "Configuration reloads that were rejected", &self.0.bad),
        ];
        for (name, help, counter) in counters {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(counter.load(Ordering::Relaxed)).encode(encoder)?;
        }
        let (name, help) =
            (metrics::CONFIG_LAST_RELOAD_SUCCESSFUL, "Whether the last configuration reload was applied");
        let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(self.0.last_good.load(Ordering::Relaxed)).encode(encoder)
    }
}
