//! Processes the retry table: claims due queues and runs the same handlers.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::retry_policy::RetryStep;
use relevo_core::inbox::transactions::BeginOutcome;
use relevo_core::inbox::{DedupId, Inbox, InboxMessage};
use relevo_core::store::StoreError;
use tokio::sync::{SemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::field::display;
use tracing::{debug, warn};

use crate::breaker::BreakerState;
use crate::error::{ErrorKind, HandlerError};
use crate::handler::HandlerKind;
use crate::heartbeat::HeartbeatState;
use crate::incoming::Incoming;
use crate::runtime::ConsumerError;
use crate::stats::add;
use crate::work::{Isolation, Worker};
use crate::worker::{Fence, WriteDown, Written};

/// Number of heartbeats before a paused lane is checked again. If every key of a paused lane were claimed at each
/// heartbeat, the keys of other lanes would have to wait.
const PAUSED_RECHECK_HEARTBEATS: u32 = 10;

/// Processes due queues until `stop` is cancelled. Running queues then end after their current message.
pub(crate) async fn run<I: Inbox + 'static>(
    work: Arc<Worker<I>>,
    pulse: watch::Receiver<HeartbeatState>,
    stop: CancellationToken,
) -> Result<(), ConsumerError>
where
    I::Transaction: 'static,
{
    let mut running: JoinSet<Result<(), StoreError>> = JoinSet::new();
    let mut failures = 0;
    while !stop.is_cancelled() {
        let pause = match claim_queues(&work, &pulse, &stop, &mut running).await {
            Ok(()) => work.config.retry_poll_interval,
            Err(error) => store_backoff(&work, error, &mut failures)?,
        };
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(ended) = running.join_next() => ended,
            () = sleep(pause) => continue,
        };
        match ended.map_err(ConsumerError::Panicked)? {
            Ok(()) => failures = 0,
            Err(error) => {
                let pause = store_backoff(&work, error, &mut failures)?;
                stop.run_until_cancelled(sleep(pause)).await;
            }
        }
    }
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended.map_err(ConsumerError::Panicked)? {
            warn!(error = &error as &dyn std::error::Error, "a queue of the retry table was left");
        }
    }
    Ok(())
}

/// Claims due queues up to the concurrency limit.
async fn claim_queues<I: Inbox + 'static>(
    work: &Arc<Worker<I>>,
    pulse: &watch::Receiver<HeartbeatState>,
    stop: &CancellationToken,
    running: &mut JoinSet<Result<(), StoreError>>,
) -> Result<(), StoreError>
where
    I::Transaction: 'static,
{
    // Claiming more queues than handlers can run would only block other members.
    let most = work.config.retry_queues_max.min(work.config.order.concurrency());
    let room = most - running.len();
    let allowed = {
        let pulse = pulse.borrow();
        pulse.heartbeats > 0 && !pulse.reply.paused
    };
    if room == 0 || !allowed {
        return Ok(());
    }
    let lasts = claim_ttl(work);
    let claimed = Instant::now();
    let found = work.store_call(work.inbox.claim_due(room, work.config.retry_batch_max, lasts)).await?;
    for due in found {
        let (work, pulse, stop) = (Arc::clone(work), pulse.clone(), stop.clone());
        let (until, token) = (claimed + lasts, due.token);
        work.open_claims.add_queue(&due);
        running.spawn(async move {
            let run =
                QueueRun { worker: &work, heartbeat_state: &pulse, stop: &stop, claimed: due, claimed_until: until };
            let ended = run.handle_and_release().await;
            // A queue that could not be released because of the stop is released at the end of the shutdown.
            if ended.is_ok() || !stop.is_cancelled() {
                work.open_claims.remove_queue(token);
            }
            ended
        });
    }
    Ok(())
}

/// A claim outlasts two of the slowest handlers, including the time to run alone and to commit.
fn claim_ttl<I: Inbox + 'static>(work: &Worker<I>) -> Duration
where
    I::Transaction: 'static,
{
    work.handlers.timeout_max(work.config.handler_timeout) * 4 + work.config.claim_margin
}

fn store_backoff<I: Inbox + 'static>(
    work: &Worker<I>,
    error: StoreError,
    failures: &mut u32,
) -> Result<Duration, ConsumerError>
where
    I::Transaction: 'static,
{
    if !error.is_retryable() {
        return Err(ConsumerError::Store(error));
    }
    let pause = work.config.outage(*failures);
    warn!(error = &error as &dyn std::error::Error, ?pause, "the retry table cannot be worked on, will try again");
    *failures += 1;
    Ok(pause)
}

