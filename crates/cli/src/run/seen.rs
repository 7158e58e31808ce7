//! One relay of the daemon, as others see it: how far it is, what it has done, its routes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use relevo_core::Routes;
use relevo_core::operate::Backlog;
use relevo_relay::{RoutesHandle, Stats, Watched};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How far a relay is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is known yet.
    Starting,
    /// Something is waited for: what, and why.
    Waiting(String),
    /// The relay's loop turns.
    Running,
    /// It has ended.
    Ended,
}

/// What is known of one relay without asking it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) outbox: String,
    pub(crate) destination: String,
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
    relay: OnceLock<(Arc<Stats>, Arc<Watched>)>,
    routes: Mutex<(Routes, Option<RoutesHandle>)>,
    backlog: Mutex<Option<Backlog>>,
}

impl Seen {
    /// `changed` is told of every change of phase.
    pub(crate) fn new(
        outbox: &str,
        destination: &str,
        routes: Routes,
        stuck_after: Duration,
        changed: Arc<Notify>,
    ) -> Self {
        Self {
            outbox: outbox.to_owned(),
            destination: destination.to_owned(),
            stuck_after,
            phase: Mutex::new(Phase::Starting),
            changed,
            turns: AtomicU64::new(0),
            away: AtomicU64::new(0),
            broker_away_since: Mutex::default(),
            relay: OnceLock::new(),
            routes: Mutex::new((routes, None)),
            backlog: Mutex::default(),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        lock(&self.phase).clone()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        *lock(&self.phase) = phase;
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
        let mut since = lock(&self.broker_away_since);
        *since = if there { None } else { since.or_else(|| Some(Instant::now())) };
    }

    /// For how long the destination has been away, as far as that is known; zero while it is there.
    pub(crate) fn destination_away_for(&self) -> Option<Duration> {
        if let Some(since) = *lock(&self.broker_away_since) {
            return Some(since.elapsed());
        }
        self.relay().map(|(_, watched)| watched.destination_away_for().unwrap_or_default())
    }

    /// Whether the destination was there when it was last tried.
    pub(crate) fn is_destination_up(&self) -> Option<bool> {
        let away = lock(&self.broker_away_since).is_some();
        if away { Some(false) } else { self.relay().map(|(_, watched)| !watched.is_destination_away()) }
    }

    /// The relay is there.
    pub(crate) fn runs(&self, stats: Arc<Stats>, watched: Arc<Watched>, handle: RoutesHandle) {
        let mut routes = lock(&self.routes);
        // They may have been exchanged while the database was waited for.
        if handle.current() != routes.0 {
            handle.exchange(routes.0.clone());
        }
        routes.1 = Some(handle);
        drop(routes);
        // It is set once: one relay is made for each of these.
        self.relay.set((stats, watched)).ok();
        self.enter(Phase::Running);
    }

    /// Exchanges the routes; says whether they differ.
    pub(crate) fn exchange(&self, new: &Routes) -> bool {
        let mut routes = lock(&self.routes);
        if routes.0 == *new {
            return false;
        }
        routes.0 = new.clone();
        if let Some(handle) = &routes.1 {
            handle.exchange(new.clone());
        }
        true
    }

    /// Counters and present state, once the relay is there.
    pub(crate) fn relay(&self) -> Option<(&Stats, &Watched)> {
        self.relay.get().map(|(stats, watched)| (&**stats, &**watched))
    }

    /// Grows for as long as something turns here.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed) + self.relay().map_or(0, |(_, watched)| watched.steps())
    }

    /// How often the database was found away, also before the relay was there.
    pub(crate) fn database_away(&self) -> u64 {
        self.away.load(Ordering::Relaxed) + self.relay().map_or(0, |(stats, _)| stats.database_away())
    }

    /// Whether the relay does its work at the moment, and what is seen of it.
    pub(crate) fn readiness(&self) -> (bool, String) {
        match (self.phase(), self.relay()) {
            (Phase::Waiting(what), _) => (false, what),
            (Phase::Ended, _) => (false, "ended".to_owned()),
            (Phase::Running, Some((_, watched))) if watched.is_database_away() => {
                (false, "the database is away, will begin again".to_owned())
            }
            (Phase::Running, Some((_, watched))) if watched.is_started() => {
                // An outage is not a failure: it is told, and waited for.
                let far = if watched.is_destination_away() { ", the destination is away" } else { "" };
                (true, format!("holds {} shards{far}", watched.leases()))
            }
            (Phase::Starting | Phase::Running, _) => (false, "starting".to_owned()),
        }
    }

    pub(crate) fn backlog(&self) -> Option<Backlog> {
        *lock(&self.backlog)
    }

    /// `None` when it could not be sampled: no number is better than an old one.
    pub(crate) fn sampled(&self, backlog: Option<Backlog>) {
        *lock(&self.backlog) = backlog;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it is held, and every value is whole after each change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
