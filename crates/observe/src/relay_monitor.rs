//! One relay, for health checks, metrics and rates.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use relevo_admin::RelayRates;
use relevo_core::Routes;
use relevo_core::broker::sample::BrokerSample;
use relevo_core::outbox::sample::{DestinationSample, OutboxMonitor, OutboxSample};
use relevo_relay::{Relay, RelayStatus, RoutesHandle};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::rates::{RateWindow, Rates};
use crate::sample::LastSample;

/// Timeout of a sample. A slower database has no sample.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(4);
/// A relay without progress for this time is stuck. Opening an outbox takes this long at worst.
pub const STALL_TIMEOUT_MIN: Duration = Duration::from_secs(20);

/// Identifies a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayLabels {
    /// The outbox that it reads.
    pub outbox: String,
    /// Host, port and name of its database, or its file, without credentials. May be empty. Only `/status` returns it.
    pub database: String,
    /// The destination that it publishes to.
    pub destination: String,
    /// The kind of broker, as in the configuration.
    pub broker: String,
    /// Identifies the broker among those of one kind: relays with the same location publish to the same broker. It is
    /// not exported.
    pub location: String,
}

/// The phase of a relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RelayPhase {
    /// Nothing is known yet.
    #[default]
    Starting,
    /// It waits for a dependency, for this reason.
    WaitingFor(Dependency, String),
    /// The relay was started.
    Running,
    /// It has ended.
    Stopped,
}

/// A dependency that a relay waits for before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dependency {
    /// The broker of the destination.
    Broker,
    /// The database of the outbox.
    Database,
}

/// The last samples for a relay. Relays of the same outbox or broker share a sample.
#[derive(Clone, Debug, Default)]
pub struct RelaySamples {
    /// Of the destination.
    pub destination: Arc<LastSample<DestinationSample>>,
    /// Of what the destinations of the outbox share.
    pub outbox: Arc<LastSample<OutboxSample>>,
    /// Of the broker.
    pub broker: Arc<LastSample<BrokerSample>>,
}

/// One relay as monitoring sees it. All answers come from memory: a probe or a scrape never waits.
///
/// ```no_run
/// # use relevo_core::BrokerAdapter;
/// # use relevo_core::outbox::sample::OutboxMonitor;
/// # use relevo_relay::Relay;
/// # async fn example(relay: Relay, broker: &dyn BrokerAdapter, store: &dyn OutboxMonitor) {
/// use relevo_observe::{RelayLabels, RelayMonitor};
///
/// let monitor = RelayMonitor::new(RelayLabels {
///     outbox: "shop".to_owned(),
///     database: "localhost/shop".to_owned(),
///     destination: "main".to_owned(),
///     broker: broker.kind().to_owned(),
///     location: broker.location(),
/// });
/// monitor.attach(&relay);
/// // … run the relay, and every few seconds:
/// monitor.sample(store).await;
/// # }
/// ```
#[derive(Debug)]
pub struct RelayMonitor {
    labels: RelayLabels,
    samples: RelaySamples,
    stall_timeout: Duration,
    phase: Mutex<RelayPhase>,
    changed: Arc<Notify>,
    /// Attempts to reach broker and database before the relay started.
    attempts: AtomicU64,
    /// Outages of the database before the relay started.
    database_outages: AtomicU64,
    /// Since when the broker has been unreachable, until the relay starts.
    broker_down_since: Mutex<Option<Instant>>,
    status: OnceLock<Arc<RelayStatus>>,
    routes: Mutex<RelayRoutes>,
    /// The steps at the last check, and when they last increased.
    progress: Mutex<(u64, Instant)>,
    rates: Mutex<RateWindow>,
}

/// The routes that a relay has, or will have once it starts.
#[derive(Debug, Default)]
struct RelayRoutes {
    next: Option<Routes>,
    handle: Option<RoutesHandle>,
}

impl RelayMonitor {
    /// A relay that has not started.
    pub fn new(labels: RelayLabels) -> Self {
        Self {
            labels,
            samples: RelaySamples::default(),
            stall_timeout: STALL_TIMEOUT_MIN,
            phase: Mutex::default(),
            changed: Arc::default(),
            attempts: AtomicU64::new(0),
            database_outages: AtomicU64::new(0),
            broker_down_since: Mutex::default(),
            status: OnceLock::new(),
            routes: Mutex::default(),
            progress: Mutex::new((0, Instant::now())),
            rates: Mutex::default(),
        }
    }

