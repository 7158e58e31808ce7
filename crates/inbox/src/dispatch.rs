//! Gives buffered deliveries to workers, and applies the results that the workers return.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::inbox::{Inbox, LaneLease};
use relevo_core::retry::ExponentialBackoff;
use relevo_core::store::StoreError;
use relevo_core::{Jitter, Lane};
use tokio::time::Instant;
use tracing::warn;

use crate::breaker::BreakerState;
use crate::config::{Config, RetryStorage};
use crate::delivery::{DeliveryResult, PendingDelivery, UnrecordedFailure};
use crate::lane_queues::LaneQueue;
use crate::live::TURN_BATCH_MAX;
use crate::runtime::{ConsumerError, ConsumerRuntime};
use crate::status::{ConsumerStatus, add};

/// Minimum size of a batch in one transaction, if enough messages are available. It applies even if other workers are
/// free to take them.
const BATCH_MIN: usize = 16;

/// The result that a worker returns.
pub(crate) struct BatchResult {
    lane: Lane,
    lease: Option<LaneLease>,
    probe: bool,
    deliveries: Vec<PendingDelivery>,
    results: Vec<DeliveryResult>,
}

/// Whether the database is reachable.
pub(crate) struct StoreHealth {
    /// Until this time the database counts as unreachable.
    pub(crate) available_at: Instant,
    backoff: ExponentialBackoff,
    is_down: bool,
}

impl StoreHealth {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        Self { available_at: now, backoff: config.outage_backoff(), is_down: false }
    }

    /// Whether no call has succeeded since the last outage.
    pub(crate) const fn is_down(&self) -> bool {
        self.is_down
    }

    pub(crate) fn succeeded(&mut self) {
        self.is_down = false;
        self.backoff.reset();
    }

    /// Reacts to a failed store call. If the database is unreachable, the consumer stops receiving and dispatching. If
    /// only one call failed, only its subject waits, until the returned time by its own backoff.
    pub(crate) fn failed(
        &mut self,
        error: StoreError,
        call_backoff: &mut ExponentialBackoff,
        status: &ConsumerStatus,
        now: Instant,
    ) -> Result<Option<Instant>, ConsumerError> {
        if !error.is_retryable() {
            return Err(ConsumerError::Store(error));
        }
        let retry_after = match &error {
            StoreError::Busy { retry_after, .. } => Some(retry_after.unwrap_or_default()),
            StoreError::Unexpected(_) => Some(Duration::ZERO),
            _ => None,
        };
        if let Some(retry_after) = retry_after {
            add(&status.database_errors, 1);
            let pause = call_backoff.next(Jitter::NONE).max(retry_after);
            warn!(error = &error as &dyn std::error::Error, ?pause, "database call failed, will retry");
            return Ok(Some(now + pause));
        }
        if now >= self.available_at {
            add(&status.database_outages, 1);
            let pause = self.backoff.next(Jitter::NONE);
            warn!(error = &error as &dyn std::error::Error, ?pause, "database unreachable, receiving paused");
            self.is_down = true;
            self.available_at = now + pause;
        }
        Ok(None)
    }
}

impl<I: Inbox> ConsumerRuntime<I> {
    /// Assigns messages to workers, one lane after the other.
    pub(crate) fn dispatch(&mut self, now: Instant) {
        let config = &self.worker.config;
        let (concurrency, by_key) = (config.order.concurrency(), config.order.is_by_key());
        while self.workers.len() < concurrency && now >= self.store_health.available_at {
            let heartbeat = self.heartbeat.state.borrow();
            let breakers = &self.worker.breakers;
            let may_handle = |lane: &Lane, queue: &LaneQueue| {
                (queue.lease.is_some() || !by_key)
                    && heartbeat.allows(lane)
                    && !matches!(breakers.state(lane, now), BreakerState::OpenUntil(_))
            };
            let Some(lane) = self.lanes.next_lane(may_handle) else { return };
            drop(heartbeat);
            let probe = breakers.state(&lane, now) == BreakerState::HalfOpen;
            if probe && !breakers.begin_probe(&lane) {
                continue; // another worker began the probe, so the breaker is open now
            }
            let queue = self.lanes.map.get_mut(&lane).expect("the next lane exists");
            let free = concurrency - self.workers.len();
            let share = queue.ready().div_ceil(free);
            let (size, from_first_key) = match self.worker.config.batch_max {
                _ if probe => (1, 1),
                1 => (share.clamp(1, TURN_BATCH_MAX), TURN_BATCH_MAX),
                max => (share.clamp(BATCH_MIN.min(max), max), max),
            };
            let mut deliveries = queue.next_batch(size, from_first_key);
            let lease = queue.lease.clone().filter(|_| by_key);
            let worker = Arc::clone(&self.worker);
            self.workers.spawn(async move {
                let results = worker.handle_live(&mut deliveries, lease.as_ref()).await;
                BatchResult { lane, lease, probe, deliveries, results }
            });
        }
    }

