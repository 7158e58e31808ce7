//! The consumer loop: each step waits for one event and reacts to it.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::inbox::retry_policy::is_expired;
use relevo_core::inbox::{Inbox, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::{BrokerConsumer, Delivery, Failure, Lane};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::breaker::BreakerState;
use crate::config::{Config, RetryStorage};
use crate::delivery::{DeliveryResult, PendingDelivery};
use crate::handler::Handlers;
use crate::heartbeat::{self, HeartbeatState, SharedMemberReport};
use crate::lane_leases::{LaneCallResult, UncertainLease};
use crate::lane_queues::{LaneQueue, LaneQueues};
use crate::phase::RunStateGuard;
use crate::sequence::{SequenceCheck, SequenceTracker};
use crate::settle::AckQueue;
use crate::stats::{ConsumerStatus, add, set};
use crate::turns::TURN_BATCH_MAX;
use crate::work::Worker;
use crate::{lag, panics, prune, retry_worker};
use relevo_core::random::SplitMix64;

pub(crate) type BoxedCall<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Why a consumer stopped with an error, or could not start.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// The configuration contradicts itself or the broker's capabilities.
    #[error("{0}")]
    Config(String),
    /// The store reported a permanent error for this consumer.
    #[error("the consumer cannot go on")]
    Store(#[source] StoreError),
    /// The broker's consumer was closed from outside the runtime.
    #[error("the consumer was closed")]
    Closed,
    /// A task of the runtime panicked.
    #[error("a part of the consumer died")]
    Panicked(#[source] JoinError),
}

/// Order by key requires one consumer per lane, also across processes.
const UNORDERED_LANES: &str = "`order` is by key, and this queue is not `ordered`: two processes could handle messages of \
     one key at the same time; give the queue `ordered = true` or `lanes`, or set `order` to none";

/// Minimum size of a batch in one transaction, if enough messages are available. It applies even if other workers are
/// free to take them.
const BATCH_MIN: usize = 16;

/// A member of a consumer: receives messages from the broker and handles each one once.
pub struct ConsumerRuntime<I: Inbox> {
    pub(crate) worker: Arc<Worker<I>>,
    pub(crate) consumer: Arc<dyn BrokerConsumer>,
    pub(crate) owner: Uuid,
    pub(crate) lanes: LaneQueues,
    /// Queues whose first message is delayed.
    sleeping: BTreeMap<(Instant, u64), (Lane, ByteString)>,
    next_sleeping: u64,
    sequence_tracker: SequenceTracker,
    pub(crate) workers: JoinSet<BatchResult>,
    /// Background tasks: heartbeat, retry table, pruning and lag. If one fails, the consumer stops.
    pub(crate) background: JoinSet<Result<(), ConsumerError>>,
    /// Stops the tasks that begin new work.
    pub(crate) stop_work: CancellationToken,
    /// Stops the heartbeat; cancelled last at shutdown.
    pub(crate) stop_heartbeat: CancellationToken,
    pub(crate) report: Arc<SharedMemberReport>,
    pub(crate) heartbeat_state: watch::Receiver<HeartbeatState>,
    expirations: u64,
    pub(crate) receiving: Option<BoxedCall<Result<Vec<Delivery>, Failure>>>,
    receive_at: Instant,
    receive_failures: u32,
    pub(crate) acks: AckQueue,
    pub(crate) lane_call: Option<BoxedCall<LaneCallResult>>,
    pub(crate) lane_call_at: Instant,
    pub(crate) lane_call_errors: u32,
    /// Lanes whose lease this member may hold without knowing it, because a reply was lost.
    pub(crate) uncertain_leases: BTreeMap<Lane, UncertainLease>,
    /// Lanes for which the broker may or may not have applied the last pause or resume.
    pub(crate) unconfirmed_pauses: BTreeSet<Lane>,
    /// Until this time the database counts as unreachable.
    pub(crate) store_available_at: Instant,
    store_failures: u32,
    /// When the contents of the next heartbeat are prepared again.
    report_at: Instant,
}

/// The result that a worker returns.
pub(crate) struct BatchResult {
    lane: Lane,
    lease: Option<LaneLease>,
    probe: bool,
    deliveries: Vec<PendingDelivery>,
    results: Vec<DeliveryResult>,
}

impl<I: Inbox + 'static> ConsumerRuntime<I>
where
    I::Transaction: 'static,
{
    /// Creates a member that has not started. The inbox must belong to the consumer that the configuration names.
    pub fn new(
        inbox: Arc<I>,
        consumer: Arc<dyn BrokerConsumer>,
        handlers: Handlers<I::Transaction>,
        config: Config,
    ) -> Self {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        Self::with_seed(inbox, consumer, handlers, config, high ^ low.rotate_left(32))
    }

    /// Creates a member whose jitter and ids come from a seed, so that a simulation can replay it.
    pub fn with_seed(
        inbox: Arc<I>,
        consumer: Arc<dyn BrokerConsumer>,
        handlers: Handlers<I::Transaction>,
        config: Config,
        seed: u64,
    ) -> Self {
        panics::install_panic_hook();
        let now = Instant::now();
        let mut random = SplitMix64::new(seed);
        let owner = random.uuid();
        let sequence_tracker = SequenceTracker::new(config.sequence_keys_max);
        Self {
            worker: Arc::new(Worker::new(inbox, handlers, config, random)),
            consumer,
            owner,
            lanes: LaneQueues::default(),
            sleeping: BTreeMap::new(),
            next_sleeping: 0,
            sequence_tracker,
            workers: JoinSet::new(),
            background: JoinSet::new(),
            stop_work: CancellationToken::new(),
            stop_heartbeat: CancellationToken::new(),
            report: Arc::default(),
            heartbeat_state: watch::Sender::new(HeartbeatState::default()).subscribe(),
            expirations: 0,
            receiving: None,
            receive_at: now,
            receive_failures: 0,
            acks: AckQueue::new(),
            lane_call: None,
            lane_call_at: now,
            lane_call_errors: 0,
            uncertain_leases: BTreeMap::new(),
            unconfirmed_pauses: BTreeSet::new(),
            store_available_at: now,
            store_failures: 0,
            report_at: now,
        }
    }

    /// Statistics of this member. They remain readable after it stopped.
    pub fn status(&self) -> Arc<ConsumerStatus> {
        Arc::clone(&self.worker.status)
    }

    /// Receives messages until `stop` is cancelled. Then it finishes running handlers within the grace period and
    /// returns all other messages to the broker immediately.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), ConsumerError> {
        self.check().map_err(ConsumerError::Config)?;
        let life = RunStateGuard::start(self.status());
        self.start_background();
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
        let finished = self.shut_down().await;
        info!(consumer = %self.worker.config.consumer, name = %self.worker.config.member_name, "consumer stopped");
        let ended = result.and(finished);
        if ended.is_ok() {
            life.mark_stopped();
        }
        ended
    }

    /// Checks the configuration against itself and the broker's capabilities.
    fn check(&self) -> Result<(), String> {
        let config = &self.worker.config;
        config.validate()?;
        if config.retry_storage == RetryStorage::Broker && self.consumer.delayed_retry().is_none() {
            return Err(
                "`durable` is the broker, and this broker has no delayed retries: use the retry table".to_owned()
            );
        }
        if config.order.is_by_key() && !self.consumer.capabilities().ordered_lanes {
            return Err(UNORDERED_LANES.to_owned());
        }
        Ok(())
    }

    fn start_background(&mut self) {
        let (sender, pulse) = watch::channel(HeartbeatState::default());
        self.heartbeat_state = pulse.clone();
        let (work, vitals) = (Arc::clone(&self.worker), Arc::clone(&self.report));
        self.background.spawn(heartbeat::run(work, self.owner, vitals, sender, self.stop_heartbeat.clone()));
        self.background.spawn(retry_worker::run(Arc::clone(&self.worker), pulse, self.stop_work.clone()));
        self.background.spawn(prune::run(Arc::clone(&self.worker), self.stop_work.clone()));
        if let Some(every) = self.worker.config.lag_interval {
            let (work, consumer) = (Arc::clone(&self.worker), Arc::clone(&self.consumer));
            self.background.spawn(lag::run(work, consumer, every, self.stop_work.clone()));
        }
    }

    /// Starts every task that can start, waits for one event and reacts to it. Dropping the future at any point is
    /// safe.
    async fn step(&mut self) -> Result<(), ConsumerError> {
        // A store and a broker that respond immediately must not starve other tasks, timers and signals.
        tokio::task::consume_budget().await;
        let now = Instant::now();
        self.wake_sleeping(now);
        self.start_lane_call(now);
        self.dispatch(now);
        self.start_acks(now);
        self.start_receiving(now);
        self.update_report(now);
        let wake = self.wakes_at(now);
        let work = Arc::clone(&self.worker);
        tokio::select! {
            biased; // rare events first, so that busy workers do not starve them
            Some(ended) = self.background.join_next() => ended.map_err(ConsumerError::Panicked)??,
            Ok(()) = self.heartbeat_state.changed() => self.apply_controls(),
            chored = poll(&mut self.lane_call) => { self.lane_call = None; self.apply_lane_call(chored)?; }
            settled = self.acks.finished() => self.apply_acks(settled),
            received = poll(&mut self.receiving) => { self.receiving = None; self.apply_received(received)?; }
            Some(worked) = self.workers.join_next() => self.apply_batch(worked.map_err(ConsumerError::Panicked)?)?,
            () = work.breakers.changed.notified() => {}
            () = sleep_until(wake) => {}
        }
        Ok(())
    }

    /// Applies the operator controls from the last heartbeat reply.
    fn apply_controls(&mut self) {
        let pulse = self.heartbeat_state.borrow_and_update().clone();
        self.store_failures = 0;
        self.worker.breakers.set_overrides(&pulse.reply.breaker_overrides);
        if pulse.expirations != self.expirations {
            self.expirations = pulse.expirations;
            // Deliveries in memory are kept: the inbox records what another member did with them. The store may still
            // assign a lane to this member. It releases such a lane later; releasing another member's lane has no
            // effect.
            let doubt = UncertainLease::new(Instant::now(), self.worker.config.heartbeat_ttl);
            for (lane, state) in self.lanes.map.iter_mut().filter(|(_, state)| !state.is_empty()) {
                if state.lease.take().is_some() {
                    self.uncertain_leases.insert(lane.clone(), doubt);
                }
            }
        }
    }

    fn start_receiving(&mut self, now: Instant) {
        if self.receiving.is_some() || !self.may_receive() || now < self.receive_at.max(self.store_available_at) {
            return;
        }
        let room = self.worker.config.in_memory_messages_max - self.lanes.len();
        let (consumer, limit) = (Arc::clone(&self.consumer), room.min(self.worker.config.receive_batch_max));
        self.receiving = Some(Box::pin(async move { consumer.receive(limit).await }));
    }

    fn may_receive(&self) -> bool {
        let pulse = self.heartbeat_state.borrow();
        // After an outage, receiving resumes only when a worker or the heartbeat has reached the database again.
        let is_back = self.store_failures == 0;
        is_back
            && pulse.heartbeats > 0
            && !pulse.reply.paused
            && self.lanes.len() < self.worker.config.in_memory_messages_max
    }

    fn apply_received(&mut self, received: Result<Vec<Delivery>, Failure>) -> Result<(), ConsumerError> {
        let now = Instant::now();
        match received {
            Ok(deliveries) if deliveries.is_empty() => Err(ConsumerError::Closed),
            Ok(deliveries) => {
                self.receive_failures = 0;
                set(&self.worker.status.receive_failures, 0);
                self.report.lock().last_message_at = Some(self.worker.config.clock.now());
                add(&self.worker.status.received, deliveries.len());
                for delivery in deliveries {
                    self.buffer(delivery, now);
                }
                Ok(())
            }
            Err(failure) => {
                add(&self.worker.status.broker_outages, 1);
                let pause = self.worker.config.outage(self.receive_failures);
                warn!(error = %failure.error_chain(), ?pause, "nothing can be received, will try again");
                self.receive_failures += 1;
                set(&self.worker.status.receive_failures, self.receive_failures as usize);
                self.receive_at = now + pause;
                Ok(())
            }
        }
    }

    fn buffer(&mut self, delivery: Delivery, now: Instant) {
        let config = &self.worker.config;
        let retries = delivery.retry_count;
        let mut item = self.worker.decoder.decode_delivery(config, delivery);
        if let Ok(incoming) = &item.incoming {
            let expired = is_expired(incoming.message.created_at, config.clock.now(), config.keeping.done);
            let registered = self.worker.handler(incoming);
            item.attempts = self.worker.attempts_after_broker_retries(registered, retries);
            let inside = registered.is_none_or(crate::handler::Registration::is_in_transaction);
            item.can_batch = !item.redelivered && inside && !expired;
            if let (Some(source), Some(seq)) = (&incoming.source, incoming.seq) {
                match self.sequence_tracker.check(source, &incoming.message.key, seq, item.redelivered) {
                    SequenceCheck::InOrder => {}
                    SequenceCheck::Repeat => add(&self.worker.status.sequence_repeats, 1),
                    SequenceCheck::OutOfOrder => item.out_of_order = true,
                }
            }
        }
        self.lanes.push(item, now);
    }

    /// Assigns messages to workers, one lane after the other.
    fn dispatch(&mut self, now: Instant) {
        let config = &self.worker.config;
        let (concurrency, by_key) = (config.order.concurrency(), config.order.is_by_key());
        while self.workers.len() < concurrency && now >= self.store_available_at {
            let pulse = self.heartbeat_state.borrow();
            let breakers = &self.worker.breakers;
            let flows = |lane: &Lane, held: bool| {
                (held || !by_key)
                    && pulse.allows(lane)
                    && !matches!(breakers.state(lane, now), BreakerState::OpenUntil(_))
            };
            let Some(lane) = self.lanes.next_lane(|lane, state| flows(lane, state.lease.is_some())) else { return };
            drop(pulse);
            let probe = breakers.state(&lane, now) == BreakerState::HalfOpen;
            if probe && !breakers.begin_probe(&lane) {
                continue; // another worker took the probe, so the gate is shut now
            }
            let state = self.lanes.map.get_mut(&lane).expect("it has its turn");
            let free = concurrency - self.workers.len();
            let most = self.worker.config.batch_max;
            let share = state.ready().div_ceil(free);
            let (size, deep) = match most {
                _ if probe => (1, 1),
                1 => (share.clamp(1, TURN_BATCH_MAX), TURN_BATCH_MAX),
                _ => (share.clamp(BATCH_MIN.min(most), most), most),
            };
            let (mut items, held) = (state.next_batch(size, deep), state.lease.clone().filter(|_| by_key));
            let work = Arc::clone(&self.worker);
            self.workers.spawn(async move {
                let ended = work.handle_live(&mut items, held.as_ref()).await;
                BatchResult { lane, lease: held, probe, deliveries: items, results: ended }
            });
        }
    }

    pub(crate) fn apply_batch(&mut self, worked: BatchResult) -> Result<(), ConsumerError> {
        let BatchResult { lane, lease: held, probe, deliveries: items, results: ended } = worked;
        let now = Instant::now();
        if probe {
            // After a success or an outage the breaker has released the probe already.
            self.worker.breakers.release_probe(&lane);
        }
        if !ended.iter().any(|ended| matches!(ended, DeliveryResult::Store(_))) {
            self.store_failures = 0;
        }
        // If several messages of a queue return, the first one decides when the queue continues.
        let mut queues: BTreeMap<ByteString, Option<Instant>> = BTreeMap::new();
        // Iterates backwards, so that messages of one queue return in their original order.
        for (mut item, ended) in items.into_iter().zip(ended).rev() {
            let queue = item.queue().clone();
            let until = match ended {
                DeliveryResult::Acknowledge => {
                    self.handled(item, None);
                    queues.entry(queue).or_default();
                    continue;
                }
                DeliveryResult::RetryLater(delay) => {
                    self.handled(item, Some(delay));
                    queues.entry(queue).or_default();
                    continue;
                }
                DeliveryResult::HandleAlone => None,
                DeliveryResult::RetryIn(pause) | DeliveryResult::Unavailable(pause) => Some(now + pause),
                DeliveryResult::Busy(pause) => {
                    add(&self.worker.status.busy, 1);
                    Some(now + pause)
                }
                DeliveryResult::Fenced => {
                    self.lane_fenced(&lane, held.as_ref(), now);
                    None
                }
                DeliveryResult::Store(error) => self.store_failed(error, &mut item.store_errors, now)?,
            };
            self.lane_queue(&lane).requeue(item);
            queues.insert(queue, until);
        }
        for (queue, until) in queues {
            self.lane_queue(&lane).finish_batch(&queue, until.is_some());
            if let Some(until) = until {
                self.next_sleeping += 1;
                self.sleeping.insert((until, self.next_sleeping), (lane.clone(), queue));
            }
        }
        Ok(())
    }

    fn handled(&mut self, item: PendingDelivery, delay: Option<Duration>) {
        if item.out_of_order {
            add(&self.worker.status.out_of_order, 1);
        }
        self.acks.push(item, delay, &self.worker.config.tracer);
    }

    fn lane_queue(&mut self, lane: &Lane) -> &mut LaneQueue {
        self.lanes.map.get_mut(lane).expect("a lane stays while a worker has some of it")
    }

    /// Drops the lane lease and acquires it again later. Deliveries in memory are kept.
    fn lane_fenced(&mut self, lane: &Lane, held: Option<&LaneLease>, now: Instant) {
        add(&self.worker.status.fenced, 1);
        let every = self.worker.config.lane_acquire_interval;
        let state = self.lane_queue(lane);
        if state.lease.as_ref() == held {
            warn!(%lane, "a lane is another member's now");
            state.lease = None;
            state.acquire_at = now + every;
        }
    }

    /// Reacts to a failed store call. If the database is unreachable, the consumer stops receiving and dispatching. If
    /// only one call about one message failed, only that message waits.
    pub(crate) fn store_failed(
        &mut self,
        error: StoreError,
        refused: &mut u32,
        now: Instant,
    ) -> Result<Option<Instant>, ConsumerError> {
        if !error.is_retryable() {
            return Err(ConsumerError::Store(error));
        }
        if matches!(error, StoreError::Unexpected(_)) {
            add(&self.worker.status.database_errors, 1);
            let pause = self.worker.config.outage(*refused);
            *refused += 1;
            warn!(error = &error as &dyn std::error::Error, ?pause, "the database refused a call, will try again");
            return Ok(Some(now + pause));
        }
        if now >= self.store_available_at {
            let pause = self.worker.config.outage(self.store_failures);
            add(&self.worker.status.database_outages, 1);
            warn!(error = &error as &dyn std::error::Error, ?pause, "the database is away, nothing more is taken");
            self.store_failures += 1;
            self.store_available_at = now + pause;
        }
        Ok(None)
    }

    fn wake_sleeping(&mut self, now: Instant) {
        while let Some(entry) = self.sleeping.first_entry()
            && entry.key().0 <= now
        {
            let (lane, queue) = entry.remove();
            if let Some(state) = self.lanes.map.get_mut(&lane) {
                state.wake(&queue);
            }
        }
    }

    /// Prepares the contents of the next heartbeat.
    fn update_report(&mut self, now: Instant) {
        set(&self.worker.status.buffered_messages, self.lanes.len());
        if now < self.report_at {
            return;
        }
        self.report_at = now + self.worker.config.heartbeat_interval / 4;
        // Without order several members work on a lane, and none of them knows the settled offset of all.
        let by_key = self.worker.config.order.is_by_key();
        let mark = |state: &LaneQueue| state.settled_offset.low_water().filter(|_| by_key);
        let held = self.lanes.map.iter().filter(|(_, state)| state.lease.is_some());
        self.report.lock().settled_offsets = held.map(|(lane, state)| (lane.clone(), mark(state))).collect();
    }

    fn wakes_at(&self, now: Instant) -> Instant {
        let mut wake = self.report_at;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                wake = wake.min(at);
            }
        };
        consider(self.sleeping.first_key_value().map(|((at, _), _)| *at));
        consider((now < self.store_available_at).then_some(self.store_available_at));
        consider(
            (self.receiving.is_none() && self.may_receive()).then_some(self.receive_at.max(self.store_available_at)),
        );
        consider(self.acks.wakes_at());
        consider(self.lane_call_wakes_at(now));
        consider(self.worker.breakers.wakes_at(now));
        // A task that is due may be blocked by another one: a short sleep avoids a busy loop.
        wake.max(now + Duration::from_millis(1))
    }
}

pub(crate) async fn poll<T>(pending: &mut Option<BoxedCall<T>>) -> T {
    match pending {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
