//! All metrics that `/metrics` of a process shows.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::metrics;
use crate::relay_metrics::RelayMetrics;
use crate::relay_monitor::RelayMonitor;

/// The metrics of one process. Every series has the label `service`.
#[derive(Debug)]
#[must_use]
pub struct Exposition(Registry);

impl Exposition {
    /// Contains only the program and its version.
    pub fn new(service: &str, version: &'static str) -> Self {
        let label = ("service".into(), service.to_owned().into());
        let mut registry = Registry::with_labels(std::iter::once(label));
        registry.register(metrics::BUILD, "The program", Info::new(vec![("version", version)]));
        Self(registry)
    }

    /// Adds these relays.
    pub fn relays(self, relays: Vec<Arc<RelayMonitor>>) -> Self {
        self.collector(RelayMetrics(relays))
    }

    /// Adds a collector.
    pub fn collector(mut self, collector: impl Collector) -> Self {
        self.0.register_collector(Box::new(collector));
        self
    }

    /// The metrics in the `OpenMetrics` text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        prometheus_client::encoding::text::encode(&mut text, &self.0).ok();
        text
    }
}
