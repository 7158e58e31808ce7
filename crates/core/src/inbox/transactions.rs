//! Entering messages and opening the transaction in which a handler runs.

use std::error::Error;

use async_trait::async_trait;

use super::{DedupId, Fence, InboxMessage, InboxState};
use crate::outbox::transaction::StoreTransaction;
use crate::store::StoreError;

/// The result of entering one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnterOutcome {
    /// Handle it. It is done if the transaction commits.
    New,
    /// It was entered before. Only acknowledge it.
    Duplicate(InboxState),
    /// Its queue waits in the retry table. If the transaction commits, the message waits there too, behind the others.
    QueuedBehind,
}

/// The result of opening a transaction for a handler.
#[derive(Debug)]
pub enum BeginOutcome<T> {
    /// The transaction, and the result for each message in order.
    Open(T, Vec<EnterOutcome>),
    /// Another member owns the lane or the claim now. Nothing was changed.
    Fenced,
    /// Another worker has one of the messages, or its queue, in an open transaction. Nothing was changed. This is a
    /// delay and does not count as an attempt.
    Busy,
}

/// How a commit ended. Except after [`Committed`](Self::Committed), nothing of the transaction happened.
#[derive(Debug)]
pub enum CommitOutcome {
    /// The handler's effect and the inbox rows are stored.
    Committed,
    /// What `begin` reported no longer holds: another worker handled a message, or another transaction blocked the
    /// commit. Begin again. No attempt counts.
    Stale,
    /// Another member owns the lane or the claim now.
    Fenced,
    /// The database rejected the handler's own writes.
    Rejected {
        /// Whether every later attempt fails too, for example because there are too many writes.
        permanent: bool,
        /// The reason.
        error: Box<dyn Error + Send + Sync>,
    },
}

/// The result of [`InboxTransactions::commit_and_begin`]: how the commit ended, and the next transaction. The second
/// part is `None` if the transaction was not committed; then nothing was begun.
pub type CommitAndBegin<T> = (CommitOutcome, Option<Result<BeginOutcome<T>, StoreError>>);

/// Transactions in which handlers run.
#[async_trait]
pub trait InboxTransactions: Send + Sync {
    /// The transaction in which a handler runs.
    type Transaction: StoreTransaction + 'static;

    /// Opens a transaction and enters messages in it. Several messages are entered with [`Fence::Live`] only. Waits for
    /// other workers only for a short time.
    ///
    /// The transaction holds the messages and the fence until it ends, so that no other worker changes them. A store
    /// without locks checks them again at commit instead.
    ///
    /// With [`Fence::Queue`] the message must be the first remaining one. On commit it is done and leaves the queue.
    async fn begin(
        &self,
        messages: &[InboxMessage],
        fence: Fence<'_>,
    ) -> Result<BeginOutcome<Self::Transaction>, StoreError>;

    /// Commits. The messages in `skipped` were entered as handled and are recorded as skipped. After an error, the
    /// commit may have happened; the next `begin` finds out.
    async fn commit(&self, tx: Self::Transaction, skipped: &[DedupId]) -> Result<CommitOutcome, StoreError>;

    /// Commits, then begins the next transaction like [`begin`](Self::begin). A store may do both in one round trip.
    async fn commit_and_begin(
        &self,
        tx: Self::Transaction,
        skipped: &[DedupId],
        next: &[InboxMessage],
        fence: Fence<'_>,
    ) -> Result<CommitAndBegin<Self::Transaction>, StoreError> {
        match self.commit(tx, skipped).await? {
            CommitOutcome::Committed => Ok((CommitOutcome::Committed, Some(self.begin(next, fence).await))),
            outcome => Ok((outcome, None)),
        }
    }

    /// Rolls back all changes.
    async fn rollback(&self, tx: Self::Transaction) -> Result<(), StoreError>;
}
