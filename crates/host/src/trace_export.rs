//! The export of spans to a collector.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::Tracer;
use relevo_core::trace::CommonAttributes;
use relevo_observe::RelayLabels;
use relevo_observe::traces::{Config, Exporter, SpanCounts};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// How long the export of the last spans may delay the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The exporter before it runs.
pub(crate) struct TraceExport(Option<Exporter>);

impl TraceExport {
    pub(crate) fn new(config: Option<&Config>) -> Result<Self> {
        let exporter = config.map(|config| Exporter::new(config.clone())).transpose();
        Ok(Self(exporter.context("cannot export traces")?))
    }

    /// The tracer of a relay.
    pub(crate) fn tracer(&self, labels: &RelayLabels) -> Tracer {
        let Some(exporter) = &self.0 else { return Tracer::off() };
        let attributes =
            vec![("relevo.outbox", labels.outbox.clone()), ("relevo.destination", labels.destination.clone())];
        exporter.traces(CommonAttributes { system: labels.broker.clone(), attributes })
    }

    /// The counts of exported spans.
    pub(crate) fn counts(&self) -> Arc<SpanCounts> {
        self.0.as_ref().map_or_else(Arc::default, Exporter::counts)
    }

    pub(crate) fn start(self, config: Option<&Config>) -> TraceExportTask {
        let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
        if let (Some(exporter), Some(config)) = (self.0, config) {
            info!(endpoint = config.endpoint, sample = %config.sample, "span export started");
            running.spawn(exporter.run(stop.clone()));
        }
        TraceExportTask { stop, running }
    }
}

/// The running exporter. It stops after the relays.
pub(crate) struct TraceExportTask {
    stop: CancellationToken,
    running: JoinSet<()>,
}

impl TraceExportTask {
    /// Exports the remaining spans.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        if timeout(FLUSH_TIMEOUT, self.running.join_next()).await.is_err() {
            warn!("the last spans were not exported in time");
        }
    }
}
