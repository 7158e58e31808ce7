//! The relay's loop. One step handles one event and its consequences.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{Page, PageRequest, WindowLimit};
use relevo_core::outbox::{Position, RelayStore};
use relevo_core::store::StoreError;
use relevo_core::{Broker, Route, Routes};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::buffer::{Buffer, BufferedMessage, Origin};
use crate::config::Config;
use crate::log_throttle::LogThrottle;
use crate::parked::ParkedKeySet;
use crate::parked::batches::ParkedBatches;
use crate::parked::holds::HeldAddresses;
use crate::publish::health::BrokerHealth;
use crate::routes::RoutesHandle;
use crate::settle::{EntryState, OpenPages};
use crate::status::{RelayStatus, add};
use crate::store_calls::StoreReply;
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
pub(crate) struct LeasedShard {
    pub(crate) lease: Lease,
    /// Where the next page starts.
    pub(crate) read_to: Position,
    /// Whether to release it as soon as none of its messages is in flight.
    pub(crate) releasing: bool,
}

/// A relay for one destination of one outbox.
pub struct Relay {
    pub(crate) store: Arc<dyn RelayStore>,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) config: Config,
    pub(crate) status: Arc<RelayStatus>,
    /// Routes that replace the configured ones.
    new_routes: watch::Receiver<Routes>,
    routes_handle: RoutesHandle,
    pub(crate) random: SplitMix64,

    pub(crate) owner: Uuid,
    pub(crate) leased_shards: BTreeMap<u16, LeasedShard>,
    /// The positions of the shards in the store.
    pub(crate) settled: BTreeMap<u16, (Lease, Position)>,
    /// The relay publishes nothing after this time.
    pub(crate) valid_until: Instant,
    pub(crate) window_limit: WindowLimit,

    pub(crate) buffer: Buffer,
    pub(crate) pages: OpenPages,
    pub(crate) parked_batches: ParkedBatches,
    pub(crate) parked_keys: ParkedKeySet,
    /// Items of unsettled pages that wait behind a parked head.
    pub(crate) waiting_behind: BTreeMap<ByteString, Vec<usize>>,
    pub(crate) held_addresses: HeldAddresses,
    pub(crate) health: BrokerHealth,
    /// Limits the log lines about outages.
    pub(crate) outage_log: LogThrottle,
    /// Maintenance warnings that were logged, by their text without numbers: another kind is logged at once.
    pub(crate) upkeep_warnings: BTreeMap<String, LogThrottle>,
    /// Failures of maintenance that were logged.
    pub(crate) upkeep_failures: LogThrottle,
    /// Items that are sent again at a given time.
    pub(crate) resends: BTreeMap<(Instant, usize), ResendMode>,

    pub(crate) outcomes: OutcomeReceiver,
    pub(crate) batches: BTreeMap<u64, Vec<usize>>,
    pub(crate) next_batch: u64,
    pub(crate) publish_calls: FuturesUnordered<Pending<u64>>,
    pub(crate) in_flight: usize,

    read_call: Option<Pending<ReadReply>>,
    /// The shards that are being read.
    pub(crate) reading_shards: Vec<u16>,
    pub(crate) store_call: Option<Pending<StoreReply>>,
    pub(crate) schedule: Schedule,
    idle_pause: Duration,
    /// Whether the relay has read to the end of its shards since it last started again.
    pub(crate) caught_up: bool,
    pub(crate) stopping: bool,
    store_failures: u32,
}

/// A page, its shards, and their position before it.
type ReadReply = (Vec<Lease>, Position, Result<Page, StoreError>);

/// How an item is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResendMode {
    /// With other messages.
    Normal,
    /// Alone.
    Isolated,
}

/// When each regular task is due next.
pub(crate) struct Schedule {
    pub(crate) lease: Instant,
    pub(crate) read: Instant,
    pub(crate) parked: Instant,
    pub(crate) settle: Instant,
    /// Before this time, completed pages are settled only if memory is full.
    pub(crate) settle_front: Instant,
    pub(crate) maintain: Instant,
}

