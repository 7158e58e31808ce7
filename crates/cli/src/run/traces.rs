//! What is told of messages, to a collector.

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

/// Nothing is told any more when the last spans are sent: nobody waits longer for them.
const LAST_DEADLINE: Duration = Duration::from_secs(2);

/// The exporter, before it runs.
pub(crate) struct Telling(Option<Exporter>);

impl Telling {
    pub(crate) fn new(config: Option<&Config>) -> Result<Self> {
        let exporter = config.map(|config| Exporter::new(config.clone())).transpose();
        Ok(Self(exporter.context("traces cannot be told")?))
    }

    /// What a relay is given.
    pub(crate) fn of(&self, labels: &RelayLabels) -> Tracer {
        let Some(exporter) = &self.0 else { return Tracer::off() };
        let attributes =
            vec![("relevo.outbox", labels.outbox.clone()), ("relevo.destination", labels.destination.clone())];
        exporter.traces(CommonAttributes { system: labels.broker.clone(), attributes })
    }

    /// Nothing is counted where nothing is told.
    pub(crate) fn counts(&self) -> Arc<SpanCounts> {
        self.0.as_ref().map_or_else(Arc::default, Exporter::counts)
    }

    pub(crate) fn start(self, config: Option<&Config>) -> Exporting {
        let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
        if let (Some(exporter), Some(config)) = (self.0, config) {
            info!(endpoint = config.endpoint, sample = %config.sample, "spans are told");
            running.spawn(exporter.run(stop.clone()));
        }
        Exporting { stop, running }
    }
}

/// The exporter, while it runs: longer than what it tells of.
pub(crate) struct Exporting {
    stop: CancellationToken,
    running: JoinSet<()>,
}

impl Exporting {
    /// Sends what is left.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        if timeout(LAST_DEADLINE, self.running.join_next()).await.is_err() {
            warn!("the collector did not take the last spans in time");
        }
    }
}
