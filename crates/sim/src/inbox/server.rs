//! The store's server. It records the effect of each call at the moment of the effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use parking_lot::Mutex;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{DedupId, Inbox as _, InboxMessage, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::{Draft, EmitError, Lane, MessageId};
use relevo_store_memory::Transaction;
use tokio::time::Instant;
use uuid::Uuid;

use crate::inbox::event::{self, Case, Dead, Event, History, LaneRef};
use crate::inbox::message_names::MessageNames;
use crate::inbox::mutants::MutantInbox;

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
    /// The message id at each position of each queue, to name messages in later calls.
    queued: BTreeMap<(ByteString, i64), DedupId>,
}

/// An open transaction, and the events it will record on commit.
struct Session {
    transaction: Transaction,
    touched: Instant,
    lane: Option<LaneRef>,
    claim: Option<event::ClaimRef>,
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

    /// See [`relevo_core::inbox::Inbox::begin`].
    pub async fn begin(
        &self,
        lease: Option<LaneLease>,
        messages: Vec<InboxMessage>,
    ) -> Result<BeginOutcome<u64>, StoreError> {
        let outcome = self.inner.begin(Enter { held: lease.as_ref(), arrivals: &messages }).await?;
        let queued_events = |entered: &[EnterOutcome]| {
            let behind = messages.iter().zip(entered).filter(|(_, entered)| **entered == EnterOutcome::QueuedBehind);
            behind.map(|(message, _)| Event::QueuedBehind(self.case(message.dedup_id))).collect()
        };
        Ok(self.open(outcome, lease.as_ref(), None, queued_events))
    }

