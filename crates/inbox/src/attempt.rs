//! One attempt to handle a message that this worker has claimed: a live message with an external call, or the first
//! message of a retry queue.

use std::time::Duration;

use relevo_core::Jitter;
use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::retries::{ClaimedQueue, classes};
use relevo_core::inbox::transactions::BeginOutcome;
use relevo_core::inbox::{DedupId, Inbox, InboxMessage, LaneLease};
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

/// The claim that keeps other workers from handling the same message.
#[derive(Clone, Copy)]
pub(crate) enum Fence<'a> {
    /// Claim of a live message for an external call.
    Call { lease: Option<&'a LaneLease>, claim: CallClaim },
    /// Claim of a retry queue, with the number of its first message.
    Queue { queue: &'a ClaimedQueue, ordinal: i64 },
}

pub(crate) enum AttemptEnd {
    Committed,
    Failed(HandlerError),
    /// The claim expired or belongs to another worker.
    Fenced,
    /// Another worker has locked the message. The handler did not run.
    Busy,
}

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
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
        let transaction = match self.begin(attempt).await? {
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
                Ok(AttemptEnd::Failed(error))
                    if error.kind != ErrorKind::Permanent && failures < COMMIT_RETRIES_MAX =>
                {
                    error.error.clone()
                }
                Err(error) if error.is_retryable() => error.to_string(),
                Ok(_) | Err(_) => return end,
            };
            let pause = backoff.next(Jitter::NONE);
            if Instant::now() + pause >= attempt.until {
                return end;
            }
            warn!(error, ?pause, "recording the call result failed, will retry");
            failures += 1;
            sleep(pause).await;
        }
    }

    async fn begin(&self, attempt: Attempt<'_>) -> Result<BeginOutcome<I::Transaction>, StoreError> {
        match attempt.fence {
            Fence::Call { lease, claim } => {
                self.store_call(self.inbox.begin_claimed(attempt.message, lease, claim)).await
            }
            Fence::Queue { queue, ordinal } => self.store_call(self.inbox.begin_due(queue, ordinal)).await,
        }
    }

    /// Begins the transaction for the result of a call; `None` if the lane or the claim belongs to another worker. The
    /// call was already made, so a busy or unreachable database is retried while the claim lasts.
    async fn begin_until_expired(&self, attempt: Attempt<'_>) -> Result<Option<I::Transaction>, StoreError> {
        let mut backoff = self.config.outage_backoff();
        loop {
            let pause: Duration = match self.begin(attempt).await {
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
        mut transaction: I::Transaction,
        id: DedupId,
        result: Result<Verdict, HandlerError>,
    ) -> Result<AttemptEnd, StoreError> {
        let verdict = match result {
            Ok(verdict) => verdict,
            Err(error) => {
                self.abort(Some(transaction), &error).await;
                return Ok(AttemptEnd::Failed(error));
            }
        };
        let committed = async {
            if verdict == Verdict::Skip {
                self.store_call(self.inbox.skip(&mut transaction, id)).await?;
            }
            self.store_call(self.inbox.commit(transaction)).await
        };
        match committed.await {
            Ok(()) => {
                self.count_verdict(verdict);
                Ok(AttemptEnd::Committed)
            }
            Err(error) => Self::commit_error(error).map(AttemptEnd::Failed),
        }
    }

    /// Separates a rejected commit, which concerns the handler's work, from other store errors.
    pub(crate) fn commit_error(error: StoreError) -> Result<HandlerError, StoreError> {
        match error {
            StoreError::Unexpected(error) => Ok(HandlerError::transient(error).with_class(classes::COMMIT)),
            error => Err(error),
        }
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
