//! The consumer loop: each step waits for one event and reacts to it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use relevo_core::BrokerConsumer;
use relevo_core::inbox::Inbox;
use relevo_core::random::SplitMix64;
use relevo_core::store::StoreError;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::info;
use uuid::Uuid;

use crate::config::{Config, RetryStorage};
use crate::dispatch::{BatchResult, StoreHealth};
use crate::handle;
use crate::handler::Handlers;
use crate::heartbeat::{self, HeartbeatLink, HeartbeatState};
use crate::lane_leases::LaneLeases;
use crate::lane_queues::LaneQueues;
use crate::receive::Receiver;
use crate::settle::AckQueue;
use crate::status::{ConsumerStatus, RunStateGuard};
use crate::worker::Worker;
use crate::{lag, prune, retry_worker};

pub(crate) type BoxedCall<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Why a consumer stopped with an error, or could not start.
#[derive(Debug, thiserror::Error)]
pub enum ConsumerError {
    /// The configuration contradicts itself or the broker's capabilities.
    #[error("{0}")]
    Config(String),
    /// The store reported a permanent error for this consumer.
    #[error("the store reported a permanent error")]
    Store(#[source] StoreError),
    /// The broker's consumer was closed from outside the runtime.
    #[error("the broker's consumer was closed")]
    Closed,
    /// A task of the runtime panicked.
    #[error("a task of the consumer panicked")]
    Panicked(#[source] JoinError),
}

/// Order by key requires one consumer per lane, also across processes.
const UNORDERED_LANES: &str = "`order` is by key, and this queue is not `ordered`: two processes could handle messages of \
     one key at the same time; give the queue `ordered = true` or `lanes`, or set `order` to none";

/// A member of a consumer: receives messages from the broker and handles each one once.
pub struct ConsumerRuntime<I: Inbox> {
    pub(crate) worker: Arc<Worker<I>>,
    pub(crate) consumer: Arc<dyn BrokerConsumer>,
    pub(crate) owner: Uuid,
    pub(crate) receiver: Receiver,
    pub(crate) lanes: LaneQueues,
    pub(crate) leases: LaneLeases,
    pub(crate) workers: JoinSet<BatchResult>,
    pub(crate) acks: AckQueue,
    pub(crate) store_health: StoreHealth,
    pub(crate) heartbeat: HeartbeatLink,
    pub(crate) background: Background,
}

/// Tasks beside the loop: heartbeat, retry queues, pruning and lag. If one fails, the consumer stops.
#[derive(Default)]
pub(crate) struct Background {
    pub(crate) tasks: JoinSet<Result<(), ConsumerError>>,
    /// Stops the tasks that begin new work.
    pub(crate) stop_work: CancellationToken,
    /// Stops the heartbeat; cancelled last at shutdown.
    pub(crate) stop_heartbeat: CancellationToken,
}

impl<I: Inbox> ConsumerRuntime<I> {
    /// Creates a member that has not started. The name of the consumer and the retention are those of the inbox.
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
        mut config: Config,
        seed: u64,
    ) -> Self {
        config.batch_max = config.batch_max.min(inbox.batch_max());
        handle::install_panic_hook();
        let now = Instant::now();
        let mut random = SplitMix64::new(seed);
        let owner = random.uuid();
        Self {
            receiver: Receiver::new(&config, now),
            lanes: LaneQueues::default(),
            leases: LaneLeases::new(&config, now),
            workers: JoinSet::new(),
            acks: AckQueue::default(),
            store_health: StoreHealth::new(&config, now),
            heartbeat: HeartbeatLink::new(now),
            background: Background::default(),
            worker: Arc::new(Worker::new(inbox, handlers, config, random)),
            consumer,
            owner,
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
        let run_state = RunStateGuard::start(self.status());
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
        info!(consumer = self.worker.inbox.consumer(), name = %self.worker.config.member_name, "consumer stopped");
        let result = result.and(finished);
        if result.is_ok() {
            run_state.mark_stopped();
        }
        result
    }

    /// Checks the configuration against itself and the broker's capabilities.
    fn check(&self) -> Result<(), String> {
        let config = &self.worker.config;
        config.validate()?;
        if config.retry_storage == RetryStorage::Broker && self.consumer.delayed_retry().is_none() {
            return Err(
                "`retry_storage` is `Broker`, and this broker does not support delayed retries; use `Inbox`".to_owned()
            );
        }
        if config.order.is_by_key() && !self.consumer.capabilities().ordered_lanes {
            return Err(UNORDERED_LANES.to_owned());
        }
        Ok(())
    }

    fn start_background(&mut self) {
        let (sender, heartbeats) = watch::channel(HeartbeatState::default());
        self.heartbeat.state = heartbeats.clone();
        let Background { tasks, stop_work, stop_heartbeat } = &mut self.background;
        let worker = || Arc::clone(&self.worker);
        let report = Arc::clone(&self.heartbeat.report);
        tasks.spawn(heartbeat::run(worker(), self.owner, report, sender, stop_heartbeat.clone()));
        tasks.spawn(retry_worker::run(worker(), heartbeats, stop_work.clone()));
        tasks.spawn(prune::run(worker(), stop_work.clone()));
        if let Some(interval) = self.worker.config.lag_interval {
            tasks.spawn(lag::run(worker(), Arc::clone(&self.consumer), interval, stop_work.clone()));
        }
    }

    /// Starts every task that can start, waits for one event and reacts to it. Dropping the future at any point is
    /// safe.
    async fn step(&mut self) -> Result<(), ConsumerError> {
        // A store and a broker that respond immediately must not starve other tasks, timers and signals.
        tokio::task::consume_budget().await;
        let now = Instant::now();
        self.lanes.wake(now);
        self.start_lane_call(now);
        self.dispatch(now);
        self.start_acks(now);
        self.start_receiving(now);
        self.update_report(now);
        let wake = self.wakes_at(now);
        let worker = Arc::clone(&self.worker);
        tokio::select! {
            biased; // rare events first, so that busy workers do not starve them
            Some(ended) = self.background.tasks.join_next() => ended.map_err(ConsumerError::Panicked)??,
            Ok(()) = self.heartbeat.state.changed() => self.apply_controls(),
            result = poll(&mut self.leases.call) => { self.leases.call = None; self.apply_lane_call(result)?; }
            settled = self.acks.finished() => self.apply_acks(settled),
            received = poll(&mut self.receiver.call) => { self.receiver.call = None; self.apply_received(received)?; }
            Some(batch) = self.workers.join_next() => self.apply_batch(batch.map_err(ConsumerError::Panicked)?)?,
            () = worker.breakers.changed.notified() => {}
            () = sleep_until(wake) => {}
        }
        Ok(())
    }

    fn wakes_at(&self, now: Instant) -> Instant {
        let available_at = self.store_health.available_at;
        let times = [
            self.lanes.wakes_at(),
            (now < available_at).then_some(available_at),
            self.receive_wakes_at(),
            self.acks.wakes_at(),
            self.lane_call_wakes_at(now),
            self.worker.breakers.wakes_at(now),
        ];
        let wake = times.into_iter().flatten().fold(self.heartbeat.report_at, Instant::min);
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
