//! Traces: spans of relays, consumers and emitters, exported with OTLP over HTTP.
//!
//! An [`Exporter`] has a queue that never blocks. Pass [`Exporter::traces`] to a relay, a consumer or an outbox;
//! [`Exporter::run`] sends spans until it is stopped. A full queue or an unreachable collector only loses spans:
//! [`SpanCounts`] has their number.
//!
//! ```no_run
//! use relevo_core::trace::CommonAttributes;
//! use relevo_observe::traces::{Config, Exporter, Ratio};
//! use tokio_util::sync::CancellationToken;
//!
//! # async fn wire() -> Result<(), relevo_observe::traces::ConfigError> {
//! let config = Config { sample: Ratio::per_million(10_000), ..Config::new("http://127.0.0.1:4318", "billing") };
//! let exporter = Exporter::new(config)?;
//! let attributes = CommonAttributes { system: "broker".to_owned(), attributes: Vec::new() };
//! let mut consumer = relevo_inbox::Config::default();
//! consumer.tracer = exporter.traces(attributes);
//! let stop = CancellationToken::new();
//! let exporting = exporter.run(stop.clone());
//! // … run the consumer; when it has ended:
//! stop.cancel();
//! exporting.await;
//! # Ok(())
//! # }
//! ```

mod exporter;
mod http;
mod otlp;
mod queue;
mod ratio;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

pub use exporter::Exporter;
pub use http::ConfigError;
pub use ratio::Ratio;

use crate::metrics;

/// The settings of an exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The URL of the collector, such as `http://127.0.0.1:4318`. `/v1/traces` is appended unless it is already there.
    pub endpoint: String,
    /// The name of this process at the collector: `service.name`.
    pub service: String,
    /// The share of traces starting here that is exported. A message with a sampled origin is always exported; one with
    /// an unsampled origin never.
    pub sample: Ratio,
    /// Maximum number of spans that wait to be sent. Further spans are dropped.
    pub queue_max: usize,
    /// Maximum number of spans in one request.
    pub batch_max: usize,
    /// Maximum time that a queued span waits before it is sent.
    pub every: Duration,
    /// Deadline of a request to the collector.
    pub deadline: Duration,
}

impl Config {
    /// The defaults for this collector and service name.
    pub fn new(endpoint: impl Into<String>, service: impl Into<String>) -> Self {
        Self {
            endpoint: endpoint.into(),
            service: service.into(),
            sample: Ratio::default(),
            queue_max: 16_384,
            batch_max: 2048,
            every: Duration::from_secs(1),
            deadline: Duration::from_secs(5),
        }
    }
}

/// Counters of spans. They only increase.
#[derive(Debug, Default)]
pub struct SpanCounts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl SpanCounts {
    /// Spans that the collector accepted.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Spans that did not fit into the queue, or that the collector did not accept.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn add(counter: &AtomicU64, spans: usize) {
        counter.fetch_add(spans as u64, Ordering::Relaxed);
    }
}

/// Exposes the counts of an exporter in an [`Exposition`](crate::Exposition).
#[derive(Debug)]
pub struct SpanMetrics(pub Arc<SpanCounts>);

impl Collector for SpanMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let counters = [
            (metrics::SPANS_EXPORTED, "Spans that the collector accepted", self.0.exported()),
            (
                metrics::SPANS_DROPPED,
                "Spans that did not fit into the queue, or that the collector did not accept",
                self.0.dropped(),
            ),
        ];
        for (name, help, value) in counters {
            let counter = ConstCounter::new(value);
            let family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter.encode(family)?;
        }
        Ok(())
    }
}