/// One claimed queue.
struct QueueRun<'a, I: Inbox> {
    worker: &'a Worker<I>,
    heartbeat_state: &'a watch::Receiver<HeartbeatState>,
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
    /// The claim belongs to another worker, or the first message changed because an operator redrove or removed one. Or
    /// the wait for a lock took too long.
    Fenced,
}

/// Outcome of one attempt.
enum Tried {
    Done,
    Trouble(HandlerError),
    Lost,
    Busy,
}

impl<I: Inbox + 'static> QueueRun<'_, I>
where
    I::Transaction: 'static,
{
    /// Processes the queue and releases it while the claim lasts. Otherwise other members would wait until it expires,
    /// and the next start would look like one after a crash.
    async fn handle_and_release(&self) -> Result<(), StoreError> {
        match self.handle_messages().await {
            Ok(QueueStep::Ended) => Ok(()),
            Ok(QueueStep::Next | QueueStep::Fenced) => self.release().await,
            Err(error) if error.is_retryable() => {
                warn!(error = &error as &dyn std::error::Error, queue = %self.claimed.queue, "a queue of the retry table was left");
                self.release().await
            }
            Err(error) => Err(error),
        }
    }

    /// Handles its messages one after the other, as far as the claim allows.
    async fn handle_messages(&self) -> Result<QueueStep, StoreError> {
        for (index, waiting) in self.claimed.messages.iter().enumerate() {
            // Each external call is the first message of a claim. So no message was put before it, and its start is
            // counted durably.
            let goes_on = || !self.stop.is_cancelled() && self.has_time() && !self.is_call(&waiting.message);
            if index > 0 && !goes_on() {
                break;
            }
            // The store counted the start of the first message when it was claimed.
            let started = waiting.unfinished_starts + u32::from(index > 0);
            match self.handle_one(waiting.ordinal, &waiting.message, waiting.attempts, started).await? {
                QueueStep::Next => {}
                ended @ (QueueStep::Ended | QueueStep::Fenced) => return Ok(ended),
            }
        }
        Ok(QueueStep::Next)
    }

    /// Whether its handler calls an external service.
    fn is_call(&self, arrival: &InboxMessage) -> bool {
        let incoming = self.worker.decoder.decode_queued(&self.worker.config, arrival);
        let registered = incoming.ok().and_then(|incoming| self.worker.handler(&incoming));
        registered.is_some_and(|registered| !registered.is_in_transaction())
    }

    /// Releases the claim. Retries while rows are locked or the database is unreachable, as long as the claim lasts.
    async fn release(&self) -> Result<(), StoreError> {
        let mut failures = 0;
        loop {
            let pause = self.worker.config.outage(failures);
            let error = match self.worker.store_call(self.worker.inbox.release_queue(&self.claimed)).await {
                Err(error) if error.is_retryable() && Instant::now() + pause < self.claimed_until => error,
                given => return given,
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(error),
                () = sleep(pause) => failures += 1,
            }
        }
    }

    /// Whether the claim outlasts one more handler.
    fn has_time(&self) -> bool {
        Instant::now() < self.latest_start()
    }

    /// The latest time to begin a handler, so that the claim outlasts it.
    fn latest_start(&self) -> Instant {
        self.claimed_until - self.worker.handlers.timeout_max(self.worker.config.handler_timeout) * 2
    }

    async fn handle_one(
        &self,
        number: i64,
        arrival: &InboxMessage,
        attempts: u32,
        started: u32,
    ) -> Result<QueueStep, StoreError> {
        let now = Instant::now();
        let lane = &arrival.lane;
        if self.stop.is_cancelled() {
            return self.postpone_at_stop(number, attempts).await;
        }
        if !self.heartbeat_state.borrow().allows(lane) {
            let pause = self.worker.config.heartbeat_interval * PAUSED_RECHECK_HEARTBEATS;
            return self.postpone(number, attempts, pause, "paused", "its lane is paused").await;
        }
        let probe = match self.worker.breakers.state(lane, now) {
            BreakerState::Closed => false,
            BreakerState::HalfOpen if self.worker.breakers.begin_probe(lane) => true,
            BreakerState::HalfOpen => {
                let pause = self.worker.config.breaker.base;
                return self.postpone(number, attempts, pause, "away", "another message probes its lane").await;
            }
            BreakerState::OpenUntil(until) => {
                let pause = until.duration_since(now).min(self.worker.config.breaker.max);
                return self.postpone(number, attempts, pause, "away", "what its handler needs is away").await;
            }
        };
        let result = self.attempt_with_permit(number, arrival, attempts, started).await;
        if probe {
            self.worker.breakers.release_probe(lane);
        }
        result
    }

    async fn attempt_with_permit(
        &self,
        number: i64,
        arrival: &InboxMessage,
        attempts: u32,
        started: u32,
    ) -> Result<QueueStep, StoreError> {
        let mut incoming = match self.worker.decoder.decode_queued(&self.worker.config, arrival) {
            Ok(incoming) => incoming,
            Err(why) => return self.dead_letter(number, arrival, None, attempts, HandlerError::undecodable(why)).await,
        };
        incoming.attempt = attempts + 1;
        if started > self.worker.config.starts_max {
            return self
                .dead_letter(number, arrival, Some(&incoming), attempts, Worker::<I>::crash_error(started))
                .await;
        }
        let Some(_turn) = self.permit_in_time(started).await else {
            if self.stop.is_cancelled() {
                return self.postpone_at_stop(number, attempts).await;
            }
            add(&self.worker.status.busy, 1);
            let (pause, why) = (self.worker.config.busy_delay, "others were waited for");
            return self.postpone(number, attempts, pause, "busy", why).await;
        };
        loop {
            match self.attempt(number, &incoming).await? {
                Tried::Done => {
                    self.worker.breakers.record_success(&arrival.lane);
                    return Ok(QueueStep::Next);
                }
                Tried::Trouble(trouble) => {
                    return self.on_failure(number, arrival, &incoming, attempts, trouble).await;
                }
                Tried::Lost => {
                    add(&self.worker.status.fenced, 1);
                    return Ok(QueueStep::Fenced);
                }
                Tried::Busy if self.stop.is_cancelled() => return self.postpone_at_stop(number, attempts).await,
                Tried::Busy if self.has_time() => {
                    add(&self.worker.status.busy, 1);
                    self.stop.run_until_cancelled(sleep(self.worker.config.busy_delay)).await;
                }
                Tried::Busy => return Ok(QueueStep::Fenced),
            }
        }
    }

    /// Acquires a handler permit and the isolation lock. It gives up while the claim is still valid: soon after,
    /// another worker may have the queue and make the same call.
    async fn permit_in_time(&self, started: u32) -> Option<(SemaphorePermit<'_>, Isolation<'_>)> {
        let turn = async { Some((self.worker.permit().await?, self.worker.isolate(started).await)) };
        let turn = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            turn = timeout_at(self.latest_start(), turn) => turn.ok().flatten(),
        };
        turn.filter(|_| self.has_time())
    }

    /// The claim of the queue prevents other workers from making the same call.
    async fn attempt(&self, number: i64, incoming: &Incoming) -> Result<Tried, StoreError> {
        let work = self.worker;
        let registered = work.handler(incoming);
        let entry = DedupId { id: incoming.id(), replay: incoming.replay };
        if let Some(registered) = registered
            && let HandlerKind::Call(handler) = &registered.kind
        {
            let answered = match work.process_call(registered, &**handler, incoming).await {
                Ok(answered) => answered,
                Err(trouble) => return Ok(Tried::Trouble(trouble)),
            };
            let fence = Fence::Queue { due: &self.claimed, number };
            let job = WriteDown { registered, handler: &**handler, incoming, entry, fence, until: self.claimed_until };
            return Ok(match work.record_call_result(job, answered).await? {
                Written::Done => Tried::Done,
                Written::Trouble(trouble) => Tried::Trouble(trouble),
                Written::Lost => Tried::Lost,
            });
        }
        let mut transaction = match work.store_call(work.inbox.begin_due(&self.claimed, number)).await? {
            BeginOutcome::Open(transaction, _) => transaction,
            BeginOutcome::Fenced => return Ok(Tried::Lost),
            BeginOutcome::Busy => return Ok(Tried::Busy),
        };
        let handled = work.process(registered, &mut transaction, incoming).await;
        Ok(match work.end_transaction(transaction, entry, handled).await? {
            Ok(()) => Tried::Done,
            Err(trouble) => Tried::Trouble(trouble),
        })
    }

    async fn on_failure(
        &self,
        number: i64,
        arrival: &InboxMessage,
        incoming: &Incoming,
        attempts: u32,
        trouble: HandlerError,
    ) -> Result<QueueStep, StoreError> {
        let work = self.worker;
        if trouble.kind == ErrorKind::Unavailable {
            let after = work.handler_outage(arrival, &trouble);
            return self
                .record_failure(
                    number,
                    arrival,
                    Some(incoming),
                    trouble.into_failure(InboxFailureAction::Retry { after }, attempts),
                )
                .await;
        }
        let attempts = attempts + 1;
        let trace_id = work.trace_id(Some(incoming)).map(display);
        warn!(message_id = %incoming.id(), trace_id, attempt = attempts, error = %trouble, "a handler failed");
        work.count_failure(arrival);
        let step = match trouble.kind {
            ErrorKind::Transient => work.retry_policy(work.handler(incoming)).decide(attempts, work.jitter()),
            ErrorKind::Permanent | ErrorKind::Unavailable => RetryStep::DeadLetter,
        };
        match step {
            // It stays in the retry table, even for a short pause.
            RetryStep::InMemory(after) | RetryStep::Durable(after) => {
                add(&work.status.retried_later, 1);
                self.record_failure(
                    number,
                    arrival,
                    Some(incoming),
                    trouble.into_failure(InboxFailureAction::Retry { after }, attempts),
                )
                .await
            }
            RetryStep::DeadLetter => self.dead_letter(number, arrival, Some(incoming), attempts, trouble).await,
        }
    }

    async fn dead_letter(
        &self,
        number: i64,
        arrival: &InboxMessage,
        incoming: Option<&Incoming>,
        attempts: u32,
        trouble: HandlerError,
    ) -> Result<QueueStep, StoreError> {
        let after_dead = self.worker.after_dead(incoming.and_then(|incoming| self.worker.handler(incoming)));
        let setback = trouble.into_failure(self.worker.dead_letter_action(after_dead), attempts);
        self.record_failure(number, arrival, incoming, setback).await
    }

    async fn record_failure(
        &self,
        number: i64,
        arrival: &InboxMessage,
        incoming: Option<&Incoming>,
        setback: InboxFailure,
    ) -> Result<QueueStep, StoreError> {
        if !self.try_record_failure(number, &setback).await? {
            return Ok(QueueStep::Fenced);
        }
        self.worker.failure_recorded(arrival, incoming, &setback).await;
        Ok(if setback.action == InboxFailureAction::DeadContinue { QueueStep::Next } else { QueueStep::Ended })
    }

    async fn postpone_at_stop(&self, number: i64, attempts: u32) -> Result<QueueStep, StoreError> {
        self.postpone(number, attempts, Duration::ZERO, "stopped", "the process was stopped").await
    }

    /// Postpones a message that was not attempted: its attempts stay unchanged.
    async fn postpone(
        &self,
        number: i64,
        attempts: u32,
        after: Duration,
        class: &'static str,
        why: &str,
    ) -> Result<QueueStep, StoreError> {
        debug!(queue = %self.claimed.queue, why, ?after, "a queue of the retry table is put off");
        let stop = InboxFailureAction::Postpone { after };
        let setback = InboxFailure { action: stop, attempts, class, error: why.to_owned(), backtrace: None };
        Ok(if self.try_record_failure(number, &setback).await? { QueueStep::Ended } else { QueueStep::Fenced })
    }

    /// Returns `false` if the claim belongs to another worker, or another message is now the first.
    async fn try_record_failure(&self, number: i64, setback: &InboxFailure) -> Result<bool, StoreError> {
        loop {
            match self.worker.store_call(self.worker.inbox.set_back_due(&self.claimed, number, setback)).await? {
                RecordOutcome::Recorded => return Ok(true),
                RecordOutcome::Duplicate(_) | RecordOutcome::Fenced => {
                    add(&self.worker.status.fenced, 1);
                    return Ok(false);
                }
                RecordOutcome::Busy if Instant::now() < self.claimed_until => {
                    sleep(self.worker.config.busy_delay).await;
                }
                RecordOutcome::Busy => return Ok(false),
            }
        }
    }
}
