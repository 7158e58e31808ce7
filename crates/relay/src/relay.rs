//! The relay's loop. One step handles one event and its consequences.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use relevo_core::outbox::RelayStore;
use relevo_core::random::SplitMix64;
use relevo_core::store::StoreError;
use relevo_core::{Broker, Message, Route};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::buffer::Buffer;
use crate::config::Config;
use crate::leases::Leases;
use crate::parked::Parked;
use crate::publish::Publisher;
use crate::read::Reader;
use crate::routes::{RoutesHandle, RoutesReceiver};
use crate::settle::OpenPages;
use crate::status::{RelayStatus, add};
use crate::store_calls::StoreCalls;
use crate::store_calls::busy::CallKind;

/// A call in progress.
pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Why a relay stopped by itself. A retry cannot help.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The store refuses to serve this relay.
    #[error("the store refuses to serve this relay")]
    Store(#[source] StoreError),
    /// A configured limit can never work.
    #[error("invalid relay configuration: {0}")]
    Config(String),
}

/// A relay for one destination of one outbox.
///
/// Each part below knows no other part. A step that needs two parts is a method of `Relay`, in the file of the part
/// where the message ends up.
pub struct Relay {
    pub(crate) store: Arc<dyn RelayStore>,
    pub(crate) broker: Arc<dyn Broker>,
    pub(crate) config: Config,
    pub(crate) status: Arc<RelayStatus>,
    routes: RoutesReceiver,
    pub(crate) random: SplitMix64,
    pub(crate) stopping: bool,

