//! The in-memory inbox, with the same tables, locks and results as a database.

pub(crate) mod dead_letters;
mod enter;
mod failure;
pub(crate) mod lock_timeout;
mod members;
mod operate;
pub(crate) mod pending_writes;
mod prune;
mod replays;
mod retry_queues;
pub(crate) mod source;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{self, DedupId, InboxMessage, InboxRetention, LaneLease};
use relevo_core::store::StoreError;
use uuid::Uuid;

use self::lock_timeout::{LOCK_TIMEOUT, or_busy_error, with_lock_timeout};
use self::tables::ConsumerTables;
use crate::emit::Transaction;
use crate::state::Tables;

/// One consumer's inbox. Cheap to clone. Only an open transaction holds locks between calls.
#[derive(Clone, Debug)]
pub struct Inbox {
    state: Arc<Mutex<Tables>>,
    scope: ConsumerScope,
}

/// The calling consumer and its retention settings.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerScope {
    pub(crate) consumer: Arc<str>,
    pub(crate) retention: InboxRetention,
}

/// An open transaction by its token, or why none was opened.
pub(crate) enum OpenOutcome {
    Open(u64, Vec<EnterOutcome>),
    Fenced,
}

impl Tables {
    /// The tables of the calling consumer.
    pub(crate) fn tables(&mut self, scope: &ConsumerScope) -> &mut ConsumerTables {
        self.consumers.entry(scope.consumer.to_string()).or_default()
    }
}

impl Inbox {
    pub(crate) fn new(state: &Arc<Mutex<Tables>>, consumer: &str, retention: InboxRetention) -> Self {
        let scope = ConsumerScope { consumer: consumer.into(), retention };
        state.lock().tables(&scope);
        Self { state: Arc::clone(state), scope }
    }

    /// Opens a transaction as soon as no other transaction blocks it.
    async fn open(&self, attempt: impl FnMut(&mut Tables) -> Option<OpenOutcome>) -> BeginOutcome<Transaction> {
        match with_lock_timeout(&self.state, attempt).await {
            Some(OpenOutcome::Open(token, entered)) => {
                BeginOutcome::Open(Transaction::with_token(&self.state, token), entered)
            }
            Some(OpenOutcome::Fenced) => BeginOutcome::Fenced,
            None => BeginOutcome::Busy,
        }
    }
}

#[async_trait]
impl inbox::Inbox for Inbox {
    type Transaction = Transaction;

    async fn begin(&self, enter: Enter<'_>) -> Result<BeginOutcome<Transaction>, StoreError> {
        Ok(self.open(|state| state.enter(&self.scope, enter)).await)
    }

    async fn skip(&self, transaction: &mut Transaction, dedup_id: DedupId) -> Result<(), StoreError> {
        transaction.set_inbox_state(dedup_id, inbox::InboxState::Skipped)
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        transaction.commit()
    }

    async fn rollback(&self, transaction: Transaction) -> Result<(), StoreError> {
        transaction.rollback();
        Ok(())
    }

    async fn record_start(&self, message: &InboxMessage) -> Result<u32, StoreError> {
        Ok(self.state.lock().record_start(&self.scope, message))
    }

    async fn claim_call(
        &self,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        duration: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        let claimed =
            with_lock_timeout(&self.state, |state| state.claim_call(&self.scope, message, lease, duration)).await;
        Ok(claimed.unwrap_or(ClaimOutcome::Busy(LOCK_TIMEOUT)))
    }

    async fn begin_claimed(
        &self,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        Ok(self.open(|state| state.enter_claimed(&self.scope, message, lease, claim)).await)
    }

    async fn end_attempt(&self, dedup_id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.state.lock().end_attempt(&self.scope, dedup_id, claim);
        Ok(())
    }

    async fn set_back(
        &self,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        claim: Option<CallClaim>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let recorded =
            with_lock_timeout(&self.state, |state| state.record_failure(&self.scope, message, lease, claim, failure))
                .await;
        Ok(recorded.unwrap_or(RecordOutcome::Busy))
    }

    async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        duration: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        Ok(self.state.lock().claim_due(&self.scope, queues, messages, duration))
    }

    async fn begin_due(&self, claimed: &ClaimedQueue, number: i64) -> Result<BeginOutcome<Transaction>, StoreError> {
        Ok(self.open(|state| state.enter_queued(&self.scope, claimed, number)).await)
    }

    async fn set_back_due(
        &self,
        claimed: &ClaimedQueue,
        number: i64,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let recorded =
            with_lock_timeout(&self.state, |state| state.record_queued_failure(&self.scope, claimed, number, failure))
                .await;
        Ok(recorded.unwrap_or(RecordOutcome::Busy))
    }

    async fn release_queue(&self, claimed: &ClaimedQueue) -> Result<(), StoreError> {
        or_busy_error(&self.state, |state| state.release_queue(&self.scope, claimed)).await
    }

    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let mut state = self.state.lock();
        let now = state.now();
        Ok(state.tables(&self.scope).heartbeat(heartbeat, now))
    }

    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError> {
        Ok(self.state.lock().acquire_lanes(&self.scope, owner, lanes))
    }

    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        // An open transaction in one of these lanes prevents other members from taking it until the transaction ends.
        self.state.lock().tables(&self.scope).release_lanes(owner, lanes);
        Ok(())
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        // A lane whose owner does not exist is free for any member.
        self.state.lock().tables(&self.scope).members.remove(&owner);
        Ok(())
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        let mut state = self.state.lock();
        let now = state.now();
        Ok(state.tables(&self.scope).prune(&self.scope.retention, limit, now))
    }
}
