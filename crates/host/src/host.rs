//! The host: its components, their order, and their end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_admin::Server;
use relevo_observe::traces::{SpanCounts, SpanMetrics};
use relevo_observe::{ProcessMonitor, RelayLabels, RelayMonitor, RelayPhase, RelaySamples, STALL_TIMEOUT_MIN};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Interval, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::{AdminConfig, DestinationConfig, HostConfig, OutboxConfig};
use crate::error_report::ErrorReport;
use crate::open_brokers::OpenBrokers;
use crate::reload_metrics::{ReloadMetrics, Reloads};
use crate::run_relay::run_relay;
use crate::sampler::{SampleLoop, SampleLoops};
use crate::signals::{EXIT_INTERRUPTED, ProcessSignal, Signals};
use crate::systemd;
use crate::trace_export::{TraceExport, TraceExportTask};

/// How long open brokers may delay the end of the process. No message is in flight then.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

type ReloadHandler = Box<dyn FnMut(&[Arc<RelayMonitor>]) -> bool + Send>;

/// Runs relays and other components of a process until a signal stops it, or until one of them fails.
///
/// A relay waits for unreachable servers. It fails only if an operator must change something.
#[must_use]
pub struct Host {
    relays: Vec<Arc<RelayMonitor>>,
    reloads: Arc<Reloads>,
    on_reload: Option<ReloadHandler>,
    brokers: Arc<OpenBrokers>,
    components: JoinSet<Result<()>>,
    trace_export: TraceExportTask,
    /// The phase of a relay changed.
    changed: Arc<Notify>,
    stop: CancellationToken,
    started: bool,
    failure: Option<anyhow::Error>,
}

/// What the relays of a process share while they are started.
struct Startup {
    name: String,
    trace_export: TraceExport,
    samplers: SampleLoops,
    brokers: Arc<OpenBrokers>,
    changed: Arc<Notify>,
    stop: CancellationToken,
    relays: Vec<Arc<RelayMonitor>>,
    components: JoinSet<Result<()>>,
}

impl Host {
    /// Opens the admin port and starts all relays.
    pub async fn start(config: HostConfig) -> Result<Self> {
        let server = match &config.admin {
            Some(admin) => Some(Server::bind(admin.listen).await?),
            None => None,
        };
        let (stop, mut brokers) = (CancellationToken::new(), OpenBrokers::default());
        for destination in config.outboxes.iter().flat_map(|outbox| &outbox.destinations) {
            brokers.add(&destination.broker.adapter, destination.relay.publish_timeout);
        }
        let interval = config.admin.as_ref().map_or(Duration::MAX, |admin| admin.sample_interval);
        let mut startup = Startup {
            name: config.name.clone(),
            trace_export: TraceExport::new(config.traces.as_ref())?,
            samplers: SampleLoops::new(SampleLoop { interval, stop: stop.clone() }),
            brokers: Arc::new(brokers),
            changed: Arc::new(Notify::new()),
            stop: stop.clone(),
            relays: Vec::new(),
            components: JoinSet::new(),
        };
        for outbox in &config.outboxes {
            startup.start_relays(outbox);
        }
        let Startup { trace_export, samplers, brokers, changed, relays, mut components, .. } = startup;
        let reloads = Arc::new(Reloads::default());
        if let (Some(server), Some(admin)) = (server, config.admin) {
            samplers.start(&mut components);
            info!(address = %server.address(), "the admin port is open");
            let monitor = ProcessMonitor::new(&config.service, config.version)
                .relays(relays.clone())
                .consumers(config.consumers)
                .collector(ReloadMetrics(Arc::clone(&reloads)));
            components.spawn(serve(server, admin, monitor, trace_export.counts(), stop.clone()));
        }
        let trace_export = trace_export.start(config.traces.as_ref());
        let (on_reload, started, failure) = (None, false, None);
        Ok(Self { relays, reloads, on_reload, brokers, components, trace_export, changed, stop, started, failure })
    }

    /// Reloads the configuration on SIGHUP. The handler may [replace the routes](RelayMonitor::replace_routes) of the relays,
    /// and returns whether the configuration was valid. Without a handler the signal does nothing.
    pub fn on_reload(self, handler: impl FnMut(&[Arc<RelayMonitor>]) -> bool + Send + 'static) -> Self {
        Self { on_reload: Some(Box::new(handler)), ..self }
    }

    /// Adds a component, such as a consumer. It must end after the [stop token](Self::stop_token) is cancelled. Its error
    /// stops the process.
    pub fn spawn(&mut self, component: impl Future<Output = Result<()>> + Send + 'static) {
        self.components.spawn(component);
    }

    /// Cancelled when the process stops. Cancel it to stop the process.
    pub fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Runs until a signal or a failed component stops the process, and all components have ended. A second signal to stop
    /// exits at once.
    pub async fn run(mut self, mut signals: Signals) -> Result<()> {
        let interval = systemd::watchdog_interval();
        let mut watchdog = interval.map(|interval| interval_at(Instant::now() + interval, interval));
        loop {
            tokio::select! {
                biased;
                signal = signals.next() => self.handle_signal(signal),
                ended = self.components.join_next() => match ended {
                    Some(ended) => self.component_ended(ended),
                    None => break,
                },
                () = self.changed.notified() => self.notify_service_manager(),
                () = tick(&mut watchdog) => self.feed_watchdog(),
            }
        }
        if timeout(CLOSE_TIMEOUT, self.brokers.close()).await.is_err() {
            warn!("a broker connection was not closed in time");
        }
        self.trace_export.end().await;
        if let Some(error) = self.failure {
            return Err(error);
        }
        info!("stopped");
        Ok(())
    }

