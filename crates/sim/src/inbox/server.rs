//! The store's server. It records the effect of each call at the moment of the effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome, InboxAttempts as _};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply, InboxMembers as _};
use relevo_core::inbox::retries::{
    ClaimedQueue, InboxFailure, InboxFailureAction, InboxRetries as _, QueueClaim, RecordOutcome,
};
use relevo_core::inbox::transactions::{BeginOutcome, CommitOutcome, EnterOutcome, InboxTransactions as _};
use relevo_core::inbox::{DedupId, Fence, Inbox as _, InboxMessage, InboxRetention, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::{AfterDead, Draft, EmitError, Lane, MessageId};
use relevo_store_memory::Transaction;
use tokio::time::Instant;
use uuid::Uuid;

use crate::inbox::event::{self, Case, Dead, Event, History, LaneRef};
use crate::inbox::message_names::MessageNames;
use crate::inbox::mutants::MutantInbox;

/// Every transaction with a multiple of this number is stale at its commit, as after a serialization failure.
const STALE_EVERY: u64 = 17;

/// A [`Fence`] that a call carries to the server.
#[derive(Clone)]
pub enum OwnedFence {
    /// See [`Fence::Live`].
    Live(Option<LaneLease>),
    /// See [`Fence::Call`].
    Call(Option<LaneLease>, CallClaim),
    /// See [`Fence::Queue`].
    Queue(QueueClaim, i64),
}

impl From<Fence<'_>> for OwnedFence {
    fn from(fence: Fence<'_>) -> Self {
        match fence {
            Fence::Live { lane } => Self::Live(lane.cloned()),
            Fence::Call { lane, claim } => Self::Call(lane.cloned(), claim),
            Fence::Queue { claim, ordinal } => Self::Queue(claim.clone(), ordinal),
        }
    }
}

impl OwnedFence {
    const fn borrow(&self) -> Fence<'_> {
        match self {
            Self::Live(lane) => Fence::Live { lane: lane.as_ref() },
            Self::Call(lane, claim) => Fence::Call { lane: lane.as_ref(), claim: *claim },
            Self::Queue(claim, ordinal) => Fence::Queue { claim, ordinal: *ordinal },
        }
    }

    const fn lane(&self) -> Option<&LaneLease> {
        match self {
            Self::Live(lane) | Self::Call(lane, _) => lane.as_ref(),
            Self::Queue(..) => None,
        }
    }
}

/// One consumer's inbox that records every change in the history.
pub struct Server {
    consumer: usize,
    inner: MutantInbox,
    history: Arc<History>,
    names: Arc<MessageNames>,
    /// A transaction is rolled back after this time without a call.
    idle_timeout: Duration,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    open: BTreeMap<u64, Session>,
    last: u64,
    lanes: BTreeMap<String, (i64, Uuid)>,
}

/// An open transaction, and the events it will record on commit.
struct Session {
    transaction: Transaction,
    touched: Instant,
    lane: Option<LaneRef>,
    claim: Option<event::ClaimRef>,
    /// Its messages, in order.
    cases: Vec<Case>,
    events: Vec<Event>,
}

impl Server {
    /// Wraps an inbox.
    pub fn new(
        consumer: usize,
        inner: MutantInbox,
        history: Arc<History>,
        names: Arc<MessageNames>,
        idle_timeout: Duration,
    ) -> Self {
        Self { consumer, inner, history, names, idle_timeout, sessions: Mutex::default() }
    }

    /// Ends idle transactions.
    pub fn abort_stalled(&self) {
        let now = Instant::now();
        let idle = |session: &mut Session| now.duration_since(session.touched) > self.idle_timeout;
        // Dropped outside of the lock, because the drop rolls back and wakes waiting transactions.
        let stalled: Vec<_> = self.sessions.lock().open.extract_if(.., |_, session| idle(session)).collect();
        if !stalled.is_empty() {
            self.history.record(Event::Fault("the server ends a transaction that stood still"));
        }
        drop(stalled);
    }

    /// Simulates a redrive of a message that was redriven before. Only a mutant acts on it.
    pub fn redrive_again(&self, message: InboxMessage) {
        self.inner.redrive_again(message);
    }

    /// Whether no transaction is open.
    pub fn is_idle(&self) -> bool {
        self.sessions.lock().open.is_empty()
    }

    /// See [`relevo_core::inbox::Inbox::consumer`].
    pub fn consumer(&self) -> &str {
        self.inner.consumer()
    }

    /// See [`relevo_core::inbox::Inbox::retention`].
    pub fn retention(&self) -> InboxRetention {
        self.inner.retention()
    }

