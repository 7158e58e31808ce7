//! The store's server. It records the effect of each call at the moment of the effect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use parking_lot::Mutex;
use relevo_core::Lane;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{DedupId, Inbox as _, InboxMessage, LaneLease};
use relevo_core::store::StoreError;
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
    /// The entry at each position of each queue, to name messages in later calls.
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
        let ended: Vec<_> = self.sessions.lock().open.extract_if(.., |_, session| idle(session)).collect();
        if !ended.is_empty() {
            self.history.record(Event::Fault("the server ends a transaction that stood still"));
        }
        drop(ended);
    }

    /// Simulates a redrive of a message that was redriven before. Only a mutant acts on it.
    pub fn redrive_again(&self, arrival: InboxMessage) {
        self.inner.redrive_again(arrival);
    }

    /// Whether no transaction is open.
    pub fn is_idle(&self) -> bool {
        self.sessions.lock().open.is_empty()
    }

    /// See [`relevo_core::inbox::Inbox::begin`].
    pub async fn begin(
        &self,
        held: Option<LaneLease>,
        arrivals: Vec<InboxMessage>,
    ) -> Result<BeginOutcome<u64>, StoreError> {
        let begun = self.inner.begin(Enter { held: held.as_ref(), arrivals: &arrivals }).await?;
        let waits = |entered: &[EnterOutcome]| {
            let behind = arrivals.iter().zip(entered).filter(|(_, entered)| **entered == EnterOutcome::QueuedBehind);
            behind.map(|(arrival, _)| Event::QueuedBehind(self.case(arrival.dedup_id))).collect()
        };
        Ok(self.open(begun, held.as_ref(), None, waits))
    }

    /// See [`relevo_core::inbox::Inbox::begin_claimed`].
    pub async fn begin_claimed(
        &self,
        arrival: InboxMessage,
        held: Option<LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<u64>, StoreError> {
        let begun = self.inner.begin_claimed(&arrival, held.as_ref(), claim).await?;
        Ok(self.open(begun, held.as_ref(), None, |_| Vec::new()))
    }

    /// See [`relevo_core::inbox::Inbox::begin_due`].
    pub async fn begin_due(&self, due: ClaimedQueue, number: i64) -> Result<BeginOutcome<u64>, StoreError> {
        let begun = self.inner.begin_due(&due, number).await?;
        Ok(self.open(begun, None, Some(&due), |_| Vec::new()))
    }

    fn open(
        &self,
        begun: BeginOutcome<Transaction>,
        held: Option<&LaneLease>,
        due: Option<&ClaimedQueue>,
        done: impl FnOnce(&[EnterOutcome]) -> Vec<Event>,
    ) -> BeginOutcome<u64> {
        match begun {
            BeginOutcome::Open(transaction, entered) => {
                let done = done(&entered);
                let mut sessions = self.sessions.lock();
                sessions.last += 1;
                let number = sessions.last;
                let grant = held.map(|held| LaneRef::of(self.consumer, held));
                let claim = due.map(|due| self.claim_ref(due));
                let session = Session { transaction, touched: Instant::now(), lane: grant, claim, events: done };
                sessions.open.insert(number, session);
                BeginOutcome::Open(number, entered)
            }
            BeginOutcome::Fenced => BeginOutcome::Fenced,
            BeginOutcome::Busy => BeginOutcome::Busy,
        }
    }

    /// Records a handler's effect in its transaction.
    pub fn effect(&self, session: u64, entry: DedupId) -> Result<(), StoreError> {
        let case = self.case(entry);
        self.with_session(session, |session| {
            session
                .transaction
                .record_effect(case.to_string())
                .map_err(|error| StoreError::Unavailable(error.into()))?;
            session.events.push(Event::Effect(case));
            Ok(())
        })
    }

    /// See [`relevo_core::inbox::Inbox::skip`].
    pub async fn skip(&self, number: u64, entry: DedupId) -> Result<(), StoreError> {
        let Some(mut session) = self.take_session(number) else { return Err(session_lost()) };
        let skipped = self.inner.skip(&mut session.transaction, entry).await;
        if skipped.is_ok() {
            session.events.push(Event::Skipped(self.case(entry)));
        }
        session.touched = Instant::now();
        self.sessions.lock().open.insert(number, session);
        skipped
    }

    /// See [`relevo_core::inbox::Inbox::commit`].
    pub async fn commit(&self, session: u64) -> Result<(), StoreError> {
        let Some(Session { transaction, lane: grant, claim, events: done, .. }) = self.take_session(session) else {
            return Err(session_lost());
        };
        self.inner.commit(transaction).await?;
        // No other task runs between the commit and this, so the history contains commits in their order.
        if let Some(grant) = grant {
            self.history.record(Event::WroteInLane(grant, "committed"));
        }
        if let Some(claim) = claim {
            self.history.record(Event::WroteInQueue(claim, "committed"));
        }
        for event in done {
            self.history.record(event);
        }
        Ok(())
    }

    /// See [`relevo_core::inbox::Inbox::rollback`].
    pub fn rollback(&self, session: u64) {
        drop(self.take_session(session));
    }

    /// See [`relevo_core::inbox::Inbox::record_start`].
    pub async fn record_start(&self, arrival: InboxMessage) -> Result<u32, StoreError> {
        self.inner.record_start(&arrival).await
    }

    /// See [`relevo_core::inbox::Inbox::claim_call`].
    pub async fn claim_call(
        &self,
        arrival: InboxMessage,
        held: Option<LaneLease>,
        lasts: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        let claimed = self.inner.claim_call(&arrival, held.as_ref(), lasts).await?;
        match claimed {
            ClaimOutcome::Claimed(_) => self.record_write(held.as_ref(), "claimed a message"),
            ClaimOutcome::QueuedBehind => {
                self.record_write(held.as_ref(), "put a message behind others");
                self.history.record(Event::QueuedBehind(self.case(arrival.dedup_id)));
            }
            ClaimOutcome::Duplicate(_) | ClaimOutcome::Busy(_) | ClaimOutcome::Fenced => {}
        }
        Ok(claimed)
    }

    /// See [`relevo_core::inbox::Inbox::end_attempt`].
    pub async fn end_attempt(&self, entry: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.inner.end_attempt(entry, claim).await
    }

    /// See [`relevo_core::inbox::Inbox::set_back`].
    pub async fn set_back(
        &self,
        arrival: InboxMessage,
        held: Option<LaneLease>,
        claim: Option<CallClaim>,
        setback: InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let kept = self.inner.set_back(&arrival, held.as_ref(), claim, &setback).await?;
        if kept == RecordOutcome::Recorded {
            self.record_write(held.as_ref(), "set a message back");
            self.record_failure_event(arrival.dedup_id, &setback);
        }
        Ok(kept)
    }

    /// See [`relevo_core::inbox::Inbox::claim_due`].
    pub async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        lasts: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        let due = self.inner.claim_due(queues, messages, lasts).await?;
        for due in &due {
            self.history.record(Event::QueueClaimed(self.claim_ref(due)));
            let messages =
                due.messages.iter().map(|waiting| ((due.queue.clone(), waiting.ordinal), waiting.message.dedup_id));
            self.sessions.lock().queued.extend(messages);
        }
        Ok(due)
    }

    /// See [`relevo_core::inbox::Inbox::set_back_due`].
    pub async fn set_back_due(
        &self,
        due: ClaimedQueue,
        number: i64,
        setback: InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let kept = self.inner.set_back_due(&due, number, &setback).await?;
        if kept == RecordOutcome::Recorded {
            self.history.record(Event::WroteInQueue(self.claim_ref(&due), "set a message back"));
            let entry = self.sessions.lock().queued.get(&(due.queue, number)).copied();
            if let Some(entry) = entry {
                self.record_failure_event(entry, &setback);
            }
        }
        Ok(kept)
    }

    /// See [`relevo_core::inbox::Inbox::release_queue`].
    pub async fn release_queue(&self, due: ClaimedQueue) -> Result<(), StoreError> {
        self.inner.release_queue(&due).await
    }

    /// See [`relevo_core::inbox::Inbox::heartbeat`].
    pub async fn heartbeat(&self, beat: Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.inner.heartbeat(&beat).await
    }

    /// See [`relevo_core::inbox::Inbox::acquire_lanes`].
    pub async fn acquire_lanes(&self, owner: Uuid, lanes: Vec<Lane>) -> Result<Vec<LaneLease>, StoreError> {
        let taken = self.inner.acquire_lanes(owner, &lanes).await?;
        let mut sessions = self.sessions.lock();
        for held in &taken {
            let grant = (held.epoch, held.owner);
            if sessions.lanes.insert(held.lane.name().to_owned(), grant) != Some(grant) {
                self.history.record(Event::LaneAcquired(LaneRef::of(self.consumer, held)));
            }
        }
        drop(sessions);
        Ok(taken)
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

    fn record_failure_event(&self, entry: DedupId, setback: &InboxFailure) {
        let dead = match setback.action {
            InboxFailureAction::Retry { .. } | InboxFailureAction::Postpone { .. } => None,
            InboxFailureAction::DeadHold => Some(Dead::Hold),
            InboxFailureAction::DeadContinue => Some(Dead::Continue),
        };
        let (case, class, attempts) = (self.case(entry), setback.class, setback.attempts);
        self.history.record(Event::FailureRecorded { case, class, attempts, dead });
    }

    fn record_write(&self, held: Option<&LaneLease>, what: &'static str) {
        if let Some(held) = held {
            self.history.record(Event::WroteInLane(LaneRef::of(self.consumer, held), what));
        }
    }

    fn claim_ref(&self, due: &ClaimedQueue) -> event::ClaimRef {
        event::ClaimRef { consumer: self.consumer, queue: due.queue.clone(), token: due.token }
    }

    fn case(&self, entry: DedupId) -> Case {
        self.names.case(self.consumer, entry)
    }

    fn take_session(&self, number: u64) -> Option<Session> {
        self.sessions.lock().open.remove(&number)
    }

    fn with_session<T>(
        &self,
        number: u64,
        deed: impl FnOnce(&mut Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut sessions = self.sessions.lock();
        let session = sessions.open.get_mut(&number).ok_or_else(session_lost)?;
        session.touched = Instant::now();
        deed(session)
    }
}

fn session_lost() -> StoreError {
    StoreError::Unavailable("the server has ended the transaction".into())
}