    /// Uses these samples, which are shared with other relays or set by the caller.
    #[must_use]
    pub fn with_samples(self, samples: RelaySamples) -> Self {
        Self { samples, ..self }
    }

    /// The routes of the configuration, which [`replace_routes`](Self::replace_routes) compares with new ones.
    #[must_use]
    pub fn with_routes(self, routes: Routes) -> Self {
        Self { routes: Mutex::new(RelayRoutes { next: Some(routes), handle: None }), ..self }
    }

    /// The relay counts as stuck after this time without progress.
    #[must_use]
    pub fn with_stall_timeout(self, stall_timeout: Duration) -> Self {
        Self { stall_timeout, ..self }
    }

    /// Notifies this when the phase changes.
    #[must_use]
    pub fn with_notify(self, changed: Arc<Notify>) -> Self {
        Self { changed, ..self }
    }

    /// Which relay it is.
    pub fn labels(&self) -> &RelayLabels {
        &self.labels
    }

    /// Its last samples.
    pub fn samples(&self) -> &RelaySamples {
        &self.samples
    }

    /// The status of the relay. `None` before it was started.
    pub fn status(&self) -> Option<&RelayStatus> {
        self.status.get().map(Arc::as_ref)
    }

    /// Its phase.
    pub fn phase(&self) -> RelayPhase {
        self.phase.lock().clone()
    }

    /// Records its phase.
    pub fn enter(&self, phase: RelayPhase) {
        *self.phase.lock() = phase;
        self.changed.notify_one();
    }

