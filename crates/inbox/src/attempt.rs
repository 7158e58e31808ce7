//! One attempt to handle a message that this worker has claimed: a live message with an external call, or the first
//! message of a retry queue.

use std::slice;
use std::time::Duration;

use relevo_core::Jitter;
use relevo_core::inbox::retries::classes;
use relevo_core::inbox::transactions::{BeginOutcome, CommitAndBegin, CommitOutcome};
use relevo_core::inbox::{DedupId, Fence, Inbox, InboxMessage};
use relevo_core::store::StoreError;
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::error::{ErrorKind, HandlerError, Verdict};
use crate::handle::CallResult;
use crate::handler::{DynCall, HandlerKind, Registration};
use crate::incoming::Incoming;
use crate::status::add;
use crate::worker::Worker;

/// How often the handler or the database may reject a call result before the attempt counts as failed.
const COMMIT_RETRIES_MAX: u32 = 5;

/// A claimed message and the claim under which its transaction is opened.
#[derive(Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) message: &'a InboxMessage,
    pub(crate) incoming: &'a Incoming,
    pub(crate) fence: Fence<'a>,
    /// When the claim expires.
    pub(crate) until: Instant,
}

pub(crate) enum AttemptEnd {
    Committed,
    Failed(HandlerError),
    /// The claim expired or belongs to another worker.
    Fenced,
    /// Another worker blocked the message. Nothing was committed, and no attempt counts.
    Busy,
}

impl<I: Inbox> Worker<I> {
    /// Calls the external service, if the handler has one, then begins, handles and commits.
    pub(crate) async fn attempt(&self, attempt: Attempt<'_>) -> Result<AttemptEnd, StoreError> {
        if let Some(registration) = self.handler(attempt.incoming)
            && let HandlerKind::Call(handler) = &registration.kind
        {
            return match self.call(registration, &**handler, attempt.incoming).await {
                Ok(result) => self.commit_call_result(attempt, registration, &**handler, result).await,
                Err(error) => Ok(AttemptEnd::Failed(error)),
            };
        }
        let transaction = match self.begin(slice::from_ref(attempt.message), attempt.fence).await? {
            BeginOutcome::Open(transaction, _) => transaction,
            BeginOutcome::Fenced => return Ok(AttemptEnd::Fenced),
            BeginOutcome::Busy => return Ok(AttemptEnd::Busy),
        };
        match self.handle(transaction, attempt.incoming).await {
            Ok((transaction, verdict)) => {
                self.end_transaction(transaction, attempt.message.dedup_id, Ok(verdict)).await
            }
            Err((transaction, error)) => {
                self.abort(transaction, &error).await;
                Ok(AttemptEnd::Failed(error))
            }
        }
    }

    /// Commits the result of a call. A transient failure is retried with the same result while the claim lasts, because
    /// a new attempt would repeat the external call.
    async fn commit_call_result(
        &self,
        attempt: Attempt<'_>,
        registration: &Registration<I::Transaction>,
        handler: &dyn DynCall<I::Transaction>,
        mut result: CallResult,
    ) -> Result<AttemptEnd, StoreError> {
        let mut backoff = self.config.outage_backoff();
        let mut failures = 0;
        loop {
            let Some(mut transaction) = self.begin_until_expired(attempt).await? else {
                return Ok(AttemptEnd::Fenced);
            };
            let stored =
                self.store_call_result(registration, handler, &mut transaction, attempt.incoming, &mut result).await;
            let end = self.end_transaction(transaction, attempt.message.dedup_id, stored).await;
            let error = match &end {
                Ok(AttemptEnd::Busy) => "another transaction blocked it".to_owned(),
                Ok(AttemptEnd::Failed(error))
                    if error.kind != ErrorKind::Permanent && failures < COMMIT_RETRIES_MAX =>
                {
                    failures += 1;
                    error.error.clone()
                }
                Err(error) if error.is_retryable() => error.to_string(),
                Ok(_) | Err(_) => return end,
            };
            let pause = backoff.next(Jitter::NONE);
            if Instant::now() + pause >= attempt.until {
                // After `Busy` the caller would attempt again under this claim and repeat the call.
                return if matches!(end, Ok(AttemptEnd::Busy)) { Ok(AttemptEnd::Fenced) } else { end };
            }
            warn!(error, ?pause, "recording the call result failed, will retry");
            sleep(pause).await;
        }
    }

    /// Begins a transaction. Contention is an outcome, not an error: it concerns these messages only.
    pub(crate) async fn begin(
        &self,
        messages: &[InboxMessage],
        fence: Fence<'_>,
    ) -> Result<BeginOutcome<I::Transaction>, StoreError> {
        busy_begin(self.store_call(self.inbox.begin(messages, fence)).await)
    }

