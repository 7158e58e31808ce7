//! The relay's loop. One step handles one event and its consequences.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use relevo_core::broker::Reports;
use relevo_core::store::{Ceiling, Lease, Page, Position, Read, Store, StoreError};
use relevo_core::{Broker, Route, Routes};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::clerk::Done;
use crate::config::Config;
use crate::health::Health;
use crate::keys::{Item, Keys, Source};
use crate::pages::{Pages, Verdict};
use crate::parked::{Holds, ParkedKeys};
use crate::quiet::Quiet;
use crate::routes::RoutesHandle;
use crate::runs::Runs;
use crate::stats::{Stats, add};
use crate::watched::Watched;
use relevo_core::random::SplitMix64;

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Why a relay stopped by itself. A retry cannot help.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The store refuses to serve this relay.
    #[error("the relay cannot go on")]
    Store(#[source] StoreError),
    /// A configured limit can never work.
    #[error("invalid relay configuration: {0}")]
    Config(String),
}

/// A shard leased by this relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    /// Where the next page starts.
    pub(crate) cursor: Position,
    /// Whether to release it as soon as none of its messages is in flight.
    pub(crate) leaving: bool,
}

/// A relay for one destination of one outbox.
pub struct Relay<S: ?Sized, B: ?Sized> {
    pub(crate) store: Arc<S>,
    pub(crate) broker: Arc<B>,
    pub(crate) config: Config,
    pub(crate) stats: Arc<Stats>,
    pub(crate) watched: Arc<Watched>,
    /// Routes that replace the configured ones.
    new_routes: watch::Receiver<Routes>,
    routes_handle: RoutesHandle,
    pub(crate) random: SplitMix64,

    pub(crate) owner: Uuid,
    pub(crate) held: BTreeMap<u16, Held>,
    /// The positions of the shards in the store.
    pub(crate) settled: BTreeMap<u16, (Lease, Position)>,
    /// The relay publishes nothing after this time.
    pub(crate) valid_until: Instant,
    pub(crate) ceiling: Ceiling,

    pub(crate) keys: Keys,
    pub(crate) pages: Pages,
    pub(crate) runs: Runs,
    pub(crate) parked: ParkedKeys,
    /// Items of unsettled pages that wait behind a parked head.
    pub(crate) behind: BTreeMap<ByteString, Vec<usize>>,
    pub(crate) holds: Holds,
    pub(crate) health: Health,
    /// Limits the log lines about outages.
    pub(crate) outages: Quiet,
    /// Maintenance warnings that were logged, by their text without numbers: another kind is logged at once.
    pub(crate) upkeep_warnings: BTreeMap<String, Quiet>,
    /// Failures of maintenance that were logged.
    pub(crate) upkeep_failures: Quiet,
    /// Items that are sent again at a given time.
    pub(crate) later: BTreeMap<(Instant, usize), Again>,

    pub(crate) reports: Reports,
    pub(crate) batches: BTreeMap<u64, Vec<usize>>,
    pub(crate) next_batch: u64,
    pub(crate) publishing: FuturesUnordered<Pending<u64>>,
    pub(crate) in_flight: usize,

    reading: Option<Pending<Reading>>,
    /// The shards that are being read.
    pub(crate) reading_of: Vec<u16>,
    pub(crate) chore: Option<Pending<Done>>,
    pub(crate) due_at: Due,
    idle: Duration,
    /// Whether the relay has read to the end of its shards since it last started again.
    pub(crate) has_looked: bool,
    pub(crate) stopping: bool,
    away: u32,
}

/// A page, its shards, and their position before it.
type Reading = (Vec<Lease>, Position, Result<Page, StoreError>);

/// How an item is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// With other messages.
    Send,
    /// Alone.
    Alone,
}

/// When each regular task is due next.
pub(crate) struct Due {
    pub(crate) lease: Instant,
    pub(crate) read: Instant,
    pub(crate) runs: Instant,
    pub(crate) settle: Instant,
    /// Before this time, completed pages are settled only if memory is full.
    pub(crate) settle_front: Instant,
    pub(crate) maintain: Instant,
}

impl Due {
    fn all(now: Instant) -> Self {
        Self { lease: now, read: now, runs: now, settle: now, settle_front: now, maintain: now }
    }
}