    fn handle_signal(&mut self, signal: ProcessSignal) {
        match signal {
            ProcessSignal::Stop if self.stop.is_cancelled() => {
                error!("second signal: exiting at once");
                std::process::exit(EXIT_INTERRUPTED.into());
            }
            ProcessSignal::Stop => {
                info!("shutting down: finishing messages in flight");
                systemd::stopping("finishing messages in flight");
                self.stop.cancel();
            }
            // A process that stops reloads nothing.
            ProcessSignal::Reload if self.stop.is_cancelled() => {}
            ProcessSignal::Reload => self.reload(),
        }
    }

    fn reload(&mut self) {
        let Some(reload) = &mut self.on_reload else { return };
        systemd::reloading();
        self.reloads.count(reload(&self.relays));
        systemd::ready(&self.status());
    }

    fn component_ended(&mut self, ended: Result<Result<()>, JoinError>) {
        let result = ended.context("a component panicked").and_then(|result| result);
        if let Err(error) = result {
            let report = ErrorReport::of(&error);
            error!(error = report.error(), hint = report.hint(), "a component failed: stopping");
            systemd::stopping(&report.error().replace('\n', " "));
            // Later errors are consequences of the first one.
            self.failure.get_or_insert(error);
            self.stop.cancel();
        }
    }

    /// The service counts as started when each relay has opened its outbox or waits for a server.
    fn notify_service_manager(&mut self) {
        if self.stop.is_cancelled() {
            return;
        }
        if self.started {
            systemd::status(&self.status());
        } else if self.relays.iter().all(|relay| !matches!(relay.phase(), RelayPhase::Starting | RelayPhase::Stopped)) {
            self.started = true;
            systemd::ready(&self.status());
        }
    }

    fn status(&self) -> String {
        let waiting = self.relays.iter().filter(|relay| matches!(relay.phase(), RelayPhase::WaitingFor(..))).count();
        match (self.relays.len(), waiting) {
            (all, 0) => format!("{all} of {all} relays run"),
            (all, waiting) => format!("{} of {all} relays run, {waiting} wait for database or broker", all - waiting),
        }
    }

    fn feed_watchdog(&self) {
        let now = Instant::now();
        let stuck: Vec<_> = self.relays.iter().filter(|relay| !relay.is_progressing(now)).collect();
        if stuck.is_empty() {
            systemd::alive();
        }
        for relay in stuck {
            let RelayLabels { outbox, destination, .. } = relay.labels();
            error!(%outbox, %destination, "the relay is stuck: no progress for {:?}", relay.stall_timeout());
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("relays", &self.relays).finish_non_exhaustive()
    }
}

impl Startup {
    fn start_relays(&mut self, outbox: &OutboxConfig) {
        let outbox = Arc::new(outbox.clone());
        let outbox_sample = self.samplers.outbox(&outbox);
        for destination in &outbox.destinations {
            let labels = RelayLabels {
                outbox: outbox.name.clone(),
                database: outbox.store.location(),
                destination: destination.name.clone(),
                broker: destination.broker.adapter.kind().to_owned(),
                location: destination.broker.adapter.location(),
            };
            let samples = RelaySamples {
                destination: Arc::default(),
                outbox: Arc::clone(&outbox_sample),
                broker: self.samplers.broker(&destination.broker.adapter),
            };
            let relay = relevo_relay::Config {
                name: self.name.clone(),
                tracer: self.trace_export.tracer(&labels),
                ..destination.relay.clone()
            };
            let monitor = RelayMonitor::new(labels)
                .with_samples(samples)
                .with_routes(relay.routes.clone())
                .with_stall_timeout((2 * relay.lease_duration).max(STALL_TIMEOUT_MIN))
                .with_notify(Arc::clone(&self.changed));
            let (monitor, destination) = (Arc::new(monitor), DestinationConfig { relay, ..destination.clone() });
            self.relays.push(Arc::clone(&monitor));
            self.samplers.destination(&outbox, &monitor);
            let (outbox, brokers, stop) = (Arc::clone(&outbox), Arc::clone(&self.brokers), self.stop.clone());
            self.components.spawn(run_relay(outbox, destination, brokers, monitor, stop));
        }
    }
}

fn serve(
    server: Server,
    admin: AdminConfig,
    monitor: ProcessMonitor,
    spans: Arc<SpanCounts>,
    stop: CancellationToken,
) -> impl Future<Output = Result<()>> {
    let monitor = monitor.collector(SpanMetrics(spans)).ready_requires_broker(admin.ready_requires_broker);
    async move { server.run(Arc::new(monitor), admin.token, stop).await.context("the admin port failed") }
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}
