//! Polls retry queues that are due, and handles the messages of each within its claim.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::Jitter;
use relevo_core::inbox::retries::{
    ClaimedQueue, InboxFailure, InboxFailureAction, QueuedMessage, RecordOutcome, classes,
};
use relevo_core::inbox::{Fence, Inbox, InboxMessage};
use relevo_core::retry::ExponentialBackoff;
use relevo_core::store::StoreError;
use tokio::sync::{SemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::attempt::{Attempt, AttemptEnd};
use crate::breaker::BreakerState;
use crate::error::HandlerError;
use crate::failure::Decision;
use crate::heartbeat::HeartbeatState;
use crate::incoming::Incoming;
use crate::runtime::ConsumerError;
use crate::status::add;
use crate::worker::{Isolation, Worker};

/// Number of heartbeats before a paused lane is checked again. If every key of a paused lane were claimed at each
/// heartbeat, the keys of other lanes would have to wait.
const PAUSED_RECHECK_HEARTBEATS: u32 = 10;

/// Handles due queues until `stop` is cancelled. Running queues then end after their current message.
pub(crate) async fn run<I: Inbox>(
    worker: Arc<Worker<I>>,
    heartbeats: watch::Receiver<HeartbeatState>,
    stop: CancellationToken,
) -> Result<(), ConsumerError> {
    let mut running: JoinSet<Result<(), StoreError>> = JoinSet::new();
    let mut backoff = worker.config.outage_backoff();
    while !stop.is_cancelled() {
        let pause = match claim_queues(&worker, &heartbeats, &stop, &mut running).await {
            Ok(()) => worker.config.retry_poll_interval,
            Err(error) => next_pause(error, &mut backoff)?,
        };
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = running.join_next() => ended,
            () = sleep(pause) => continue,
        };
        match ended.map_err(ConsumerError::Panicked)? {
            Ok(()) => backoff.reset(),
            // The other queues are not affected.
            Err(error @ StoreError::Busy { .. }) => log_not_released(&error),
            Err(error) => {
                let pause = next_pause(error, &mut backoff)?;
                stop.run_until_cancelled(sleep(pause)).await;
            }
        }
    }
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended.map_err(ConsumerError::Panicked)? {
            log_not_released(&error);
        }
    }
    Ok(())
}

/// Claims due queues up to the concurrency limit.
async fn claim_queues<I: Inbox>(
    worker: &Arc<Worker<I>>,
    heartbeats: &watch::Receiver<HeartbeatState>,
    stop: &CancellationToken,
    running: &mut JoinSet<Result<(), StoreError>>,
) -> Result<(), StoreError> {
    // Claiming more queues than handlers can run would only block other members.
    let limit = worker.config.retry_queues_max.min(worker.config.order.concurrency());
    let room = limit - running.len();
    let allowed = {
        let state = heartbeats.borrow();
        state.heartbeats > 0 && !state.reply.paused
    };
    if room == 0 || !allowed {
        return Ok(());
    }
    // A claim outlasts two of the slowest handlers, including the time to run alone and to commit.
    let ttl = worker.handlers.timeout_max(worker.config.handler_timeout) * 4 + worker.config.claim_margin;
    let claimed_until = Instant::now() + ttl;
    let found = worker.store_call(worker.inbox.claim_due(room, worker.config.retry_batch_max, ttl)).await?;
    for claimed in found {
        let (worker, heartbeats, stop) = (Arc::clone(worker), heartbeats.clone(), stop.clone());
        let token = claimed.claim.token;
        worker.open_claims.add_queue(&claimed.claim);
        running.spawn(async move {
            let run = QueueRun { worker: &worker, heartbeats: &heartbeats, stop: &stop, claimed, claimed_until };
            let result = run.handle_and_release().await;
            // A queue that could not be released because of the stop is released at the end of the shutdown.
            if result.is_ok() || !stop.is_cancelled() {
                worker.open_claims.remove_queue(token);
            }
            result
        });
    }
    Ok(())
}

fn log_not_released(error: &StoreError) {
    warn!(error = error as &dyn std::error::Error, "retry queue not released");
}

fn next_pause(error: StoreError, backoff: &mut ExponentialBackoff) -> Result<Duration, ConsumerError> {
    if !error.is_retryable() {
        return Err(ConsumerError::Store(error));
    }
    let pause = backoff.next(Jitter::NONE);
    warn!(error = &error as &dyn std::error::Error, ?pause, "retry queues unavailable, will retry");
    Ok(pause)
}

/// One claimed queue.
struct QueueRun<'a, I: Inbox> {
    worker: &'a Worker<I>,
    heartbeats: &'a watch::Receiver<HeartbeatState>,
    stop: &'a CancellationToken,
    claimed: ClaimedQueue,
    /// When the claim expires.
    claimed_until: Instant,
}

/// How the queue continues after a message.
enum QueueStep {
    Next,
    /// The claim has ended.
    Ended,
    /// The claim belongs to another worker, an operator's redrive or removal changed the first message, or the wait for a
    /// lock took too long.
    Fenced,
}

