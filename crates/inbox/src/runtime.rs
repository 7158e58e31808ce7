//! The consumer loop: each step waits for one event and reacts to it.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::inbox::retries::is_expired;
use relevo_core::inbox::{Held, Inbox};
use relevo_core::store::StoreError;
use relevo_core::{BrokerConsumer, Delivery, Failure, Lane};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::beat::{self, Pulse, SharedVitals};
use crate::breaker::Gate;
use crate::chores::{Chored, Doubt};
use crate::config::{Config, Durable};
use crate::handler::Handlers;
use crate::item::{Ended, Item};
use crate::lanes::{LaneState, Lanes};
use crate::phase::Life;
use crate::sequence::{Seen, Sequences};
use crate::settle::Settling;
use crate::stats::{Stats, add, set};
use crate::turns::TURNS_MAX;
use crate::work::Work;
use crate::{due, lag, panics, prune};
use relevo_core::random::SplitMix64;

pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Why a consumer stopped with an error, or could not start.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
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
    Died(#[source] JoinError),
}

/// Order by key requires one consumer per lane, also across processes.
const UNORDERED_LANES: &str = "`order` is by key, and this queue is not `ordered`: two processes could handle messages of \
     one key at the same time; give the queue `ordered = true` or `lanes`, or set `order` to none";

/// Minimum size of a batch in one transaction, if enough messages are available. It applies even if other workers are
/// free to take them.
const SHARE_MIN: usize = 16;

/// A member of a consumer: receives messages from the broker and handles each one once.
pub struct Runtime<I: Inbox> {
    pub(crate) work: Arc<Work<I>>,
    pub(crate) consumer: Arc<dyn BrokerConsumer>,
    pub(crate) owner: Uuid,
    pub(crate) lanes: Lanes,
    /// Queues whose first message is delayed.
    later: BTreeMap<(Instant, u64), (Lane, ByteString)>,
    next_later: u64,
    sequences: Sequences,
    pub(crate) workers: JoinSet<Worked>,
    /// Background tasks: heartbeat, retry table, pruning and lag. If one fails, the consumer stops.
    pub(crate) parts: JoinSet<Result<(), RuntimeError>>,
    /// Stops the tasks that begin new work.
    pub(crate) winding_down: CancellationToken,
    /// Stops the heartbeat; cancelled last at shutdown.
    pub(crate) resting: CancellationToken,
    pub(crate) vitals: Arc<SharedVitals>,
    pub(crate) pulse: watch::Receiver<Pulse>,
    deaths: u64,
    pub(crate) receiving: Option<Pending<Result<Vec<Delivery>, Failure>>>,
    receive_at: Instant,
    receive_failures: u32,
    pub(crate) settling: Settling,
    pub(crate) chore: Option<Pending<Chored>>,
    pub(crate) chore_at: Instant,
    pub(crate) chores_refused: u32,
    /// Lanes whose lease this member may hold without knowing it, because a reply was lost.
    pub(crate) doubted: BTreeMap<Lane, Doubt>,
    /// Lanes for which the broker may or may not have applied the last pause or resume.
    pub(crate) untold: BTreeSet<Lane>,
    /// Until this time the database counts as unreachable.
    pub(crate) store_at: Instant,
    store_failures: u32,
    /// When the contents of the next heartbeat are prepared again.
    tell_at: Instant,
}

/// The result that a worker returns.
pub(crate) struct Worked {
    lane: Lane,
    held: Option<Held>,
    probe: bool,
    items: Vec<Item>,
    ended: Vec<Ended>,
}