impl Schedule {
    fn all(now: Instant) -> Self {
        Self { lease: now, read: now, parked: now, settle: now, settle_front: now, maintain: now }
    }
}

impl Relay {
    /// Creates a relay. Returns an error if the configuration is not [valid](Config::validate).
    pub fn new(store: Arc<dyn RelayStore>, broker: Arc<dyn Broker>, config: Config) -> Result<Self, RelayError> {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        Self::with_seed(store, broker, config, high ^ low.rotate_left(32))
    }

    /// Creates a relay whose jitter and owner token come from a seed, so that a simulation can replay it.
    pub fn with_seed(
        store: Arc<dyn RelayStore>,
        broker: Arc<dyn Broker>,
        config: Config,
        seed: u64,
    ) -> Result<Self, RelayError> {
        config.validate()?;
        let now = Instant::now();
        let mut random = SplitMix64::new(seed);
        let (routes_handle, new_routes) = RoutesHandle::new(config.routes.clone());
        Ok(Self {
            store,
            broker,
            status: Arc::default(),
            new_routes,
            routes_handle,
            owner: random.uuid(),
            random,
            leased_shards: BTreeMap::new(),
            settled: BTreeMap::new(),
            valid_until: now,
            window_limit: WindowLimit::Unlimited,
            buffer: Buffer::default(),
            pages: OpenPages::default(),
            parked_batches: ParkedBatches::default(),
            parked_keys: ParkedKeySet::default(),
            waiting_behind: BTreeMap::new(),
            held_addresses: HeldAddresses::default(),
            health: BrokerHealth::new(),
            outage_log: LogThrottle::default(),
            upkeep_warnings: BTreeMap::new(),
            upkeep_failures: LogThrottle::default(),
            resends: BTreeMap::new(),
            outcomes: OutcomeReceiver::default(),
            batches: BTreeMap::new(),
            next_batch: 0,
            publish_calls: FuturesUnordered::new(),
            in_flight: 0,
            read_call: None,
            reading_shards: Vec::new(),
            store_call: None,
            schedule: Schedule::all(now),
            idle_pause: config.poll_interval_min,
            caught_up: false,
            stopping: false,
            store_failures: 0,
            config,
        })
    }