impl<S: Store + ?Sized + 'static, B: Broker + ?Sized + 'static> Relay<S, B> {
    /// Creates a relay. Returns an error if the configuration is not [valid](Config::validate).
    pub fn new(store: Arc<S>, broker: Arc<B>, config: Config) -> Result<Self, RelayError> {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        Self::with_seed(store, broker, config, high ^ low.rotate_left(32))
    }

    /// Creates a relay whose jitter and owner token come from a seed, so that a simulation can replay it.
    pub fn with_seed(store: Arc<S>, broker: Arc<B>, config: Config, seed: u64) -> Result<Self, RelayError> {
        config.validate()?;
        let now = Instant::now();
        let mut random = SplitMix64::new(seed);
        let (routes_handle, new_routes) = RoutesHandle::new(config.routes.clone());
        Ok(Self {
            store,
            broker,
            stats: Arc::default(),
            watched: Arc::default(),
            new_routes,
            routes_handle,
            owner: random.uuid(),
            random,
            held: BTreeMap::new(),
            settled: BTreeMap::new(),
            valid_until: now,
            ceiling: Ceiling::Open,
            keys: Keys::default(),
            pages: Pages::default(),
            runs: Runs::default(),
            parked: ParkedKeys::default(),
            behind: BTreeMap::new(),
            holds: Holds::default(),
            health: Health::new(),
            outages: Quiet::default(),
            upkeep_warnings: BTreeMap::new(),
            upkeep_failures: Quiet::default(),
            later: BTreeMap::new(),
            reports: Reports::default(),
            batches: BTreeMap::new(),
            next_batch: 0,
            publishing: FuturesUnordered::new(),
            in_flight: 0,
            reading: None,
            reading_of: Vec::new(),
            chore: None,
            due_at: Due::all(now),
            idle: config.idle_min,
            has_looked: false,
            stopping: false,
            away: 0,
            config,
        })
    }