    /// See [`relevo_core::inbox::transactions::InboxTransactions::begin`].
    pub async fn begin(&self, messages: Vec<InboxMessage>, fence: OwnedFence) -> Result<BeginOutcome<u64>, StoreError> {
        let outcome = self.inner.begin(&messages, fence.borrow()).await?;
        let queued_events = |entered: &[EnterOutcome]| {
            let behind = messages.iter().zip(entered).filter(|(_, entered)| **entered == EnterOutcome::QueuedBehind);
            behind.map(|(message, _)| Event::QueuedBehind(self.case(message.dedup_id))).collect()
        };
        let cases = messages.iter().map(|message| self.case(message.dedup_id)).collect();
        Ok(self.open(outcome, &fence, cases, queued_events))
    }

    fn open(
        &self,
        outcome: BeginOutcome<Transaction>,
        fence: &OwnedFence,
        cases: Vec<Case>,
        events: impl FnOnce(&[EnterOutcome]) -> Vec<Event>,
    ) -> BeginOutcome<u64> {
        match outcome {
            BeginOutcome::Open(transaction, entered) => {
                let events = events(&entered);
                let mut sessions = self.sessions.lock();
                sessions.last += 1;
                let number = sessions.last;
                let lane = fence.lane().map(|lease| LaneRef::of(self.consumer, lease));
                let claim = match fence {
                    OwnedFence::Queue(claim, _) => Some(self.claim_ref(claim)),
                    OwnedFence::Live(_) | OwnedFence::Call(..) => None,
                };
                let session = Session { transaction, touched: Instant::now(), lane, claim, cases, events };
                sessions.open.insert(number, session);
                BeginOutcome::Open(number, entered)
            }
            BeginOutcome::Fenced => BeginOutcome::Fenced,
            BeginOutcome::Busy => BeginOutcome::Busy,
        }
    }

    /// Records a handler's effect in its transaction.
    pub fn effect(&self, session: u64, dedup_id: DedupId) -> Result<(), StoreError> {
        let case = self.case(dedup_id);
        self.with_session(session, |session| {
            session.transaction.record_effect(case.to_string())?;
            session.events.push(Event::Effect(case));
            Ok(())
        })
    }

    /// Emits a message in a handler's transaction.
    pub fn emit(&self, session: u64, draft: Draft) -> Result<MessageId, StoreError> {
        self.with_session(session, |session| session.transaction.emit(draft).map_err(unexpected))
    }

    /// Cancels a scheduled message in a handler's transaction.
    pub fn cancel(&self, session: u64, id: MessageId) -> Result<bool, StoreError> {
        self.with_session(session, |session| session.transaction.cancel(id).map_err(unexpected))
    }

    /// See [`relevo_core::inbox::transactions::InboxTransactions::commit`].
    pub async fn commit(&self, session: u64, skipped: Vec<DedupId>) -> Result<CommitOutcome, StoreError> {
        let Some(Session { transaction, lane, claim, cases, events, .. }) = self.take_session(session) else {
            return Err(session_lost());
        };
        if session.is_multiple_of(STALE_EVERY) {
            self.inner.rollback(transaction).await?;
            return Ok(CommitOutcome::Stale);
        }
        match self.inner.commit(transaction, &skipped).await? {
            CommitOutcome::Committed => {}
            outcome => return Ok(outcome),
        }
        // No other task runs between the commit and this, so the history contains commits in their order.
        if let Some(lane) = lane {
            self.history.record(Event::WroteInLane(lane, "committed"));
        }
        if let Some(claim) = claim {
            self.history.record(Event::WroteInQueue(claim, "committed"));
        }
        let mut events = events;
        events.extend(skipped.into_iter().map(|id| Event::Skipped(self.case(id))));
        // The verdicts of a batch are recorded in the order of its messages.
        events.sort_by_key(|event| match event {
            Event::Effect(case) | Event::Skipped(case) => cases.iter().position(|other| other == case).map(|at| at + 1),
            _ => None,
        });
        for event in events {
            self.history.record(event);
        }
        Ok(CommitOutcome::Committed)
    }

    /// See [`relevo_core::inbox::transactions::InboxTransactions::rollback`].
    pub fn rollback(&self, session: u64) {
        drop(self.take_session(session));
    }

    /// See [`relevo_core::inbox::attempts::InboxAttempts::record_start`].
    pub async fn record_start(&self, message: InboxMessage) -> Result<u32, StoreError> {
        self.inner.record_start(&message).await
    }

    /// See [`relevo_core::inbox::attempts::InboxAttempts::claim_call`].
    pub async fn claim_call(
        &self,
        message: InboxMessage,
        lease: Option<LaneLease>,
        duration: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        let claimed = self.inner.claim_call(&message, lease.as_ref(), duration).await?;
        match claimed {
            ClaimOutcome::Claimed(_) => self.record_write(lease.as_ref(), "claimed a message"),
            ClaimOutcome::QueuedBehind => {
                self.record_write(lease.as_ref(), "put a message behind others");
                self.history.record(Event::QueuedBehind(self.case(message.dedup_id)));
            }
            ClaimOutcome::Duplicate(_) | ClaimOutcome::Busy(_) | ClaimOutcome::Fenced => {}
        }
        Ok(claimed)
    }

