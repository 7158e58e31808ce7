//! The memory store's inbox with injected faults.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::Lane;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, Enter};
use relevo_core::inbox::{DedupId, Inbox, InboxMessage, LaneLease};
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

#[async_trait]
impl Inbox for FaultyInbox {
    type Transaction = Transaction;

    async fn begin(&self, enter: Enter<'_>) -> Result<BeginOutcome<Transaction>, StoreError> {
        self.check_available()?;
        self.faults.begin_calls.fetch_add(1, Ordering::Relaxed);
        self.inner.begin(enter).await
    }

    async fn skip(&self, transaction: &mut Transaction, entry: DedupId) -> Result<(), StoreError> {
        self.check_available()?;
        self.inner.skip(transaction, entry).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.check_available()?;
        if self.faults.loses_commits.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("the connection is lost".into()));
        }
        if self.faults.rejects_commits.load(Ordering::Relaxed) {
            return Err(StoreError::Unexpected("a constraint is broken".into()));
        }
        self.inner.commit(transaction).await?;
        if self.faults.loses_commit_reply.swap(false, Ordering::Relaxed) {
            return Err(StoreError::Unavailable("the answer is lost".into()));
        }
        Ok(())
    }

    async fn rollback(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.check_available()?;
        self.inner.rollback(transaction).await
    }

    async fn record_start(&self, arrival: &InboxMessage) -> Result<u32, StoreError> {
        self.check_available()?;
        self.inner.record_start(arrival).await
    }

    async fn claim_call(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        lasts: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        self.check_available()?;
        self.inner.claim_call(arrival, held, lasts).await
    }

    async fn begin_claimed(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        self.check_available()?;
        self.inner.begin_claimed(arrival, held, claim).await
    }

    async fn end_attempt(&self, entry: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.check_available()?;
        if *self.faults.blocked.lock().expect("no test panics with it") == Some(entry) {
            return Err(StoreError::Unavailable("another session has it".into()));
        }
        self.inner.end_attempt(entry, claim).await
    }

    async fn set_back(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: Option<CallClaim>,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        self.check_available()?;
        self.inner.set_back(arrival, held, claim, setback).await
    }

    async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        lasts: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        self.check_available()?;
        self.inner.claim_due(queues, messages, lasts).await
    }

    async fn begin_due(&self, due: &ClaimedQueue, number: i64) -> Result<BeginOutcome<Transaction>, StoreError> {
        self.check_available()?;
        self.inner.begin_due(due, number).await
    }

    async fn set_back_due(
        &self,
        due: &ClaimedQueue,
        number: i64,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        self.check_available()?;
        self.inner.set_back_due(due, number, setback).await
    }

    async fn release_queue(&self, due: &ClaimedQueue) -> Result<(), StoreError> {
        self.check_available()?;
        self.inner.release_queue(due).await
    }

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
