//! The memory store's inbox with injected faults.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::Lane;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome, InboxAttempts};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply, InboxMembers};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxRetries, QueueClaim, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, CommitOutcome, InboxTransactions};
use relevo_core::inbox::{DedupId, Fence, Inbox, InboxMessage, InboxRetention, LaneLease};
use relevo_core::store::StoreError;
use relevo_store_memory::{Inbox as Memory, Transaction};
use uuid::Uuid;

/// The faults to inject.
#[derive(Default)]
pub(crate) struct FaultPlan {
    /// Every call fails.
    pub(crate) unavailable: AtomicBool,
    /// The database rejects commits, like a deferred constraint.
    pub(crate) rejects_commits: AtomicBool,
    /// Number of the next commits that find that another transaction blocked them.
    pub(crate) stale_commits: AtomicU64,
    /// Commits fail and have no effect.
    pub(crate) loses_commits: AtomicBool,
    /// Ending the attempt of this message fails, as if its row were locked.
    pub(crate) blocked: Mutex<Option<DedupId>>,
    /// The next commit takes effect, but its reply is lost.
    pub(crate) loses_commit_reply: AtomicBool,
    /// Number of transactions begun.
    pub(crate) begin_calls: AtomicU64,
    /// Acquiring lanes is slow.
    pub(crate) slow_acquire: AtomicBool,
    /// The only connection for calls about lanes.
    pub(crate) lane_connection: tokio::sync::Mutex<()>,
}

pub(crate) struct FaultyInbox {
    pub(crate) inner: Memory,
    pub(crate) faults: Arc<FaultPlan>,
}

impl FaultyInbox {
    fn check_available(&self) -> Result<(), StoreError> {
        if self.faults.unavailable.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("the line is cut".into()));
        }
        Ok(())
    }
}

impl Inbox for FaultyInbox {
    fn consumer(&self) -> &str {
        self.inner.consumer()
    }

    fn retention(&self) -> InboxRetention {
        self.inner.retention()
    }
}

#[async_trait]
impl InboxTransactions for FaultyInbox {
    type Transaction = Transaction;

    async fn begin(
        &self,
        messages: &[InboxMessage],
        fence: Fence<'_>,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        self.check_available()?;
        if let Fence::Live { .. } = fence {
            self.faults.begin_calls.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.begin(messages, fence).await
    }

    async fn commit(&self, tx: Transaction, skipped: &[DedupId]) -> Result<CommitOutcome, StoreError> {
        self.check_available()?;
        if self.faults.loses_commits.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("the connection is lost".into()));
        }
        if self.faults.rejects_commits.load(Ordering::Relaxed) {
            return Ok(CommitOutcome::Rejected { permanent: false, error: "a constraint is broken".into() });
        }
        if self.faults.stale_commits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok() {
            return Ok(CommitOutcome::Stale);
        }
        let outcome = self.inner.commit(tx, skipped).await?;
        if self.faults.loses_commit_reply.swap(false, Ordering::Relaxed) {
            return Err(StoreError::Unavailable("the reply is lost".into()));
        }
        Ok(outcome)
    }

    async fn rollback(&self, tx: Transaction) -> Result<(), StoreError> {
        self.check_available()?;
        self.inner.rollback(tx).await
    }
}

#[async_trait]
impl InboxAttempts for FaultyInbox {
    async fn record_start(&self, message: &InboxMessage) -> Result<u32, StoreError> {
        self.check_available()?;
        self.inner.record_start(message).await
    }

    async fn claim_call(
        &self,
        message: &InboxMessage,
        lane: Option<&LaneLease>,
        ttl: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        self.check_available()?;
        self.inner.claim_call(message, lane, ttl).await
    }

    async fn end_attempt(&self, id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.check_available()?;
        if *self.faults.blocked.lock().expect("no test panics with it") == Some(id) {
            return Err(StoreError::Unavailable("another session has it".into()));
        }
        self.inner.end_attempt(id, claim).await
    }
}

#[async_trait]
impl InboxRetries for FaultyInbox {
    async fn record_failure(
        &self,
        message: &InboxMessage,
        fence: Fence<'_>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        self.check_available()?;
        self.inner.record_failure(message, fence, failure).await
    }

    async fn claim_due(&self, queues: usize, messages: usize, ttl: Duration) -> Result<Vec<ClaimedQueue>, StoreError> {
        self.check_available()?;
        self.inner.claim_due(queues, messages, ttl).await
    }

    async fn release_queue(&self, claim: &QueueClaim) -> Result<(), StoreError> {
        self.check_available()?;
        self.inner.release_queue(claim).await
    }
}

#[async_trait]
impl InboxMembers for FaultyInbox {
    async fn heartbeat(&self, beat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.check_available()?;
        self.inner.heartbeat(beat).await
    }

    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError> {
        self.check_available()?;
        let _connection = self.faults.lane_connection.lock().await;
        if self.faults.slow_acquire.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        self.inner.acquire_lanes(owner, lanes).await
    }

    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        self.check_available()?;
        self.inner.release_lanes(owner, lanes).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.check_available()?;
        let _connection = self.faults.lane_connection.lock().await;
        self.inner.leave(owner).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.check_available()?;
        self.inner.prune(limit).await
    }
}