    /// See [`relevo_core::inbox::attempts::InboxAttempts::end_attempt`].
    pub async fn end_attempt(&self, dedup_id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.inner.end_attempt(dedup_id, claim).await
    }

    /// See [`relevo_core::inbox::retries::InboxRetries::record_failure`].
    pub async fn record_failure(
        &self,
        message: InboxMessage,
        fence: OwnedFence,
        failure: InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let recorded = self.inner.record_failure(&message, fence.borrow(), &failure).await?;
        if recorded == RecordOutcome::Recorded {
            if let OwnedFence::Queue(claim, _) = &fence {
                self.history.record(Event::WroteInQueue(self.claim_ref(claim), "set a message back"));
            }
            self.record_write(fence.lane(), "set a message back");
            self.record_failure_event(message.dedup_id, &failure);
        }
        Ok(recorded)
    }

    /// See [`relevo_core::inbox::retries::InboxRetries::claim_due`].
    pub async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        duration: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        let claimed = self.inner.claim_due(queues, messages, duration).await?;
        for claimed in &claimed {
            self.history.record(Event::QueueClaimed(self.claim_ref(&claimed.claim)));
        }
        Ok(claimed)
    }

    /// See [`relevo_core::inbox::retries::InboxRetries::release_queue`].
    pub async fn release_queue(&self, claim: QueueClaim) -> Result<(), StoreError> {
        self.inner.release_queue(&claim).await
    }

    /// See [`relevo_core::inbox::members::InboxMembers::heartbeat`].
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.inner.heartbeat(&heartbeat).await
    }

    /// See [`relevo_core::inbox::members::InboxMembers::acquire_lanes`].
    pub async fn acquire_lanes(&self, owner: Uuid, lanes: Vec<Lane>) -> Result<Vec<LaneLease>, StoreError> {
        let leases = self.inner.acquire_lanes(owner, &lanes).await?;
        let mut sessions = self.sessions.lock();
        for lease in &leases {
            let ownership = (lease.epoch, lease.owner);
            if sessions.lanes.insert(lease.lane.name().to_owned(), ownership) != Some(ownership) {
                self.history.record(Event::LaneAcquired(LaneRef::of(self.consumer, lease)));
            }
        }
        drop(sessions);
        Ok(leases)
    }

    /// See [`relevo_core::inbox::members::InboxMembers::release_lanes`].
    pub async fn release_lanes(&self, owner: Uuid, lanes: Vec<Lane>) -> Result<(), StoreError> {
        self.inner.release_lanes(owner, &lanes).await
    }

    /// See [`relevo_core::inbox::members::InboxMembers::leave`].
    pub async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.leave(owner).await
    }

    /// See [`relevo_core::inbox::members::InboxMembers::prune`].
    pub async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.inner.prune(limit).await
    }

    fn record_failure_event(&self, dedup_id: DedupId, failure: &InboxFailure) {
        let dead = match failure.action {
            InboxFailureAction::Retry { .. } | InboxFailureAction::Postpone { .. } => None,
            InboxFailureAction::DeadLetter(AfterDead::Hold) => Some(Dead::Hold),
            InboxFailureAction::DeadLetter(AfterDead::Continue) => Some(Dead::Continue),
        };
        let (case, class, attempts) = (self.case(dedup_id), failure.class, failure.attempts);
        self.history.record(Event::FailureRecorded { case, class, attempts, dead });
    }

    fn record_write(&self, lease: Option<&LaneLease>, text: &'static str) {
        if let Some(lease) = lease {
            self.history.record(Event::WroteInLane(LaneRef::of(self.consumer, lease), text));
        }
    }

    fn claim_ref(&self, claim: &QueueClaim) -> event::ClaimRef {
        event::ClaimRef { consumer: self.consumer, queue: claim.queue.clone(), token: claim.token }
    }

    fn case(&self, dedup_id: DedupId) -> Case {
        self.names.case(self.consumer, dedup_id)
    }

    fn take_session(&self, number: u64) -> Option<Session> {
        self.sessions.lock().open.remove(&number)
    }

    fn with_session<T>(
        &self,
        number: u64,
        action: impl FnOnce(&mut Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut sessions = self.sessions.lock();
        let session = sessions.open.get_mut(&number).ok_or_else(session_lost)?;
        session.touched = Instant::now();
        action(session)
    }
}

fn unexpected(error: EmitError) -> StoreError {
    StoreError::Unexpected(error.into())
}

fn session_lost() -> StoreError {
    StoreError::Unavailable("the server has ended the transaction".into())
}