    /// The relay's counters and current state. They stay valid after the relay has ended.
    pub fn status(&self) -> Arc<RelayStatus> {
        Arc::clone(&self.status)
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
        self.shut_down().await;
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
        self.status.step(self.leased_shards.len(), self.in_flight, self.is_broker_reported_up(now));
        self.wake_resends(now);
        self.start_call(now);
        self.start_read(now);
        self.dispatch(now);
        let wake = self.wakes_at();
        tokio::select! {
            biased;
            () = self.outcomes.ready() => self.take_outcomes(),
            Some(batch) = self.publish_calls.next(), if !self.publish_calls.is_empty() => self.batch_ended(batch),
            done = poll(&mut self.store_call) => { self.store_call = None; self.apply_reply(done)?; }
            (leases, after, page) = poll(&mut self.read_call) => {
                self.read_call = None;
                self.reading_shards.clear();
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
    async fn shut_down(&mut self) {
        self.stopping = true;
        self.read_call = None;
        self.reading_shards.clear();
        let end = Instant::now() + self.config.shutdown_grace;
        while Instant::now() < end && (self.in_flight > 0 || self.store_call.is_some()) {
            tokio::select! {
                biased;
                () = self.outcomes.ready() => self.take_outcomes(),
                Some(batch) = self.publish_calls.next(), if !self.publish_calls.is_empty() => self.batch_ended(batch),
                done = poll(&mut self.store_call) => {
                    self.store_call = None;
                    if self.apply_reply(done).is_err() {
                        return;
                    }
                }
                () = sleep_until(end) => {}
            }
        }
        self.take_outcomes();
        // A call without a reply may still take effect. A second settlement beside it would park the same messages
        // twice.
        if self.store_call.is_none() {
            self.parked_batches.finish_all();
            let advance = self.settle_parked_call();
            self.finish_call(advance).await;
            let settle = self.settle_call();
            self.finish_call(settle).await;
        }
        let leave = self.release_call();
        add(&self.status.counters.lease_changes, self.leased_shards.len());
        self.finish_call(Some(leave)).await;
        self.status.step(0, 0, self.is_broker_reported_up(Instant::now()));
        info!(relay = %self.config.name, "relay stopped");
    }

    /// A relay with nothing to send learns of an outage and of its end only from the connection.
    fn is_broker_reported_up(&self, now: Instant) -> bool {
        let waits = self.in_flight > 0 || !self.buffer.ready.is_empty() || !self.resends.is_empty();
        self.health.is_reported_up(now, self.caught_up && !waits) && !self.broker.is_unreachable()
    }

    async fn finish_call(&mut self, chore: Option<Pending<StoreReply>>) {
        let Some(chore) = chore else { return };
        if let Ok(done) = tokio::time::timeout(self.config.shutdown_grace, chore).await
            && let Err(error) = self.apply_reply(done)
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

    fn start_read(&mut self, now: Instant) {
        if !self.can_read() || now < self.schedule.read || now >= self.valid_until {
            return;
        }
        let Some((after, leases)) = self.next_read() else { return };
        let store = Arc::clone(&self.store);
        let (limit, bytes, ceiling) = (self.config.page_messages, self.config.memory_max / 2, self.window_limit);
        self.reading_shards = leases.iter().map(|lease| lease.shard).collect();
        self.read_call = Some(Box::pin(async move {
            let page = store
                .read(PageRequest {
                    leases: &leases,
                    after,
                    messages_max: limit,
                    bytes_max: bytes,
                    window_limit: ceiling,
                })
                .await;
            (leases, after, page)
        }));
    }

    fn can_read(&self) -> bool {
        self.read_call.is_none()
            && !self.stopping
            && (self.pages.messages() < self.config.pages_max * self.config.page_messages || self.needs_other_message())
            && self.pages.bytes() < self.config.memory_max
            && self.parked_keys.len() < self.config.parked_keys_max
    }

    /// Whether only a message outside of memory could prove that the broker works, and so unblock the pages.
    fn needs_other_message(&self) -> bool {
        self.health.has_quarantine_candidates() && self.buffer.ready.is_empty() && self.in_flight == 0
    }

    /// The next shards to read. Shards at the same position are read together, and the ones that lag behind come first.
    fn next_read(&self) -> Option<(Position, Vec<Lease>)> {
        // Also read shards that are to be released, because their messages may prove that the broker works.
        let leaving_too = self.needs_other_message();
        let staying = || self.leased_shards.values().filter(|held| leaving_too || !held.releasing);
        let after = staying().map(|held| (held.read_to.is_exhausted(), held.read_to)).min()?.1;
        Some((after, staying().filter(|held| held.read_to == after).map(|held| held.lease).collect()))
    }

    fn take_page(&mut self, leases: &[Lease], after: Position, page: Page) {
        let now = Instant::now();
        let busy = !page.entries.is_empty();
        if busy {
            self.schedule.read = now;
            self.idle_pause = self.config.poll_interval_min;
        } else if self.has_lagging_shard() {
            self.schedule.read = now; // other shards lag behind: do not pause until all are at the same position
        } else {
            self.caught_up = true;
            self.schedule.read = now + self.idle_pause;
            self.idle_pause = (self.idle_pause * 2).min(self.config.poll_interval_max);
        }
        if page.end == after {
            return;
        }
        for lease in leases {
            if let Some(held) = self.leased_shards.get_mut(&lease.shard) {
                held.read_to = page.end;
            }
        }
        let number = self.pages.push(leases.to_owned(), after, &page);
        for (index, entry) in page.entries.into_iter().enumerate() {
            self.take_entry(number, index, entry, leases);
        }
    }

    /// Whether the shards are at different positions.
    fn has_lagging_shard(&self) -> bool {
        let mut cursors = self.leased_shards.values().filter(|held| !held.releasing).map(|held| held.read_to);
        cursors.next().is_some_and(|first| cursors.any(|cursor| cursor != first))
    }

    fn take_entry(&mut self, page: u64, index: usize, entry: relevo_core::outbox::LogEntry, leases: &[Lease]) {
        let shard = relevo_core::slot::shard_of(entry.slot, leases[0].shard_count);
        let lease = *leases.iter().find(|lease| lease.shard == shard).expect("a page holds its shards' messages only");
        let Some(route) = self.route(&entry.message) else {
            add(&self.status.counters.unrouted, 1);
            self.pages.resolve(page, index, EntryState::Done);
            return;
        };
        let address = route.address_of(&entry.message);
        let key = entry.message.key.clone();
        let item = BufferedMessage {
            entry,
            lease,
            route,
            address,
            origin: Origin::Log { page, index },
            attempts: 0,
            lost_confirms: 0,
            is_probe: false,
            span: None,
            was_sent: false,
        };
        if self.parked_keys.contains(&key) {
            self.wait_behind(&key, item);
        } else {
            self.buffer.push(item);
        }
    }

    pub(crate) fn route(&self, message: &relevo_core::Message) -> Option<Arc<Route>> {
        self.config.routes.find(message).map(Arc::clone)
    }

    /// Handles a store error. After an outage the state in memory may be outdated, so the relay starts again.
    pub(crate) fn store_failed(&mut self, error: StoreError) -> Result<(), RelayError> {
        if !error.is_retryable() {
            return Err(RelayError::Store(error));
        }
        add(&self.status.counters.database_outages, 1);
        let pause = self
            .config
            .outage_backoff_min
            .saturating_mul(1 << self.store_failures.min(6))
            .min(self.config.outage_backoff_max);
        warn!(relay = %self.config.name, error = &error as &dyn std::error::Error, ?pause, "the database is away, will begin again");
        self.store_failures += 1;
        self.status.set_database_up(false);
        self.discard_unsettled();
        self.store_call = Some(self.release_after(pause));
        Ok(())
    }

    /// Discards everything that was read and not settled. The positions are read from the store again.
    pub(crate) fn discard_unsettled(&mut self) {
        self.read_call = None;
        self.reading_shards.clear();
        self.store_call = None;
        self.publish_calls.clear();
        self.batches.clear();
        self.outcomes = OutcomeReceiver::default();
        self.in_flight = 0;
        self.buffer = Buffer::default();
        self.pages = OpenPages::default();
        self.parked_batches = ParkedBatches::default();
        self.parked_keys = ParkedKeySet::default();
        self.waiting_behind.clear();
        self.held_addresses = HeldAddresses::default();
        self.health.reset(Instant::now());
        self.resends.clear();
        self.leased_shards.clear();
        self.settled.clear();
        self.window_limit = WindowLimit::Unlimited;
        self.caught_up = false;
        self.schedule = Schedule::all(Instant::now());
    }

    pub(crate) fn database_recovered(&mut self) {
        self.store_failures = 0;
        self.status.set_database_up(true);
    }

    pub(crate) fn new_owner(&mut self) {
        self.owner = self.random.uuid();
    }

    fn wakes_at(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + self.config.lease_duration;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                wake = wake.min(at);
            }
        };
        if self.store_call.is_none() {
            consider(Some(self.schedule.lease));
        }
        if self.store_call.is_none() && !self.leased_shards.is_empty() {
            consider(Some(self.schedule.maintain));
            consider(self.can_take_parked(now).then_some(self.schedule.parked));
            consider((self.pages.len() > 0).then_some(self.schedule.settle));
            consider(self.pages.is_front_complete().then_some(self.schedule.settle_front));
        }
        consider((self.can_read() && !self.leased_shards.is_empty()).then_some(self.schedule.read));
        if self.in_flight == 0 {
            consider(self.health.wakes_at(!self.buffer.ready.is_empty()));
        }
        consider(self.resends.first_key_value().map(|((at, _), _)| *at));
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