impl<I: Inbox + 'static> Runtime<I>
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
        panics::watch();
        let now = Instant::now();
        let mut random = SplitMix64::new(seed);
        let owner = random.uuid();
        let sequences = Sequences::new(config.sequence_keys_max);
        Self {
            work: Arc::new(Work::new(inbox, handlers, config, random)),
            consumer,
            owner,
            lanes: Lanes::default(),
            later: BTreeMap::new(),
            next_later: 0,
            sequences,
            workers: JoinSet::new(),
            parts: JoinSet::new(),
            winding_down: CancellationToken::new(),
            resting: CancellationToken::new(),
            vitals: Arc::default(),
            pulse: watch::Sender::new(Pulse::default()).subscribe(),
            deaths: 0,
            receiving: None,
            receive_at: now,
            receive_failures: 0,
            settling: Settling::new(),
            chore: None,
            chore_at: now,
            chores_refused: 0,
            doubted: BTreeMap::new(),
            untold: BTreeSet::new(),
            store_at: now,
            store_failures: 0,
            tell_at: now,
        }
    }

    /// Statistics of this member. They remain readable after it stopped.
    pub fn stats(&self) -> Arc<Stats> {
        Arc::clone(&self.work.stats)
    }

    /// Receives messages until `stop` is cancelled. Then it finishes running handlers within the grace period and
    /// returns all other messages to the broker immediately.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), RuntimeError> {
        self.check().map_err(RuntimeError::Config)?;
        let life = Life::begin(self.stats());
        self.start_parts();
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
        let finished = self.finish().await;
        info!(consumer = %self.work.config.consumer, name = %self.work.config.name, "consumer stopped");
        let ended = result.and(finished);
        if ended.is_ok() {
            life.was_told();
        }
        ended
    }

    /// Checks the configuration against itself and the broker's capabilities.
    fn check(&self) -> Result<(), String> {
        let config = &self.work.config;
        config.check()?;
        if config.durable == Durable::Broker && self.consumer.delayed_retry().is_none() {
            return Err(
                "`durable` is the broker, and this broker has no delayed retries: use the retry table".to_owned()
            );
        }
        if config.order.is_by_key() && !self.consumer.capabilities().ordered_lanes {
            return Err(UNORDERED_LANES.to_owned());
        }
        Ok(())
    }

    fn start_parts(&mut self) {
        let (sender, pulse) = watch::channel(Pulse::default());
        self.pulse = pulse.clone();
        let (work, vitals) = (Arc::clone(&self.work), Arc::clone(&self.vitals));
        self.parts.spawn(beat::run(work, self.owner, vitals, sender, self.resting.clone()));
        self.parts.spawn(due::run(Arc::clone(&self.work), pulse, self.winding_down.clone()));
        self.parts.spawn(prune::run(Arc::clone(&self.work), self.winding_down.clone()));
        if let Some(every) = self.work.config.lag_every {
            let (work, consumer) = (Arc::clone(&self.work), Arc::clone(&self.consumer));
            self.parts.spawn(lag::run(work, consumer, every, self.winding_down.clone()));
        }
    }

    /// Starts every task that can start, waits for one event and reacts to it. Dropping the future at any point is
    /// safe.
    async fn step(&mut self) -> Result<(), RuntimeError> {
        // A store and a broker that respond immediately must not starve other tasks, timers and signals.
        tokio::task::consume_budget().await;
        let now = Instant::now();
        self.wake_later(now);
        self.start_chore(now);
        self.dispatch(now);
        self.start_settling(now);
        self.start_receiving(now);
        self.tell(now);
        let wake = self.wakes_at(now);
        let work = Arc::clone(&self.work);
        tokio::select! {
            biased; // rare events first, so that busy workers do not starve them
            Some(ended) = self.parts.join_next() => ended.map_err(RuntimeError::Died)??,
            Ok(()) = self.pulse.changed() => self.ordered(),
            chored = poll(&mut self.chore) => { self.chore = None; self.chored(chored)?; }
            settled = self.settling.ended() => self.settled(settled),
            received = poll(&mut self.receiving) => { self.receiving = None; self.received(received)?; }
            Some(worked) = self.workers.join_next() => self.worked(worked.map_err(RuntimeError::Died)?)?,
            () = work.breakers.changed.notified() => {}
            () = sleep_until(wake) => {}
        }
        Ok(())
    }

    /// Applies the operator controls from the last heartbeat reply.
    fn ordered(&mut self) {
        let pulse = self.pulse.borrow_and_update().clone();
        self.store_failures = 0;
        self.work.breakers.force(&pulse.orders.forced);
        if pulse.deaths != self.deaths {
            self.deaths = pulse.deaths;
            // Deliveries in memory are kept: the inbox records what another member did with them. The store may still
            // assign a lane to this member. It releases such a lane later; releasing another member's lane has no
            // effect.
            let doubt = Doubt::new(Instant::now(), self.work.config.beat_lasts);
            for (lane, state) in self.lanes.map.iter_mut().filter(|(_, state)| !state.is_empty()) {
                if state.held.take().is_some() {
                    self.doubted.insert(lane.clone(), doubt);
                }
            }
        }
    }

    fn start_receiving(&mut self, now: Instant) {
        if self.receiving.is_some() || !self.may_receive() || now < self.receive_at.max(self.store_at) {
            return;
        }
        let room = self.work.config.in_memory_max - self.lanes.len();
        let (consumer, limit) = (Arc::clone(&self.consumer), room.min(self.work.config.receive_max));
        self.receiving = Some(Box::pin(async move { consumer.receive(limit).await }));
    }

    fn may_receive(&self) -> bool {
        let pulse = self.pulse.borrow();
        // After an outage, receiving resumes only when a worker or the heartbeat has reached the database again.
        let is_back = self.store_failures == 0;
        is_back && pulse.beats > 0 && !pulse.orders.paused && self.lanes.len() < self.work.config.in_memory_max
    }

    fn received(&mut self, received: Result<Vec<Delivery>, Failure>) -> Result<(), RuntimeError> {
        let now = Instant::now();
        match received {
            Ok(deliveries) if deliveries.is_empty() => Err(RuntimeError::Closed),
            Ok(deliveries) => {
                self.receive_failures = 0;
                set(&self.work.stats.receive_failures, 0);
                self.vitals.lock().last_message_at = Some(self.work.config.clock.now());
                add(&self.work.stats.received, deliveries.len());
                for delivery in deliveries {
                    self.came(delivery, now);
                }
                Ok(())
            }
            Err(failure) => {
                add(&self.work.stats.broker_away, 1);
                let pause = self.work.config.outage(self.receive_failures);
                warn!(error = %failure.describe(), ?pause, "nothing can be received, will try again");
                self.receive_failures += 1;
                set(&self.work.stats.receive_failures, self.receive_failures as usize);
                self.receive_at = now + pause;
                Ok(())
            }
        }
    }

    fn came(&mut self, delivery: Delivery, now: Instant) {
        let config = &self.work.config;
        let retries = delivery.retries;
        let mut item = self.work.decoder.item(config, delivery);
        if let Ok(incoming) = &item.incoming {
            let expired = is_expired(incoming.message.created_at, config.clock.now(), config.keeping.done);
            let registered = self.work.handler(incoming);
            item.attempts = self.work.attempts_before(registered, retries);
            let inside = registered.is_none_or(crate::handler::Registered::is_inside);
            item.shares = !item.redelivered && inside && !expired;
            if let (Some(source), Some(seq)) = (&incoming.source, incoming.seq) {
                match self.sequences.see(source, &incoming.message.key, seq, item.redelivered) {
                    Seen::Onward => {}
                    Seen::Repeat => add(&self.work.stats.repeats, 1),
                    Seen::Inverted => item.inverted = true,
                }
            }
        }
        self.lanes.push(item, now);
    }

    /// Assigns messages to workers, one lane after the other.
    fn dispatch(&mut self, now: Instant) {
        let config = &self.work.config;
        let (concurrency, by_key) = (config.order.concurrency(), config.order.is_by_key());
        while self.workers.len() < concurrency && now >= self.store_at {
            let pulse = self.pulse.borrow();
            let breakers = &self.work.breakers;
            let flows = |lane: &Lane, held: bool| {
                (held || !by_key) && pulse.allows(lane) && !matches!(breakers.gate(lane, now), Gate::Shut(_))
            };
            let Some(lane) = self.lanes.turn(|lane, state| flows(lane, state.held.is_some())) else { return };
            drop(pulse);
            let probe = breakers.gate(&lane, now) == Gate::Probe;
            if probe && !breakers.begin_probe(&lane) {
                continue; // another worker took the probe, so the gate is shut now
            }
            let state = self.lanes.map.get_mut(&lane).expect("it has its turn");
            let free = concurrency - self.workers.len();
            let most = self.work.config.batch_max;
            let share = state.ready().div_ceil(free);
            let (size, deep) = match most {
                _ if probe => (1, 1),
                1 => (share.clamp(1, TURNS_MAX), TURNS_MAX),
                _ => (share.clamp(SHARE_MIN.min(most), most), most),
            };
            let (mut items, held) = (state.next(size, deep), state.held.clone().filter(|_| by_key));
            let work = Arc::clone(&self.work);
            self.workers.spawn(async move {
                let ended = work.live(&mut items, held.as_ref()).await;
                Worked { lane, held, probe, items, ended }
            });
        }
    }

    pub(crate) fn worked(&mut self, worked: Worked) -> Result<(), RuntimeError> {
        let Worked { lane, held, probe, items, ended } = worked;
        let now = Instant::now();
        if probe {
            // After a success or an outage the breaker has released the probe already.
            self.work.breakers.undecided(&lane);
        }
        if !ended.iter().any(|ended| matches!(ended, Ended::Store(_))) {
            self.store_failures = 0;
        }
        // If several messages of a queue return, the first one decides when the queue continues.
        let mut queues: BTreeMap<ByteString, Option<Instant>> = BTreeMap::new();
        // Iterates backwards, so that messages of one queue return in their original order.
        for (mut item, ended) in items.into_iter().zip(ended).rev() {
            let queue = item.queue().clone();
            let until = match ended {
                Ended::Acknowledge => {
                    self.handled(item, None);
                    queues.entry(queue).or_default();
                    continue;
                }
                Ended::RetryLater(delay) => {
                    self.handled(item, Some(delay));
                    queues.entry(queue).or_default();
                    continue;
                }
                Ended::Alone => None,
                Ended::Again(pause) | Ended::Away(pause) => Some(now + pause),
                Ended::Busy(pause) => {
                    add(&self.work.stats.busy, 1);
                    Some(now + pause)
                }
                Ended::Lost => {
                    self.lost(&lane, held.as_ref(), now);
                    None
                }
                Ended::Store(error) => self.store_failed(error, &mut item.refused, now)?,
            };
            self.state(&lane).put_back(item);
            queues.insert(queue, until);
        }
        for (queue, until) in queues {
            self.state(&lane).ended(&queue, until.is_some());
            if let Some(until) = until {
                self.next_later += 1;
                self.later.insert((until, self.next_later), (lane.clone(), queue));
            }
        }
        Ok(())
    }

    fn handled(&mut self, item: Item, delay: Option<Duration>) {
        if item.inverted {
            add(&self.work.stats.inversions, 1);
        }
        self.settling.push(item, delay, &self.work.config.traces);
    }

    fn state(&mut self, lane: &Lane) -> &mut LaneState {
        self.lanes.map.get_mut(lane).expect("a lane stays while a worker has some of it")
    }

    /// Drops the lane lease and acquires it again later. Deliveries in memory are kept.
    fn lost(&mut self, lane: &Lane, held: Option<&Held>, now: Instant) {
        add(&self.work.stats.lost, 1);
        let every = self.work.config.lane_every;
        let state = self.state(lane);
        if state.held.as_ref() == held {
            warn!(%lane, "a lane is another member's now");
            state.held = None;
            state.take_at = now + every;
        }
    }

    /// Reacts to a failed store call. If the database is unreachable, the consumer stops receiving and dispatching. If
    /// only one call about one message failed, only that message waits.
    pub(crate) fn store_failed(
        &mut self,
        error: StoreError,
        refused: &mut u32,
        now: Instant,
    ) -> Result<Option<Instant>, RuntimeError> {
        if !error.is_passing() {
            return Err(RuntimeError::Store(error));
        }
        if matches!(error, StoreError::Broken(_)) {
            add(&self.work.stats.database_refused, 1);
            let pause = self.work.config.outage(*refused);
            *refused += 1;
            warn!(error = &error as &dyn std::error::Error, ?pause, "the database refused a call, will try again");
            return Ok(Some(now + pause));
        }
        if now >= self.store_at {
            let pause = self.work.config.outage(self.store_failures);
            add(&self.work.stats.database_away, 1);
            warn!(error = &error as &dyn std::error::Error, ?pause, "the database is away, nothing more is taken");
            self.store_failures += 1;
            self.store_at = now + pause;
        }
        Ok(None)
    }

    fn wake_later(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry()
            && entry.key().0 <= now
        {
            let (lane, queue) = entry.remove();
            if let Some(state) = self.lanes.map.get_mut(&lane) {
                state.wake(&queue);
            }
        }
    }

    /// Prepares the contents of the next heartbeat.
    fn tell(&mut self, now: Instant) {
        set(&self.work.stats.in_memory, self.lanes.len());
        if now < self.tell_at {
            return;
        }
        self.tell_at = now + self.work.config.beat_every / 4;
        // Without order several members work on a lane, and none of them knows the settled offset of all.
        let by_key = self.work.config.order.is_by_key();
        let mark = |state: &LaneState| state.marks.low_water().filter(|_| by_key);
        let held = self.lanes.map.iter().filter(|(_, state)| state.held.is_some());
        self.vitals.lock().marks = held.map(|(lane, state)| (lane.clone(), mark(state))).collect();
    }

    fn wakes_at(&self, now: Instant) -> Instant {
        let mut wake = self.tell_at;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                wake = wake.min(at);
            }
        };
        consider(self.later.first_key_value().map(|((at, _), _)| *at));
        consider((now < self.store_at).then_some(self.store_at));
        consider((self.receiving.is_none() && self.may_receive()).then_some(self.receive_at.max(self.store_at)));
        consider(self.settling.wakes_at());
        consider(self.chore_wakes_at(now));
        consider(self.work.breakers.wakes_at(now));
        // A task that is due may be blocked by another one: a short sleep avoids a busy loop.
        wake.max(now + Duration::from_millis(1))
    }
}

pub(crate) async fn poll<T>(pending: &mut Option<Pending<T>>) -> T {
    match pending {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
