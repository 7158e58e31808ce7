//! Everything that `/metrics` of a process shows.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use crate::metrics;
use crate::relay::{self, Observed};

/// The metrics of one process. Every series of it carries the label `service`.
#[derive(Debug)]
#[must_use]
pub struct Exposition(Registry);

impl Exposition {
    /// With nothing in it but which program this is.
    pub fn new(service: &str, version: &'static str) -> Self {
        let label = ("service".into(), service.to_owned().into());
        let mut registry = Registry::with_labels(std::iter::once(label));
        registry.register(metrics::BUILD, "The program", Info::new(vec![("version", version)]));
        Self(registry)
    }

    /// Tells of these relays.
    pub fn relays(self, relays: Vec<Arc<dyn Observed>>) -> Self {
        self.collector(relay::Relays(relays))
    }

    /// Tells what a collector has.
    pub fn collector(mut self, collector: impl Collector) -> Self {
        self.0.register_collector(Box::new(collector));
        self
    }

    /// In the `OpenMetrics` text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing into a text does not fail.
        prometheus_client::encoding::text::encode(&mut text, &self.0).ok();
        text
    }
}
