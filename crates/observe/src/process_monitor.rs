//! Health, metrics and status of a process that runs relays, consumers, or both.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use relevo_admin::{BindError, HealthReport, HealthSource, ProcessStatus, Server, Token};
use relevo_inbox::ConsumerStatus;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer_metrics::ConsumerMetrics;
use crate::exposition::Exposition;
use crate::relay_monitor::RelayMonitor;
use crate::{consumer_health, relay_health};

/// Health, metrics and status of a process. All answers come from memory.
///
/// Create it before relays and consumers run, and serve it next to them:
///
/// ```no_run
/// # use std::sync::Arc;
/// # use relevo_core::inbox::Inbox;
/// # use relevo_inbox::ConsumerRuntime;
/// # use tokio_util::sync::CancellationToken;
/// # async fn example<I: Inbox>(runtime: ConsumerRuntime<I>) -> Result<(), Box<dyn std::error::Error>>
/// # {
/// use relevo_observe::ProcessMonitor;
///
/// let stop = CancellationToken::new();
/// let monitor = ProcessMonitor::new("shop", "1.0").consumers([runtime.status()]);
/// let served = monitor.serve("0.0.0.0:9465".parse()?, None, stop.clone());
/// let handled = runtime.run(stop.clone());
/// tokio::try_join!(async { Ok(served.await?) }, async { Ok(handled.await?) }).map(drop)
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct ProcessMonitor {
    service: String,
    exposition: Exposition,
    relays: Vec<Arc<RelayMonitor>>,
    consumers: ConsumerMetrics,
    ready_requires_broker: bool,
}

/// The reason why health and metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The port cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The port was open, and then failed.
    #[error("the admin port failed")]
    Failed(#[source] io::Error),
}

impl ProcessMonitor {
    /// A process without relays and consumers. Every series has the name of the service as a label.
    pub fn new(service: &str, version: &'static str) -> Self {
        Self {
            service: service.to_owned(),
            exposition: Exposition::new(service, version),
            relays: Vec::new(),
            consumers: ConsumerMetrics::default(),
            ready_requires_broker: false,
        }
    }

    /// Adds its relays. Call it once.
    pub fn relays(self, relays: Vec<Arc<RelayMonitor>>) -> Self {
        Self { exposition: self.exposition.relays(relays.clone()), relays, ..self }
    }

    /// Adds its consumers, from the status that [`ConsumerRuntime::status`](relevo_inbox::ConsumerRuntime::status)
    /// returns before they run. Call it once.
    pub fn consumers(self, consumers: impl IntoIterator<Item = Arc<ConsumerStatus>>) -> Self {
        let consumers = ConsumerMetrics::new(consumers);
        Self { exposition: self.exposition.collector(consumers.clone()), consumers, ..self }
    }

    /// Adds another collector, for the process's own metrics.
    pub fn collector(self, collector: impl Collector) -> Self {
        Self { exposition: self.exposition.collector(collector), ..self }
    }

    /// Whether an unreachable broker makes a relay unready. Off by default: the relay retries and loses nothing.
    pub fn ready_requires_broker(self, ready_requires_broker: bool) -> Self {
        Self { ready_requires_broker, ..self }
    }

    /// Opens a port and serves `/metrics`, `/status`, `/livez`, `/readyz` and `/startupz` until `stop` is cancelled. With
    /// a token, only callers that send it get metrics, status, and details in probes.
    pub async fn serve(
        self,
        address: SocketAddr,
        token: Option<Token>,
        stop: CancellationToken,
    ) -> Result<(), ServeError> {
        let server = Server::bind(address).await?;
        server.run(Arc::new(self), token, stop).await.map_err(ServeError::Failed)
    }
}

impl HealthSource for ProcessMonitor {
    fn live(&self) -> HealthReport {
        let relays = self.relays.iter().map(|relay| relay_health::liveness(relay));
        let consumers = self.consumers.members().iter().map(|status| consumer_health::liveness(status));
        HealthReport::of(relays.chain(consumers).collect())
    }

    fn ready(&self) -> HealthReport {
        let requires_broker = self.ready_requires_broker;
        let relays = self.relays.iter().map(|relay| relay_health::readiness(relay, requires_broker));
        let consumers = self.consumers.members().iter().map(|status| consumer_health::readiness(status));
        let dependencies = self.relays.iter().flat_map(|relay| relay_health::dependencies(relay, requires_broker));
        HealthReport::of(relays.chain(consumers).collect()).with_dependencies(dependencies.collect())
    }

    fn started(&self) -> HealthReport {
        let relays = self.relays.iter().map(|relay| relay_health::startup(relay));
        let consumers = self.consumers.members().iter().map(|status| consumer_health::readiness(status));
        HealthReport::of(relays.chain(consumers).collect())
    }

    fn metrics(&self) -> String {
        self.exposition.text()
    }

    fn status(&self) -> ProcessStatus {
        ProcessStatus {
            service: self.service.clone(),
            relays: self.relays.iter().map(|relay| relay.rates()).collect(),
            consumers: self.consumers.rates(),
        }
    }

    fn record_rates(&self) {
        let now = Instant::now();
        self.relays.iter().for_each(|relay| relay.record_rates(now));
        self.consumers.record_rates(now);
    }
}