impl<I: Inbox> QueueRun<'_, I> {
    /// Handles the queue and releases it while the claim lasts. Otherwise other members would wait until it expires,
    /// and the next start would look like one after a crash.
    async fn handle_and_release(&self) -> Result<(), StoreError> {
        match self.handle_messages().await {
            Ok(QueueStep::Ended) => Ok(()),
            Ok(QueueStep::Next | QueueStep::Fenced) => self.release().await,
            Err(error) if error.is_retryable() => {
                warn!(error = &error as &dyn std::error::Error, queue = %self.claimed.claim.queue, "retry queue interrupted");
                self.release().await
            }
            Err(error) => Err(error),
        }
    }

    /// Handles its messages one after the other, as far as the claim allows.
    async fn handle_messages(&self) -> Result<QueueStep, StoreError> {
        for (index, queued) in self.claimed.messages.iter().enumerate() {
            // Each external call is the first message of a claim. So no message was put before it, and its start is
            // counted durably.
            let continues = || !self.stop.is_cancelled() && self.has_time() && !self.is_call(&queued.message);
            if index > 0 && !continues() {
                break;
            }
            // The store counted the start of the first message when it was claimed.
            let starts = queued.unfinished_starts + u32::from(index > 0);
            match self.handle_one(queued, starts).await? {
                QueueStep::Next => {}
                step @ (QueueStep::Ended | QueueStep::Fenced) => return Ok(step),
            }
        }
        Ok(QueueStep::Next)
    }

    fn fence(&self, queued: &QueuedMessage) -> Fence<'_> {
        Fence::Queue { claim: &self.claimed.claim, ordinal: queued.ordinal }
    }

    /// Whether its handler calls an external service.
    fn is_call(&self, message: &InboxMessage) -> bool {
        let incoming = self.worker.decoder.decode_queued(&self.worker.config, message);
        let registration = incoming.ok().and_then(|incoming| self.worker.handler(&incoming));
        registration.is_some_and(|registration| !registration.is_in_transaction())
    }

    /// Releases the claim. Retries while rows are locked or the database is unreachable, as long as the claim lasts.
    async fn release(&self) -> Result<(), StoreError> {
        let release = || self.worker.inbox.release_queue(&self.claimed.claim);
        self.worker.retry_store_call(self.claimed_until, self.stop, release).await
    }

    /// Whether the claim outlasts one more handler.
    fn has_time(&self) -> bool {
        Instant::now() < self.latest_start()
    }

    /// The latest time to begin a handler, so that the claim outlasts it.
    fn latest_start(&self) -> Instant {
        self.claimed_until - self.worker.handlers.timeout_max(self.worker.config.handler_timeout) * 2
    }

    async fn handle_one(&self, queued: &QueuedMessage, starts: u32) -> Result<QueueStep, StoreError> {
        let now = Instant::now();
        let (lane, config) = (&queued.message.lane, &self.worker.config);
        if self.stop.is_cancelled() {
            return self.postpone_at_stop(queued).await;
        }
        if !self.heartbeats.borrow().allows(lane) {
            let pause = config.heartbeat_interval * PAUSED_RECHECK_HEARTBEATS;
            return self.postpone(queued, pause, classes::PAUSED, "its lane is paused").await;
        }
        let probe = match self.worker.breakers.state(lane, now) {
            BreakerState::Closed => false,
            BreakerState::HalfOpen if self.worker.breakers.begin_probe(lane) => true,
            BreakerState::HalfOpen => {
                let reason = "another message probes its lane";
                return self.postpone(queued, config.breaker.base, classes::OUTAGE, reason).await;
            }
            BreakerState::OpenUntil(until) => {
                let pause = until.duration_since(now).min(config.breaker.max);
                return self.postpone(queued, pause, classes::OUTAGE, "the breaker of its lane is open").await;
            }
        };
        let result = self.attempt_with_permit(queued, starts).await;
        if probe {
            self.worker.breakers.release_probe(lane);
        }
        result
    }

    async fn attempt_with_permit(&self, queued: &QueuedMessage, starts: u32) -> Result<QueueStep, StoreError> {
        let worker = self.worker;
        let mut incoming = match worker.decoder.decode_queued(&worker.config, &queued.message) {
            Ok(incoming) => incoming,
            Err(reason) => {
                return self.dead_letter(queued, None, HandlerError::undecodable(reason)).await;
            }
        };
        incoming.attempt = queued.message.attempts + 1;
        if starts > worker.config.starts_max {
            let error = Worker::<I>::crash_error(starts);
            return self.dead_letter(queued, Some(&incoming), error).await;
        }
        let Some(_permit) = self.permit_in_time(starts).await else {
            if self.stop.is_cancelled() {
                return self.postpone_at_stop(queued).await;
            }
            add(&worker.status.busy, 1);
            let reason = "other handlers did not end in time";
            return self.postpone(queued, worker.config.busy_delay, classes::BUSY, reason).await;
        };
        let attempt = Attempt {
            message: &queued.message,
            incoming: &incoming,
            fence: self.fence(queued),
            until: self.claimed_until,
        };
        loop {
            match worker.attempt(attempt).await? {
                AttemptEnd::Committed => {
                    worker.breakers.record_success(&queued.message.lane);
                    return Ok(QueueStep::Next);
                }
                AttemptEnd::Failed(error) => return self.on_failure(queued, &incoming, error).await,
                AttemptEnd::Fenced => {
                    add(&worker.status.fenced, 1);
                    return Ok(QueueStep::Fenced);
                }
                AttemptEnd::Busy if self.stop.is_cancelled() => return self.postpone_at_stop(queued).await,
                AttemptEnd::Busy if self.has_time() => {
                    add(&worker.status.busy, 1);
                    self.stop.run_until_cancelled(sleep(worker.config.busy_delay)).await;
                }
                AttemptEnd::Busy => return Ok(QueueStep::Fenced),
            }
        }
    }

    /// Acquires a handler permit and the isolation lock. It stops waiting while the claim is still valid: soon after,
    /// another worker may have the queue and make the same call.
    async fn permit_in_time(&self, starts: u32) -> Option<(SemaphorePermit<'_>, Isolation<'_>)> {
        let permit = async { Some((self.worker.permit().await?, self.worker.isolate(starts).await)) };
        let permit = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            permit = timeout_at(self.latest_start(), permit) => permit.ok().flatten(),
        };
        permit.filter(|_| self.has_time())
    }

    async fn on_failure(
        &self,
        queued: &QueuedMessage,
        incoming: &Incoming,
        error: HandlerError,
    ) -> Result<QueueStep, StoreError> {
        let (worker, mut message) = (self.worker, queued.message.clone());
        let action = match worker.count_failure(&mut message, incoming, &error) {
            Some(after) => InboxFailureAction::Retry { after },
            None => match worker.decide(incoming, &error, message.attempts, worker.jitter()) {
                // It stays in the retry queue, even for a short pause.
                Decision::RetryInMemory(after)
                | Decision::RetryAtBroker(after)
                | Decision::Record(InboxFailureAction::Retry { after }) => {
                    add(&worker.status.retried_later, 1);
                    InboxFailureAction::Retry { after }
                }
                Decision::Record(action) => action,
            },
        };
        self.record_failure(queued, Some(incoming), error.into_failure(action, message.attempts)).await
    }

    async fn dead_letter(
        &self,
        queued: &QueuedMessage,
        incoming: Option<&Incoming>,
        error: HandlerError,
    ) -> Result<QueueStep, StoreError> {
        let failure = error.into_failure(self.worker.dead_letter_action(incoming), queued.message.attempts);
        self.record_failure(queued, incoming, failure).await
    }

    async fn record_failure(
        &self,
        queued: &QueuedMessage,
        incoming: Option<&Incoming>,
        failure: InboxFailure,
    ) -> Result<QueueStep, StoreError> {
        if !self.try_record_failure(queued, &failure).await? {
            return Ok(QueueStep::Fenced);
        }
        self.worker.failure_recorded(&queued.message, incoming, &failure).await;
        let continues = failure.action == InboxFailureAction::DeadLetter(AfterDead::Continue);
        Ok(if continues { QueueStep::Next } else { QueueStep::Ended })
    }

    async fn postpone_at_stop(&self, queued: &QueuedMessage) -> Result<QueueStep, StoreError> {
        self.postpone(queued, Duration::ZERO, classes::STOPPED, "the process was stopped").await
    }

    /// Postpones a message that was not attempted: its attempts stay unchanged.
    async fn postpone(
        &self,
        queued: &QueuedMessage,
        after: Duration,
        class: &'static str,
        reason: &str,
    ) -> Result<QueueStep, StoreError> {
        debug!(queue = %self.claimed.claim.queue, reason, ?after, "retry queue postponed");
        let failure = InboxFailure {
            action: InboxFailureAction::Postpone { after },
            attempts: queued.message.attempts,
            class,
            error: reason.to_owned(),
            backtrace: None,
        };
        Ok(if self.try_record_failure(queued, &failure).await? { QueueStep::Ended } else { QueueStep::Fenced })
    }

    /// Returns `false` if the claim belongs to another worker, or another message is now the first.
    async fn try_record_failure(&self, queued: &QueuedMessage, failure: &InboxFailure) -> Result<bool, StoreError> {
        let worker = self.worker;
        loop {
            match worker.record(&queued.message, self.fence(queued), failure).await? {
                RecordOutcome::Recorded => return Ok(true),
                RecordOutcome::Duplicate(_) | RecordOutcome::Fenced => {
                    add(&worker.status.fenced, 1);
                    return Ok(false);
                }
                RecordOutcome::Busy if Instant::now() < self.claimed_until => sleep(worker.config.busy_delay).await,
                RecordOutcome::Busy => return Ok(false),
            }
        }
    }
}
