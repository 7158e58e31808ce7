//! One relay of the daemon, as others see it: how far it is, what it has done, its routes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::Routes;
use relevo_core::broker::sample::BrokerSample;
use relevo_core::outbox::sample::{DestinationSample, OutboxSample};
use relevo_observe::Slot;
use relevo_observe::relay::Observed;
use relevo_relay::{RelayStatus, RoutesHandle};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How far a relay is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is known yet.
    Starting,
    /// Something is waited for, and why.
    Waiting(For, String),
    /// The relay's loop turns.
    Running,
    /// It has ended.
    Ended,
}

/// What a relay waits for before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    Broker,
    Database,
}

/// Which relay it is.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) outbox: String,
    pub(crate) destination: String,
    /// The kind of its broker.
    pub(crate) broker: &'static str,
    /// Where that is.
    pub(crate) place: String,
}

/// What is sampled for several relays at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    /// Of the outbox.
    pub(crate) surroundings: Arc<Slot<OutboxSample>>,
    /// Of the broker.
    pub(crate) broker: Arc<Slot<BrokerSample>>,
}

/// What is known of one relay without asking it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) named: Named,
    /// After so long without a turn of its loop it is stuck.
    pub(crate) stuck_after: Duration,
    phase: Mutex<Phase>,
    changed: Arc<Notify>,
    /// Turns of the loops that wait for broker and database.
    turns: AtomicU64,
    /// How often the database was found away by them.
    away: AtomicU64,
    /// Since when they have found the broker away.
    broker_away_since: Mutex<Option<Instant>>,
    relay: OnceLock<Arc<RelayStatus>>,
    routes: Mutex<(Routes, Option<RoutesHandle>)>,
    pub(crate) vitals: Arc<Slot<DestinationSample>>,
    shared: Shared,
}

impl Seen {
    /// `changed` is told of every change of phase.
    pub(crate) fn new(
        named: Named,
        shared: Shared,
        routes: Routes,
        stuck_after: Duration,
        changed: Arc<Notify>,
    ) -> Self {
        Self {
            named,
            stuck_after,
            phase: Mutex::new(Phase::Starting),
            changed,
            turns: AtomicU64::new(0),
            away: AtomicU64::new(0),
            broker_away_since: Mutex::default(),
            relay: OnceLock::new(),
            routes: Mutex::new((routes, None)),
            vitals: Arc::default(),
            shared,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase.lock().clone()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        *self.phase.lock() = phase;
        self.changed.notify_one();
    }

    /// Another attempt to open something begins.
    pub(crate) fn turns_on(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// The database was found away.
    pub(crate) fn found_away(&self) {
        self.away.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the broker was there when it was tried before the relay was.
    pub(crate) fn broker_is(&self, there: bool) {
        let mut since = self.broker_away_since.lock();
        *since = if there { None } else { since.or_else(|| Some(Instant::now())) };
    }

    /// The relay is there.
    pub(crate) fn runs(&self, relay: Arc<RelayStatus>, handle: RoutesHandle) {
        let mut routes = self.routes.lock();
        // They may have been exchanged while the database was waited for.
        if handle.current() != routes.0 {
            handle.replace(routes.0.clone());
        }
        routes.1 = Some(handle);
        drop(routes);
        // It is set once: one relay is made for each of these.
        self.relay.set(relay).ok();
        self.enter(Phase::Running);
    }

    /// Exchanges the routes; says whether they differ.
    pub(crate) fn exchange(&self, new: &Routes) -> bool {
        let mut routes = self.routes.lock();
        if routes.0 == *new {
            return false;
        }
        routes.0 = new.clone();
        if let Some(handle) = &routes.1 {
            handle.replace(new.clone());
        }
        true
    }

    /// Grows for as long as something turns here.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed) + self.relay().map_or(0, RelayStatus::steps)
    }

    /// Whether the relay does its work at the moment, and what is seen of it.
    pub(crate) fn readiness(&self) -> (bool, String) {
        match (self.phase(), self.relay()) {
            (Phase::Waiting(_, what), _) => (false, what),
            (Phase::Ended, _) => (false, "ended".to_owned()),
            (Phase::Running, Some(status)) if status.is_database_down() => {
                (false, "the database is away, will begin again".to_owned())
            }
            (Phase::Running, Some(status)) if status.is_started() => {
                // An outage is not a failure: it is told, and waited for.
                let far = if status.is_broker_down() { ", the destination is away" } else { "" };
                (true, format!("holds {} shards{far}", status.leases()))
            }
            (Phase::Starting | Phase::Running, _) => (false, "starting".to_owned()),
        }
    }
}

impl Observed for Seen {
    fn outbox(&self) -> &str {
        &self.named.outbox
    }

    fn destination(&self) -> &str {
        &self.named.destination
    }

    fn broker(&self) -> &str {
        self.named.broker
    }

    fn broker_place(&self) -> &str {
        &self.named.place
    }

    fn relay(&self) -> Option<&RelayStatus> {
        self.relay.get().map(Arc::as_ref)
    }

    fn is_ready(&self) -> bool {
        self.readiness().0
    }

    fn database_outages(&self) -> u64 {
        // Also before the relay was there.
        self.away.load(Ordering::Relaxed) + self.relay().map_or(0, RelayStatus::database_outages)
    }

    fn broker_away_for(&self) -> Option<Duration> {
        if let Some(since) = *self.broker_away_since.lock() {
            return Some(since.elapsed());
        }
        self.relay().map(|status| status.broker_down_for().unwrap_or_default())
    }

    fn is_broker_up(&self) -> Option<bool> {
        let away = self.broker_away_since.lock().is_some();
        if away { Some(false) } else { self.relay().map(|status| !status.is_broker_down()) }
    }

    fn vitals(&self) -> Option<DestinationSample> {
        self.vitals.get()
    }

    fn surroundings(&self) -> Option<OutboxSample> {
        self.shared.surroundings.get()
    }

    fn broker_vitals(&self) -> Option<BrokerSample> {
        self.shared.broker.last()
    }

    fn last_vitals(&self) -> Option<DestinationSample> {
        self.vitals.last()
    }

    fn last_surroundings(&self) -> Option<OutboxSample> {
        self.shared.surroundings.last()
    }

    fn sampled_ago(&self) -> Option<Duration> {
        Some(self.vitals.age().max(self.shared.surroundings.age()))
    }
}