    pub(crate) fn apply_batch(&mut self, batch: BatchResult) -> Result<(), ConsumerError> {
        let BatchResult { lane, lease, probe, deliveries, results } = batch;
        let now = Instant::now();
        if probe {
            // After a success or an outage the breaker has released the probe already.
            self.worker.breakers.release_probe(&lane);
        }
        if !results.iter().any(|result| matches!(result, DeliveryResult::Store(_))) {
            self.store_health.succeeded();
        }
        // If several messages of a queue return, the first one decides when the queue continues.
        let mut queues: BTreeMap<ByteString, Option<Instant>> = BTreeMap::new();
        // Iterates backwards, so that messages of one queue return in their original order.
        for (mut delivery, result) in deliveries.into_iter().zip(results).rev() {
            let queue = delivery.queue().clone();
            let until = match result {
                DeliveryResult::Acknowledge => {
                    self.settle(delivery, None);
                    queues.entry(queue).or_default();
                    continue;
                }
                DeliveryResult::RetryLater(delay) => {
                    self.settle(delivery, Some(delay));
                    queues.entry(queue).or_default();
                    continue;
                }
                DeliveryResult::HandleAlone => None,
                DeliveryResult::RetryIn(_, failure) if self.is_lane_stalled(&lane, &queue) => {
                    add(&self.worker.status.retried_later, 1);
                    delivery.unrecorded_failure = Some(UnrecordedFailure { failure, claim: None });
                    None
                }
                DeliveryResult::RetryIn(pause, _) => {
                    add(&self.worker.status.retried_in_memory, 1);
                    Some(now + pause)
                }
                DeliveryResult::Unavailable(pause) => Some(now + pause),
                DeliveryResult::Busy(pause) => {
                    add(&self.worker.status.busy, 1);
                    Some(now + pause)
                }
                DeliveryResult::Fenced => {
                    self.lane_fenced(&lane, lease.as_ref(), now);
                    None
                }
                DeliveryResult::Store(error) => {
                    self.store_health.failed(error, &mut delivery.store_backoff, &self.worker.status, now)?
                }
            };
            self.lane_queue(&lane).requeue(delivery);
            queues.insert(queue, until);
        }
        for (queue, until) in queues {
            self.lane_queue(&lane).finish_batch(&queue, until.is_some());
            if let Some(until) = until {
                self.lanes.sleep_until(until, lane.clone(), queue);
            }
        }
        Ok(())
    }

    /// Whether a retry in memory would hold up the other keys of the lane, because this message and the others that wait
    /// take more than half of its prefetch. From the retry table the broker's deliveries are acknowledged.
    fn is_lane_stalled(&mut self, lane: &Lane, queue: &ByteString) -> bool {
        let prefetch = self.consumer.capabilities().prefetch;
        let waiting = self.lane_queue(lane).stalled(queue) + 1;
        self.worker.config.retry_storage == RetryStorage::Inbox && waiting > prefetch / 2
    }

    fn settle(&mut self, delivery: PendingDelivery, delay: Option<Duration>) {
        if delivery.out_of_order {
            add(&self.worker.status.out_of_order, 1);
        }
        self.acks.push(delivery, delay, &self.worker.config);
    }

    fn lane_queue(&mut self, lane: &Lane) -> &mut LaneQueue {
        self.lanes.map.get_mut(lane).expect("a lane exists while a worker has its messages")
    }

    /// Drops the lane lease and acquires it again later. Deliveries in memory are kept.
    fn lane_fenced(&mut self, lane: &Lane, lease: Option<&LaneLease>, now: Instant) {
        add(&self.worker.status.fenced, 1);
        let interval = self.worker.config.lane_acquire_interval;
        let queue = self.lane_queue(lane);
        if queue.lease.as_ref() == lease {
            warn!(%lane, "lane lease lost to another member");
            queue.lease = None;
            queue.acquire_at = now + interval;
        }
    }
}
