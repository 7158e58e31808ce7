//! State and store calls shared by the workers of live messages and of the retry table.

use std::sync::Arc;

use parking_lot::Mutex;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction};
use relevo_core::inbox::transactions::EnterOutcome;
use relevo_core::inbox::{DedupId, Inbox, InboxMessage};
use relevo_core::store::StoreError;
use relevo_core::{AfterDead, Jitter};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use tracing::field::display;
use tracing::warn;
use uuid::Uuid;

use crate::attempt::TIMEOUT;
use crate::breaker::Breakers;
use crate::config::Config;
use crate::dead_letter_copy;
use crate::decode::Decoder;
use crate::delivery::PendingDelivery;
use crate::error::{HandlerError, Verdict};
use crate::handler::Handlers;
use crate::incoming::Incoming;
use crate::stats::{ConsumerStatus, add};
use crate::unended::OpenClaims;
use relevo_core::random::SplitMix64;

/// State shared by all workers.
pub(crate) struct Worker<I: Inbox> {
    pub(crate) inbox: Arc<I>,
    pub(crate) handlers: Handlers<I::Transaction>,
    pub(crate) config: Config,
    pub(crate) status: Arc<ConsumerStatus>,
    pub(crate) decoder: Decoder,
    pub(crate) breakers: Breakers,
    pub(crate) open_claims: OpenClaims,
    random: Mutex<SplitMix64>,
    /// Limits how many handlers run at once, live messages and the retry table together.
    permits: Semaphore,
    /// Isolation lock: every running handler holds it for reading, one that must run alone holds it for writing.
    isolation_lock: RwLock<()>,
}

/// Isolation of a handler: others may run beside it, or it runs alone.
#[expect(dead_code, reason = "it is held, not read")]
pub(crate) enum Isolation<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Exclusive(RwLockWriteGuard<'a, ()>),
}