    /// Records an attempt to open broker or database.
    pub fn made_progress(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the database was unreachable before the relay was started.
    pub fn database_unreachable(&self) {
        self.database_outages.fetch_add(1, Ordering::Relaxed);
    }

    /// Records whether the broker was reachable before the relay was started.
    pub fn set_broker_reachable(&self, reachable: bool) {
        let mut since = self.broker_down_since.lock();
        *since = if reachable { None } else { since.or_else(|| Some(Instant::now())) };
    }

    /// Records that the relay starts. Call it once.
    pub fn attach(&self, relay: &Relay) {
        let handle = relay.routes_handle();
        let mut routes = self.routes.lock();
        // They may have been replaced while the relay waited for the database.
        if let Some(next) = routes.next.take().filter(|next| *next != handle.current()) {
            handle.replace(next);
        }
        routes.handle = Some(handle);
        drop(routes);
        // It is set once: each relay has its own monitor.
        self.status.set(relay.status()).ok();
        self.enter(RelayPhase::Running);
    }

    /// Replaces the routes. Returns whether they differ from the current ones.
    pub fn replace_routes(&self, new: &Routes) -> bool {
        let mut routes = self.routes.lock();
        let current = routes.handle.as_ref().map(RoutesHandle::current);
        if current.as_ref().or(routes.next.as_ref()) == Some(new) {
            return false;
        }
        match &routes.handle {
            Some(handle) => handle.replace(new.clone()),
            None => routes.next = Some(new.clone()),
        }
        true
    }

    /// Samples the outbox once. Call it every few seconds next to the relay, unless the samples are shared: a scrape
    /// does not query the database.
    pub async fn sample(&self, store: &dyn OutboxMonitor) {
        let sampled = timeout(SAMPLE_TIMEOUT, store.sample_destination(&self.labels.destination)).await;
        self.samples.destination.set(sampled.ok().and_then(Result::ok));
        let sampled = timeout(SAMPLE_TIMEOUT, store.sample_outbox()).await;
        self.samples.outbox.set(sampled.ok().and_then(Result::ok));
    }

    /// Time since destination and outbox were both sampled. `None` if nothing samples them.
    pub fn sample_age(&self) -> Option<Duration> {
        self.samples.destination.age().max(self.samples.outbox.age())
    }

    /// Whether it currently publishes, or waits for nothing but the broker.
    pub fn is_ready(&self) -> bool {
        self.phase() == RelayPhase::Running
            && self.status().is_some_and(|status| status.is_started() && !status.is_database_down())
    }

    /// Outages of the database, including those before the relay was started.
    pub fn database_outages(&self) -> u64 {
        self.database_outages.load(Ordering::Relaxed) + self.status().map_or(0, RelayStatus::database_outages)
    }

    /// How long the broker has been unreachable: zero while it is reachable, `None` while it is unknown.
    pub fn broker_down_for(&self) -> Option<Duration> {
        if let Some(since) = *self.broker_down_since.lock() {
            return Some(since.elapsed());
        }
        self.status().map(|status| status.broker_down_for().unwrap_or_default())
    }

    /// Whether the broker was reachable at the last attempt, and no connection to it was lost since. `None` while it is
    /// unknown.
    pub fn is_broker_up(&self) -> Option<bool> {
        let was_down = self.broker_down_since.lock().is_some();
        if was_down { Some(false) } else { self.status().map(|status| !status.is_broker_down()) }
    }

    /// Whether the relay made progress since the last call, or not long ago, or has ended. One that does not is stuck,
    /// and must not be hidden by others that do.
    pub fn is_progressing(&self, now: Instant) -> bool {
        let steps = self.attempts.load(Ordering::Relaxed) + self.status().map_or(0, RelayStatus::steps);
        let mut progress = self.progress.lock();
        if steps != progress.0 {
            *progress = (steps, now);
        }
        let idle = now.duration_since(progress.1);
        drop(progress);
        idle < self.stall_timeout || *self.phase.lock() == RelayPhase::Stopped
    }

    /// The time after which a relay without progress is stuck.
    pub fn stall_timeout(&self) -> Duration {
        self.stall_timeout
    }

    /// Adds a snapshot for [`rates`](Self::rates). Called every second.
    pub fn record_rates(&self, now: Instant) {
        if let Some(status) = self.status() {
            self.rates.lock().record(now, status.published(), status.publish_latency().snapshot());
        }
    }

    /// Rates and latencies of the last ten seconds.
    pub fn rates(&self) -> RelayRates {
        let Rates { per_second, p50, p99 } = self.rates.lock().rates();
        RelayRates {
            outbox: self.labels.outbox.clone(),
            database: self.labels.database.clone(),
            destination: self.labels.destination.clone(),
            broker_up: self.is_broker_up(),
            published_per_second: per_second,
            latency_p50_seconds: p50,
            latency_p99_seconds: p99,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn monitor() -> RelayMonitor {
        let (outbox, destination) = ("shop".to_owned(), "main".to_owned());
        let (broker, location) = ("broker".to_owned(), String::new());
        RelayMonitor::new(RelayLabels { outbox, database: String::new(), destination, broker, location })
    }

    #[test]
    fn a_relay_without_progress_is_stuck_until_it_makes_some_or_ends() {
        let (working, stuck, ended) = (monitor(), monitor(), monitor());
        let mut now = Instant::now();
        stuck.made_progress();
        ended.enter(RelayPhase::Stopped);
        for _ in 0..4 {
            working.made_progress();
            assert!(working.is_progressing(now) && stuck.is_progressing(now));
            now += STALL_TIMEOUT_MIN / 4;
        }
        working.made_progress();
        assert!(working.is_progressing(now) && !stuck.is_progressing(now) && ended.is_progressing(now));
        stuck.made_progress();
        assert!(stuck.is_progressing(now), "it works again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_broker_before_the_start_lasts_from_its_first_failed_attempt() {
        let (relay, second) = (monitor(), Duration::from_secs(1));
        assert_eq!((relay.is_broker_up(), relay.broker_down_for()), (None, None));
        relay.set_broker_reachable(false);
        tokio::time::advance(second).await;
        relay.set_broker_reachable(false);
        tokio::time::advance(second).await;
        assert_eq!((relay.is_broker_up(), relay.broker_down_for()), (Some(false), Some(2 * second)));
        relay.set_broker_reachable(true);
        assert_eq!((relay.is_broker_up(), relay.broker_down_for()), (None, None), "the relay has not started");
    }

    #[test]
    fn routes_that_are_replaced_before_the_start_are_compared_with_those_of_the_configuration() {
        let relay = monitor().with_routes(Routes::default());
        assert!(!relay.replace_routes(&Routes::default()));
    }
}