    pub(crate) leases: Leases,
    pub(crate) reader: Reader,
    pub(crate) buffer: Buffer,
    pub(crate) publisher: Publisher,
    pub(crate) pages: OpenPages,
    pub(crate) parked: Parked,
    pub(crate) store_calls: StoreCalls,
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
        Ok(Self {
            store,
            broker,
            status: Arc::default(),
            routes: RoutesReceiver::new(config.routes.clone()),
            leases: Leases::new(random.uuid(), now),
            random,
            stopping: false,
            reader: Reader::new(&config, now),
            buffer: Buffer::default(),
            publisher: Publisher::new(&config),
            pages: OpenPages::default(),
            parked: Parked::default(),
            store_calls: StoreCalls::new(&config, now),
            config,
        })
    }

    /// The relay's counters, latencies and current state. They stay valid after the relay has ended.
    pub fn status(&self) -> Arc<RelayStatus> {
        Arc::clone(&self.status)
    }

    /// Returns a handle that replaces the routes while the relay runs.
    pub fn routes_handle(&self) -> RoutesHandle {
        self.routes.handle()
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
        self.update_routes();
        let now = Instant::now();
        self.status.step(self.leases.shards.len(), self.publisher.in_flight, self.is_broker_reported_up(now));
        self.wake_resends(now);
        self.start_store_call(now);
        self.start_maintenance(now);
        self.start_read(now);
        self.publish_ready(now);
        let wake_at = self.wake_at();
        tokio::select! {
            biased;
            () = self.publisher.outcomes.ready() => self.take_outcomes(),
            Some(batch) = self.publisher.calls.next(), if !self.publisher.calls.is_empty() => self.end_batch(batch),
            reply = wait_for(&mut self.store_calls.call) => {
                self.store_calls.call = None;
                self.apply_reply(reply)?;
            }
            reply = wait_for(&mut self.reader.call) => {
                self.reader.cancel();
                self.apply_read(reply)?;
            }
            result = wait_for(&mut self.store_calls.maintenance) => {
                self.store_calls.maintenance = None;
                self.apply_maintenance(result)?;
            }
            () = sleep_until(wake_at) => {}
        }
        Ok(())
    }

    /// Waits for messages in flight, settles confirmed ones and releases the leases. Interrupted work counts no
    /// attempt.
    async fn shut_down(&mut self) {
        self.stopping = true;
        self.reader.cancel();
        // Maintenance is not polled here. It may hold a lock of the store that the last settlements need.
        self.store_calls.maintenance = None;
        let end = Instant::now() + self.config.shutdown_grace;
        while Instant::now() < end && (self.publisher.in_flight > 0 || self.store_calls.call.is_some()) {
            tokio::select! {
                biased;
                () = self.publisher.outcomes.ready() => self.take_outcomes(),
                Some(batch) = self.publisher.calls.next(), if !self.publisher.calls.is_empty() => self.end_batch(batch),
                reply = wait_for(&mut self.store_calls.call) => {
                    self.store_calls.call = None;
                    if self.apply_reply(reply).is_err() {
                        return;
                    }
                }
                () = sleep_until(end) => {}
            }
        }
        self.take_outcomes();
        // A call without a reply may still take effect. A second settlement beside it would park the same messages
        // twice.
        if self.store_calls.call.is_none() {
            self.parked.batches.finish_all();
            self.finish_store_call(CallKind::SettleParked, Self::settle_parked_call).await;
            self.finish_store_call(CallKind::Settle, |relay| relay.settle_call()).await;
        }
        let call = self.release_call();
        add(&self.status.counters.lease_changes, self.leases.shards.len());
        if timeout(self.config.shutdown_grace, call).await.is_err() {
            warn!(relay = %self.config.name, "leases could not be released in time, they will expire");
        }
        self.status.step(0, 0, self.is_broker_reported_up(Instant::now()));
        info!(relay = %self.config.name, "relay stopped");
    }

    /// A message with an address keeps it, so that its key stays in order. Messages addressed later use the new routes,
    /// including parked ones.
    fn update_routes(&mut self) {
        if let Some(routes) = self.routes.take_replaced() {
            self.config.routes = routes;
            info!(relay = %self.config.name, "routes replaced");
        }
    }

    pub(crate) fn route(&self, message: &Message) -> Option<Arc<Route>> {
        self.config.routes.find(message).map(Arc::clone)
    }

    /// Discards everything that was read and not settled. The positions are read from the store again.
    pub(crate) fn discard_unsettled(&mut self) {
        let now = Instant::now();
        self.leases.reset();
        self.reader.reset(now);
        self.buffer = Buffer::default();
        self.publisher.reset(now);
        self.pages = OpenPages::default();
        self.parked = Parked::default();
        self.store_calls.reset(now);
    }

    /// When the next step is needed, if no event happens before.
    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        let mut wake_at = now + self.config.lease_duration;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                wake_at = wake_at.min(at);
            }
        };
        let StoreCalls { call, maintenance, schedule, busy, .. } = &self.store_calls;
        let after_pause = |kind, at: Instant| busy.until(kind).map_or(at, |until| until.max(at));
        let has_leases = !self.leases.shards.is_empty();
        if call.is_none() {
            consider(Some(after_pause(CallKind::Lease, schedule.lease)));
            consider(busy.next_end(now));
        }
        if call.is_none() && has_leases {
            let settle_at = |at| after_pause(CallKind::Settle, at);
            let read_parked_at = after_pause(CallKind::ReadParked, schedule.parked);
            consider(self.can_read_parked(now).then_some(read_parked_at));
            consider((self.pages.len() > 0).then(|| settle_at(schedule.settle)));
            consider(self.pages.is_front_complete().then(|| settle_at(schedule.settle_front)));
        }
        consider((maintenance.is_none() && has_leases).then_some(schedule.maintain));
        let read_at = after_pause(CallKind::Read, self.reader.next_at);
        consider((self.can_read() && has_leases).then_some(read_at));
        consider(self.publisher.wake_at(self.buffer.has_ready()));
        if wake_at > now {
            wake_at
        } else {
            // A due task waits for another event. Check again soon instead of spinning.
            now + Duration::from_millis(1)
        }
    }
}

async fn wait_for<T>(call: &mut Option<Pending<T>>) -> T {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}