/// Error class of handler work that the database rejected at commit.
const COMMIT: &str = "commit";

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
    pub(crate) fn new(inbox: Arc<I>, handlers: Handlers<I::Transaction>, config: Config, random: SplitMix64) -> Self {
        let status = Arc::new(ConsumerStatus::new(&config));
        Self {
            inbox,
            handlers,
            decoder: Decoder::new(&config),
            breakers: Breakers::new(config.breaker.clone(), Arc::clone(&status)),
            status,
            open_claims: OpenClaims::default(),
            permits: Semaphore::new(config.order.concurrency()),
            config,
            random: Mutex::new(random),
            isolation_lock: RwLock::new(()),
        }
    }

    /// Makes a store call within the configured timeout.
    pub(crate) async fn store_call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.store_call_until(Instant::now() + self.config.store_timeout, call).await
    }

    pub(crate) async fn store_call_until<T>(
        &self,
        end: Instant,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let late = |_| Err(StoreError::Unavailable("it did not answer in time".into()));
        timeout_at(end, call).await.unwrap_or_else(late)
    }

    /// Waits for a permit to run a handler, first come, first served. Returns `None` when the consumer shuts down.
    /// Acquire the permit before [`company`](Self::isolate), never after it: a handler that must run alone waits for
    /// every handler that already has a permit.
    pub(crate) async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        self.permits.acquire().await.ok()
    }

    /// Cancels all waits for a permit.
    pub(crate) fn close_permits(&self) {
        self.permits.close();
    }

    /// A message whose earlier starts did not end may have crashed the process; its handler runs alone.
    pub(crate) async fn isolate(&self, started: u32) -> Isolation<'_> {
        if started >= 2 {
            Isolation::Exclusive(self.isolation_lock.write().await)
        } else {
            Isolation::Shared(self.isolation_lock.read().await)
        }
    }

    /// Commits with this verdict. The inner error means that the database rejected the handler's work. If the commit
    /// succeeded despite the error, the next attempt finds a duplicate.
    pub(crate) async fn commit(
        &self,
        mut transaction: I::Transaction,
        entry: DedupId,
        verdict: Verdict,
    ) -> Result<Result<(), HandlerError>, StoreError> {
        let committed = async {
            if verdict == Verdict::Skip {
                self.store_call(self.inbox.skip(&mut transaction, entry)).await?;
            }
            self.store_call(self.inbox.commit(transaction)).await
        };
        match committed.await {
            Ok(()) => {
                self.count_verdict(verdict);
                Ok(Ok(()))
            }
            Err(error) => Self::commit_error(error).map(Err),
        }
    }

    /// Separates a rejected commit, which concerns the handler's work, from other store errors.
    pub(crate) fn commit_error(error: StoreError) -> Result<HandlerError, StoreError> {
        match error {
            StoreError::Unexpected(error) => Ok(HandlerError::transient(error).with_class(COMMIT)),
            error => Err(error),
        }
    }

    /// Ends the transaction of a failed attempt.
    pub(crate) async fn abort(&self, transaction: I::Transaction, trouble: &HandlerError) {
        if trouble.class == TIMEOUT {
            // The connection may still execute a statement. Dropping the transaction rolls it back without waiting.
            drop(transaction);
        } else if let Err(error) = self.store_call(self.inbox.rollback(transaction)).await {
            // Uncommitted work has no effect, even if the rollback did not reach the database.
            warn!(error = &error as &dyn std::error::Error, "a transaction was dropped, not rolled back");
        }
    }

    /// How a message is dead-lettered. Without order no message waits behind it, so its queue is not held.
    pub(crate) const fn dead_letter_action(&self, after_dead: AfterDead) -> InboxFailureAction {
        match after_dead {
            AfterDead::Hold if self.config.order.is_by_key() => InboxFailureAction::DeadHold,
            AfterDead::Hold | AfterDead::Continue => InboxFailureAction::DeadContinue,
        }
    }

    /// The error of a message whose handling crashed the process too often.
    pub(crate) fn crash_error(started: u32) -> HandlerError {
        let error = format!("its handling was begun {} times and never ended", started - 1);
        HandlerError::permanent(error).with_class(HandlerError::CRASH)
    }

    /// After the store recorded a failure: counts it, logs it and publishes a copy of a dead letter if configured.
    pub(crate) async fn failure_recorded(
        &self,
        arrival: &InboxMessage,
        incoming: Option<&Incoming>,
        setback: &InboxFailure,
    ) {
        let (message_id, trace_id) = (arrival.dedup_id.id, self.trace_id(incoming).map(display));
        if let InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } = setback.action {
            warn!(%message_id, trace_id, attempts = setback.attempts, error = setback.error, ?after, "a message waits to be tried again");
            return;
        }
        tracing::error!(%message_id, trace_id, attempts = setback.attempts, class = setback.class, error = setback.error, "a message is a dead letter");
        add(&self.status.dead_lettered, 1);
        match setback.class {
            HandlerError::UNDECODABLE => add(&self.status.undecodable, 1),
            HandlerError::CRASH => add(&self.status.crashed, 1),
            HandlerError::EXPIRED => add(&self.status.expired, 1),
            _ => {}
        }
        let id = self.random_id();
        dead_letter_copy::publish(&self.config, &self.status, id, arrival, incoming, setback).await;
    }

    /// A handler reported an outage: opens the lane's breaker and returns the pause.
    pub(crate) fn handler_outage(&self, arrival: &InboxMessage, trouble: &HandlerError) -> std::time::Duration {
        add(&self.status.handler_outages, 1);
        let jitter = self.jitter();
        let pause = self.breakers.record_outage(&arrival.lane, &trouble.error, Instant::now(), jitter);
        warn!(lane = %arrival.lane, error = trouble.error, ?pause, "what a handler needs is away, its lane pauses");
        pause
    }

    /// Counts and logs a failed attempt. The failure is not an outage, so the breaker closes.
    pub(crate) fn log_failure(&self, item: &PendingDelivery, trouble: &HandlerError) {
        let (message_id, attempt) = (item.message.dedup_id.id, item.attempts);
        let trace_id = self.trace_id(item.incoming.as_ref().ok()).map(display);
        warn!(%message_id, trace_id, attempt, error = %trouble, "a handler failed");
        self.count_failure(&item.message);
    }

    pub(crate) fn count_failure(&self, arrival: &InboxMessage) {
        add(&self.status.handler_failures, 1);
        self.breakers.record_success(&arrival.lane);
    }

    pub(crate) fn count_verdict(&self, verdict: Verdict) {
        match verdict {
            Verdict::Done => add(&self.status.done, 1),
            Verdict::Skip => add(&self.status.skipped, 1),
        }
    }

    /// Counts a message that was entered, but not as a new one.
    pub(crate) fn count_not_new(&self, item: &mut PendingDelivery, entered: EnterOutcome) {
        match entered {
            EnterOutcome::New => {}
            EnterOutcome::Duplicate(_) => {
                add(&self.status.duplicates, 1);
                if std::mem::take(&mut item.out_of_order) {
                    add(&self.status.sequence_repeats, 1);
                }
            }
            EnterOutcome::QueuedBehind => add(&self.status.queued_behind, 1),
        }
    }

    pub(crate) fn jitter(&self) -> Jitter {
        self.lock_random().jitter()
    }

    pub(crate) fn random_id(&self) -> Uuid {
        self.lock_random().uuid()
    }

    fn lock_random(&self) -> parking_lot::MutexGuard<'_, SplitMix64> {
        // No code panics while it holds this lock.
        self.random.lock()
    }
}