    /// The relay's counters. They stay valid after the relay has ended.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.stats)
    }

    /// The relay's current state. It stays valid after the relay has ended.
    pub fn watched(&self) -> Arc<Watched> {
        Arc::clone(&self.watched)
    }

    /// Returns a handle that replaces the routes while the relay runs.
    pub fn routes_handle(&self) -> RoutesHandle {
        self.routes_handle.clone()
    }

    /// Repeats [`Self::step`] until `stop` is cancelled. Then waits for messages in flight within the grace period,
    /// settles confirmed ones and releases its leases.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), RelayError> {
        let result = loop {
            let outcome = tokio::select! {
                biased; // the same order every time, so that a simulation can replay
                () = stop.cancelled() => break Ok(()),
                outcome = self.step() => outcome,
            };
            if outcome.is_err() {
                break outcome;
            }
        };
        self.finish().await;
        result
    }

    /// Starts everything that can be started, waits for one event and handles it.
    ///
    /// Cancelling loses nothing, because the relay owns all work in flight.
    pub async fn step(&mut self) -> Result<(), RelayError> {
        // A store and a broker that reply immediately must not starve other tasks, timers and signals.
        tokio::task::consume_budget().await;
        self.take_routes();
        let now = Instant::now();
        self.watched.step(self.held.len(), self.in_flight, self.seems_destination_up(now));
        self.wake_later(now);
        self.start_chore(now);
        self.start_reading(now);
        self.dispatch(now);
        let wake = self.wakes_at();
        tokio::select! {
            biased;
            () = self.reports.ready() => self.take_reports(),
            Some(batch) = self.publishing.next(), if !self.publishing.is_empty() => self.batch_ended(batch),
            done = poll(&mut self.chore) => { self.chore = None; self.chore_done(done)?; }
            (leases, after, page) = poll(&mut self.reading) => {
                self.reading = None;
                self.reading_of.clear();
                match page {
                    Ok(page) => self.take_page(&leases, after, page),
                    Err(error) => self.store_failed(error)?,
                }
            }
            () = sleep_until(wake) => {}
        }
        Ok(())
    }

    /// Waits for messages in flight, settles confirmed ones and releases the leases. Interrupted work counts no
    /// attempt.
    async fn finish(&mut self) {
        self.stopping = true;
        self.reading = None;
        self.reading_of.clear();
        let end = Instant::now() + self.config.grace;
        while Instant::now() < end && (self.in_flight > 0 || self.chore.is_some()) {
            tokio::select! {
                biased;
                () = self.reports.ready() => self.take_reports(),
                Some(batch) = self.publishing.next(), if !self.publishing.is_empty() => self.batch_ended(batch),
                done = poll(&mut self.chore) => {
                    self.chore = None;
                    if self.chore_done(done).is_err() {
                        return;
                    }
                }
                () = sleep_until(end) => {}
            }
        }
        self.take_reports();
        // A call without a reply may still take effect. A second settlement beside it would park the same messages
        // twice.
        if self.chore.is_none() {
            self.runs.end_all();
            let advance = self.advance_chore();
            self.do_last(advance).await;
            let settle = self.settle_chore();
            self.do_last(settle).await;
        }
        let leave = self.leave_chore();
        add(&self.stats.lease_changes, self.held.len());
        self.do_last(Some(leave)).await;
        self.watched.step(0, 0, self.seems_destination_up(Instant::now()));
        info!(relay = %self.config.name, "relay stopped");
    }

    /// A relay with nothing to send learns of an outage and of its end only from the connection.
    fn seems_destination_up(&self, now: Instant) -> bool {
        let waits = self.in_flight > 0 || !self.keys.ready.is_empty() || !self.later.is_empty();
        self.health.seems_up(now, self.has_looked && !waits) && !self.broker.is_away()
    }

    async fn do_last(&mut self, chore: Option<Pending<Done>>) {
        let Some(chore) = chore else { return };
        if let Ok(done) = tokio::time::timeout(self.config.grace, chore).await
            && let Err(error) = self.chore_done(done)
        {
            warn!(relay = %self.config.name, error = &error as &dyn std::error::Error, "the last settlement failed");
        }
    }

    /// A message with an address keeps it, so that its key stays in order. Messages addressed later use the new routes,
    /// including parked ones.
    fn take_routes(&mut self) {
        if self.new_routes.has_changed().unwrap_or(false) {
            self.config.routes = self.new_routes.borrow_and_update().clone();
            info!(relay = %self.config.name, "routes were exchanged");
        }
    }

    fn start_reading(&mut self, now: Instant) {
        if !self.can_read() || now < self.due_at.read || now >= self.valid_until {
            return;
        }
        let Some((after, leases)) = self.next_group() else { return };
        let store = Arc::clone(&self.store);
        let (limit, bytes, ceiling) = (self.config.page_messages, self.config.bytes_max / 2, self.ceiling);
        self.reading_of = leases.iter().map(|lease| lease.shard).collect();
        self.reading = Some(Box::pin(async move {
            let page = store.read(Read { leases: &leases, after, limit, bytes, ceiling }).await;
            (leases, after, page)
        }));
    }

    fn can_read(&self) -> bool {
        self.reading.is_none()
            && !self.stopping
            && (self.pages.messages() < self.config.pages_max * self.config.page_messages || self.lacks_witness())
            && self.pages.bytes() < self.config.bytes_max
            && self.parked.len() < self.config.parked_keys_max
    }

    /// Whether only a message outside of memory could prove that the broker works, and so unblock the pages.
    fn lacks_witness(&self) -> bool {
        self.health.is_accusing() && self.keys.ready.is_empty() && self.in_flight == 0
    }

    /// The next shards to read. Shards at the same position are read together, and the ones that lag behind come first.
    fn next_group(&self) -> Option<(Position, Vec<Lease>)> {
        // Also read shards that are to be released, because their messages may prove that the broker works.
        let leaving_too = self.lacks_witness();
        let staying = || self.held.values().filter(|held| leaving_too || !held.leaving);
        let after = staying().map(|held| (held.cursor.is_exhausted(), held.cursor)).min()?.1;
        Some((after, staying().filter(|held| held.cursor == after).map(|held| held.lease).collect()))
    }

    fn take_page(&mut self, leases: &[Lease], after: Position, page: Page) {
        let now = Instant::now();
        let busy = !page.entries.is_empty();
        if busy {
            self.due_at.read = now;
            self.idle = self.config.idle_min;
        } else if self.staggered() {
            self.due_at.read = now; // other shards lag behind: do not pause until all are at the same position
        } else {
            self.has_looked = true;
            self.due_at.read = now + self.idle;
            self.idle = (self.idle * 2).min(self.config.idle_max);
        }
        if page.end == after {
            return;
        }
        for lease in leases {
            if let Some(held) = self.held.get_mut(&lease.shard) {
                held.cursor = page.end;
            }
        }
        if busy {
            add(&self.stats.pages, 1);
        }
        let number = self.pages.push(leases.to_owned(), after, &page);
        for (index, entry) in page.entries.into_iter().enumerate() {
            self.take_entry(number, index, entry, leases);
        }
    }

    /// Whether the shards are at different positions.
    fn staggered(&self) -> bool {
        let mut cursors = self.held.values().filter(|held| !held.leaving).map(|held| held.cursor);
        cursors.next().is_some_and(|first| cursors.any(|cursor| cursor != first))
    }

    fn take_entry(&mut self, page: u64, index: usize, entry: relevo_core::store::Entry, leases: &[Lease]) {
        let shard = relevo_core::slot::shard_of(entry.slot, leases[0].shards);
        let lease = *leases.iter().find(|lease| lease.shard == shard).expect("a page holds its shards' messages only");
        let Some(route) = self.route(&entry.message) else {
            add(&self.stats.skipped, 1);
            self.pages.resolve(page, index, Verdict::Done);
            return;
        };
        let address = route.address_of(&entry.message);
        let key = entry.message.key.clone();
        let item = Item {
            entry,
            lease,
            route,
            address,
            source: Source::Page { page, index },
            attempts: 0,
            unknowns: 0,
            is_probe: false,
            span: None,
            was_sent: false,
        };
        if self.parked.contains(&key) {
            self.wait_behind(&key, item);
        } else {
            self.keys.push(item);
        }
    }

    pub(crate) fn route(&self, message: &relevo_core::Message) -> Option<Arc<Route>> {
        self.config.routes.find(message).map(Arc::clone)
    }

    /// Handles a store error. After an outage the state in memory may be outdated, so the relay starts again.
    pub(crate) fn store_failed(&mut self, error: StoreError) -> Result<(), RelayError> {
        if !error.is_passing() {
            return Err(RelayError::Store(error));
        }
        add(&self.stats.database_away, 1);
        let pause = self.config.outage_min.saturating_mul(1 << self.away.min(6)).min(self.config.outage_max);
        warn!(relay = %self.config.name, error = &error as &dyn std::error::Error, ?pause, "the database is away, will begin again");
        self.away += 1;
        self.watched.database_is(false);
        self.forget();
        self.chore = Some(self.leave_later(pause));
        Ok(())
    }

    /// Discards everything that was read and not settled. The positions are read from the store again.
    pub(crate) fn forget(&mut self) {
        self.reading = None;
        self.reading_of.clear();
        self.chore = None;
        self.publishing.clear();
        self.batches.clear();
        self.reports = Reports::default();
        self.in_flight = 0;
        self.keys = Keys::default();
        self.pages = Pages::default();
        self.runs = Runs::default();
        self.parked = ParkedKeys::default();
        self.behind.clear();
        self.holds = Holds::default();
        self.health.forget(Instant::now());
        self.later.clear();
        self.held.clear();
        self.settled.clear();
        self.ceiling = Ceiling::Open;
        self.has_looked = false;
        self.due_at = Due::all(Instant::now());
    }

    pub(crate) fn database_is_back(&mut self) {
        self.away = 0;
        self.watched.database_is(true);
    }

    pub(crate) fn new_owner(&mut self) {
        self.owner = self.random.uuid();
    }

    fn wakes_at(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + self.config.lease;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                wake = wake.min(at);
            }
        };
        if self.chore.is_none() {
            consider(Some(self.due_at.lease));
        }
        if self.chore.is_none() && !self.held.is_empty() {
            consider(Some(self.due_at.maintain));
            consider(self.takes_runs(now).then_some(self.due_at.runs));
            consider((self.pages.len() > 0).then_some(self.due_at.settle));
            consider(self.pages.is_front_done().then_some(self.due_at.settle_front));
        }
        consider((self.can_read() && !self.held.is_empty()).then_some(self.due_at.read));
        if self.in_flight == 0 {
            consider(self.health.wakes_at(!self.keys.ready.is_empty()));
        }
        consider(self.later.first_key_value().map(|((at, _), _)| *at));
        if wake > now {
            wake
        } else {
            // A due task waits for another event. Check again soon instead of spinning.
            now + Duration::from_millis(1)
        }
    }
}

async fn poll<T>(pending: &mut Option<Pending<T>>) -> T {
    match pending {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