    pub(crate) async fn commit(&self, tx: I::Transaction, skipped: &[DedupId]) -> Result<CommitOutcome, StoreError> {
        stale_commit(self.store_call(self.inbox.commit(tx, skipped)).await)
    }

    pub(crate) async fn commit_and_begin(
        &self,
        tx: I::Transaction,
        skipped: &[DedupId],
        next: &[InboxMessage],
        fence: Fence<'_>,
    ) -> Result<CommitAndBegin<I::Transaction>, StoreError> {
        match self.store_call(self.inbox.commit_and_begin(tx, skipped, next, fence)).await {
            Ok((outcome, begun)) => Ok((outcome, begun.map(busy_begin))),
            Err(error) => Ok((stale_commit(Err(error))?, None)),
        }
    }

    /// Begins the transaction for the result of a call; `None` if the lane or the claim belongs to another worker. The
    /// call was already made, so a busy or unreachable database is retried while the claim lasts.
    async fn begin_until_expired(&self, attempt: Attempt<'_>) -> Result<Option<I::Transaction>, StoreError> {
        let mut backoff = self.config.outage_backoff();
        loop {
            let pause: Duration = match self.begin(slice::from_ref(attempt.message), attempt.fence).await {
                Ok(BeginOutcome::Open(transaction, _)) => return Ok(Some(transaction)),
                Ok(BeginOutcome::Fenced) => return Ok(None),
                Ok(BeginOutcome::Busy) => self.config.busy_delay,
                Err(error) if error.is_retryable() && Instant::now() < attempt.until => backoff.next(Jitter::NONE),
                Err(error) => return Err(error),
            };
            if Instant::now() + pause > attempt.until {
                return Ok(None);
            }
            sleep(pause).await;
        }
    }

    /// Commits a successful attempt or rolls a failed one back. If a commit succeeded despite an error, the next
    /// attempt finds a duplicate.
    async fn end_transaction(
        &self,
        tx: I::Transaction,
        id: DedupId,
        result: Result<Verdict, HandlerError>,
    ) -> Result<AttemptEnd, StoreError> {
        let verdict = match result {
            Ok(verdict) => verdict,
            Err(error) => {
                self.abort(Some(tx), &error).await;
                return Ok(AttemptEnd::Failed(error));
            }
        };
        Ok(match self.commit(tx, verdict.skipped(&id)).await? {
            CommitOutcome::Committed => {
                self.count_verdict(verdict);
                AttemptEnd::Committed
            }
            CommitOutcome::Stale => AttemptEnd::Busy,
            CommitOutcome::Fenced => AttemptEnd::Fenced,
            CommitOutcome::Rejected { permanent, error } => AttemptEnd::Failed(rejected_commit(permanent, error)),
        })
    }

    /// Ends the transaction of a failed attempt, unless the handler keeps it.
    pub(crate) async fn abort(&self, transaction: Option<I::Transaction>, error: &HandlerError) {
        let Some(transaction) = transaction else { return };
        if error.class == classes::TIMEOUT {
            // The connection may still execute a statement. Dropping the transaction rolls it back without waiting.
            drop(transaction);
        } else if let Err(error) = self.store_call(self.inbox.rollback(transaction)).await {
            // Uncommitted work has no effect, even if the rollback did not reach the database.
            warn!(error = &error as &dyn std::error::Error, "rollback failed, transaction dropped");
        }
    }

    pub(crate) fn count_verdict(&self, verdict: Verdict) {
        match verdict {
            Verdict::Done => add(&self.status.done, 1),
            Verdict::Skip => add(&self.status.skipped, 1),
        }
    }
}

fn busy_begin<T>(begun: Result<BeginOutcome<T>, StoreError>) -> Result<BeginOutcome<T>, StoreError> {
    match begun {
        Err(StoreError::Busy { .. }) => Ok(BeginOutcome::Busy),
        begun => begun,
    }
}

fn stale_commit(committed: Result<CommitOutcome, StoreError>) -> Result<CommitOutcome, StoreError> {
    match committed {
        Err(StoreError::Busy { .. }) => Ok(CommitOutcome::Stale),
        committed => committed,
    }
}

/// The failed attempt of a handler whose work the database rejected at commit.
pub(crate) fn rejected_commit(permanent: bool, error: Box<dyn std::error::Error + Send + Sync>) -> HandlerError {
    let error = if permanent { HandlerError::permanent(error) } else { HandlerError::transient(error) };
    error.with_class(classes::COMMIT)
}