    /// See [`relevo_core::inbox::Inbox::begin_claimed`].
    pub async fn begin_claimed(
        &self,
        message: InboxMessage,
        lease: Option<LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<u64>, StoreError> {
        let outcome = self.inner.begin_claimed(&message, lease.as_ref(), claim).await?;
        Ok(self.open(outcome, lease.as_ref(), None, |_| Vec::new()))
    }

    /// See [`relevo_core::inbox::Inbox::begin_due`].
    pub async fn begin_due(&self, claimed: ClaimedQueue, number: i64) -> Result<BeginOutcome<u64>, StoreError> {
        let outcome = self.inner.begin_due(&claimed, number).await?;
        Ok(self.open(outcome, None, Some(&claimed), |_| Vec::new()))
    }

    fn open(
        &self,
        outcome: BeginOutcome<Transaction>,
        lease: Option<&LaneLease>,
        claimed: Option<&ClaimedQueue>,
        events: impl FnOnce(&[EnterOutcome]) -> Vec<Event>,
    ) -> BeginOutcome<u64> {
        match outcome {
            BeginOutcome::Open(transaction, entered) => {
                let events = events(&entered);
                let mut sessions = self.sessions.lock();
                sessions.last += 1;
                let number = sessions.last;
                let lane = lease.map(|lease| LaneRef::of(self.consumer, lease));
                let claim = claimed.map(|claimed| self.claim_ref(claimed));
                let session = Session { transaction, touched: Instant::now(), lane, claim, events };
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

    /// See [`relevo_core::inbox::Inbox::skip`].
    pub async fn skip(&self, number: u64, dedup_id: DedupId) -> Result<(), StoreError> {
        let Some(mut session) = self.take_session(number) else { return Err(session_lost()) };
        let skipped = self.inner.skip(&mut session.transaction, dedup_id).await;
        if skipped.is_ok() {
            session.events.push(Event::Skipped(self.case(dedup_id)));
        }
        session.touched = Instant::now();
        self.sessions.lock().open.insert(number, session);
        skipped
    }

    /// See [`relevo_core::inbox::Inbox::commit`].
    pub async fn commit(&self, session: u64) -> Result<(), StoreError> {
        let Some(Session { transaction, lane, claim, events, .. }) = self.take_session(session) else {
            return Err(session_lost());
        };
        self.inner.commit(transaction).await?;
        // No other task runs between the commit and this, so the history contains commits in their order.
        if let Some(lane) = lane {
            self.history.record(Event::WroteInLane(lane, "committed"));
        }
        if let Some(claim) = claim {
            self.history.record(Event::WroteInQueue(claim, "committed"));
        }
        for event in events {
            self.history.record(event);
        }
        Ok(())
    }

    /// See [`relevo_core::inbox::Inbox::rollback`].
    pub fn rollback(&self, session: u64) {
        drop(self.take_session(session));
    }

    /// See [`relevo_core::inbox::Inbox::record_start`].
    pub async fn record_start(&self, message: InboxMessage) -> Result<u32, StoreError> {
        self.inner.record_start(&message).await
    }

    /// See [`relevo_core::inbox::Inbox::claim_call`].
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

    /// See [`relevo_core::inbox::Inbox::end_attempt`].
    pub async fn end_attempt(&self, dedup_id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.inner.end_attempt(dedup_id, claim).await
    }

    /// See [`relevo_core::inbox::Inbox::set_back`].
    pub async fn set_back(
        &self,
        message: InboxMessage,
        lease: Option<LaneLease>,
        claim: Option<CallClaim>,
        failure: InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let recorded = self.inner.set_back(&message, lease.as_ref(), claim, &failure).await?;
        if recorded == RecordOutcome::Recorded {
            self.record_write(lease.as_ref(), "set a message back");
            self.record_failure_event(message.dedup_id, &failure);
        }
        Ok(recorded)
    }

    /// See [`relevo_core::inbox::Inbox::claim_due`].
    pub async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        duration: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        let claimed = self.inner.claim_due(queues, messages, duration).await?;
        for claimed in &claimed {
            self.history.record(Event::QueueClaimed(self.claim_ref(claimed)));
            let messages = claimed
                .messages
                .iter()
                .map(|waiting| ((claimed.queue.clone(), waiting.ordinal), waiting.message.dedup_id));
            self.sessions.lock().queued.extend(messages);
        }
        Ok(claimed)
    }

    /// See [`relevo_core::inbox::Inbox::set_back_due`].
    pub async fn set_back_due(
        &self,
        claimed: ClaimedQueue,
        number: i64,
        failure: InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let recorded = self.inner.set_back_due(&claimed, number, &failure).await?;
        if recorded == RecordOutcome::Recorded {
            self.history.record(Event::WroteInQueue(self.claim_ref(&claimed), "set a message back"));
            let dedup_id = self.sessions.lock().queued.get(&(claimed.queue, number)).copied();
            if let Some(dedup_id) = dedup_id {
                self.record_failure_event(dedup_id, &failure);
            }
        }
        Ok(recorded)
    }

    /// See [`relevo_core::inbox::Inbox::release_queue`].
    pub async fn release_queue(&self, claimed: ClaimedQueue) -> Result<(), StoreError> {
        self.inner.release_queue(&claimed).await
    }

    /// See [`relevo_core::inbox::Inbox::heartbeat`].
    pub async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.inner.heartbeat(&heartbeat).await
    }

    /// See [`relevo_core::inbox::Inbox::acquire_lanes`].
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

    /// See [`relevo_core::inbox::Inbox::release_lanes`].
    pub async fn release_lanes(&self, owner: Uuid, lanes: Vec<Lane>) -> Result<(), StoreError> {
        self.inner.release_lanes(owner, &lanes).await
    }

    /// See [`relevo_core::inbox::Inbox::leave`].
    pub async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.leave(owner).await
    }

    /// See [`relevo_core::inbox::Inbox::prune`].
    pub async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.inner.prune(limit).await
    }

    fn record_failure_event(&self, dedup_id: DedupId, failure: &InboxFailure) {
        let dead = match failure.action {
            InboxFailureAction::Retry { .. } | InboxFailureAction::Postpone { .. } => None,
            InboxFailureAction::DeadHold => Some(Dead::Hold),
            InboxFailureAction::DeadContinue => Some(Dead::Continue),
        };
        let (case, class, attempts) = (self.case(dedup_id), failure.class, failure.attempts);
        self.history.record(Event::FailureRecorded { case, class, attempts, dead });
    }

    fn record_write(&self, lease: Option<&LaneLease>, text: &'static str) {
        if let Some(lease) = lease {
            self.history.record(Event::WroteInLane(LaneRef::of(self.consumer, lease), text));
        }
    }

    fn claim_ref(&self, claimed: &ClaimedQueue) -> event::ClaimRef {
        event::ClaimRef { consumer: self.consumer, queue: claimed.queue.clone(), token: claimed.token }
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
