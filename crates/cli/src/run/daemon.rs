//! The daemon: its components, their order, and their end.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_admin::{Server, Token};
use relevo_host::OpenBrokers;
use relevo_observe::traces::{SpanCounts, SpanMetrics};
use relevo_observe::{ProcessMonitor, RelayLabels, RelayMonitor, RelayPhase, RelaySamples, STALL_TIMEOUT_MIN};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Interval, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::metrics::{Itself, Reloads};
use super::reload::{self, reload};
use super::sampling::{Pace, Samplers};
use super::signals::{Asked, Signals};
use super::traces::{Exporting, Telling};
use super::{link, systemd};
use crate::config::{Config, Loaded, Sources};
use crate::error_report::ErrorReport;

/// Interrupted twice, as shells count it: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;
/// Nothing is in flight any more when connections are given back: nobody waits longer for it.
const CLOSE_DEADLINE: Duration = Duration::from_secs(2);

/// A process that carries outboxes to their destinations.
pub(crate) struct Daemon {
    sources: Sources,
    loaded: Loaded,
    relays: Vec<Arc<RelayMonitor>>,
    reloads: Arc<Reloads>,
    brokers: Arc<OpenBrokers>,
    components: JoinSet<Result<()>>,
    exporting: Exporting,
    /// Something about a relay changed.
    changed: Arc<Notify>,
    stop: CancellationToken,
    started: bool,
    failure: Option<anyhow::Error>,
}

impl Daemon {
    /// Opens the admin port and starts every component.
    pub(crate) async fn start(sources: Sources, loaded: Loaded) -> Result<Self> {
        let config = &loaded.config;
        let server = match config.admin.listen {
            Some(address) => Some(Server::bind(address).await?),
            None => None,
        };
        reload::warn_of(&loaded.warnings);
        info!(version = env!("CARGO_PKG_VERSION"), config = %loaded.file, name = %config.name, "relevo starts");
        let telling = Telling::new(config.traces.as_ref())?;
        let (stop, changed) = (CancellationToken::new(), Arc::new(Notify::new()));
        let (mut components, mut relays) = (JoinSet::new(), Vec::new());
        let mut brokers = OpenBrokers::default();
        for destination in config.outboxes.iter().flat_map(|outbox| &outbox.destinations) {
            brokers.add(&destination.broker.adapter, destination.relay.publish_timeout);
        }
        let brokers = Arc::new(brokers);
        let pace = Pace { every: config.admin.sample_interval, stop: stop.clone() };
        let mut samplers = Samplers::new(pace);
        for outbox in &config.outboxes {
            let shared = Arc::new(outbox.clone());
            let outbox_sample = samplers.outbox(&shared);
            for destination in &outbox.destinations {
                let mut destination = destination.clone();
                destination.relay.name.clone_from(&config.name);
                let labels = RelayLabels {
                    outbox: outbox.name.clone(),
                    destination: destination.name.clone(),
                    broker: destination.broker.adapter.kind().to_owned(),
                    location: destination.broker.adapter.location(),
                };
                destination.relay.tracer = telling.of(&labels);
                let samples = RelaySamples {
                    destination: Arc::default(),
                    outbox: Arc::clone(&outbox_sample),
                    broker: samplers.broker(&destination.broker.adapter),
                };
                let monitor = RelayMonitor::new(labels)
                    .with_samples(samples)
                    .with_routes(destination.relay.routes.clone())
                    .with_stall_timeout((2 * destination.relay.lease_duration).max(STALL_TIMEOUT_MIN))
                    .with_notify(Arc::clone(&changed));
                let monitor = Arc::new(monitor);
                relays.push(Arc::clone(&monitor));
                samplers.destination(&shared, &monitor);
                let brokers = Arc::clone(&brokers);
                components.spawn(link::carry(Arc::clone(&shared), destination, brokers, monitor, stop.clone()));
            }
        }
        let reloads = Arc::new(Reloads::default());
        if let Some(server) = server {
            samplers.start(&mut components);
            info!(address = %server.address(), "the admin port is open");
            components.spawn(serve(server, config, &relays, &reloads, telling.counts(), stop.clone()));
        }
        let exporting = telling.start(config.traces.as_ref());
        let (started, failure) = (false, None);
        Ok(Self { sources, loaded, relays, reloads, brokers, components, exporting, changed, stop, started, failure })
    }

    /// Until a signal, or a component that ends by itself, ends it.
    pub(crate) async fn run(mut self, mut signals: Signals) -> Result<()> {
        let every = systemd::watchdog_every();
        let mut watchdog = every.map(|every| interval_at(Instant::now() + every, every));
        loop {
            tokio::select! {
                biased;
                asked = signals.next() => self.asked(asked),
                ended = self.components.join_next() => match ended {
                    Some(ended) => self.ended(ended),
                    None => break,
                },
                () = self.changed.notified() => self.tell(),
                () = tick(&mut watchdog) => self.watch(),
            }
        }
        if timeout(CLOSE_DEADLINE, self.brokers.close()).await.is_err() {
            warn!("a broker did not say goodbye in time");
        }
        self.exporting.end().await;
        if let Some(error) = self.failure {
            return Err(error);
        }
        info!("relevo has ended");
        Ok(())
    }

    fn asked(&mut self, asked: Asked) {
        match asked {
            Asked::Stop if self.stop.is_cancelled() => {
                error!("told to end again: ending at once");
                std::process::exit(INTERRUPTED);
            }
            Asked::Stop => {
                info!("told to end: finishing what is in flight");
                systemd::stopping("finishing what is in flight");
                self.stop.cancel();
            }
            // What ends takes no other configuration.
            Asked::Reload if self.stop.is_cancelled() => {}
            Asked::Reload => self.reload(),
        }
    }

    fn reload(&mut self) {
        systemd::reloading();
        let new = self.sources.load();
        let good = reload(&self.loaded, &new, &self.relays);
        self.reloads.count(good);
        systemd::ready(&self.status());
    }

    /// A component ended. By itself it does so only with an error that waiting does not mend.
    fn ended(&mut self, ended: Result<Result<()>, JoinError>) {
        let result = ended.context("a component panicked").and_then(|result| result);
        if let Err(error) = result {
            let told = ErrorReport::of(&error);
            error!(error = told.error(), hint = told.hint(), "a component failed: relevo ends");
            systemd::stopping(&told.error().replace('\n', " "));
            // What the others say follows from the first.
            self.failure.get_or_insert(error);
            self.stop.cancel();
        }
    }

    /// The service counts as started when each relay has reached its database, or is known to wait for it.
    fn tell(&mut self) {
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

    fn watch(&self) {
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

fn serve(
    server: Server,
    config: &Config,
    relays: &[Arc<RelayMonitor>],
    reloads: &Arc<Reloads>,
    spans: Arc<SpanCounts>,
    stop: CancellationToken,
) -> impl Future<Output = Result<()>> + use<> {
    let monitor = ProcessMonitor::new(&config.service, env!("CARGO_PKG_VERSION"))
        .relays(relays.to_vec())
        .collector(Itself(Arc::clone(reloads)))
        .collector(SpanMetrics(spans))
        .ready_requires_broker(config.admin.ready_requires_broker);
    let token = config.admin.token.as_ref().map(|token| Token::new(token.reveal()));
    async move { server.run(Arc::new(monitor), token, stop).await.context("the admin port failed") }
}

async fn tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}
