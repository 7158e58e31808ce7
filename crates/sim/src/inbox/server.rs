//! The store's server. It records the effect of each call at the moment of the effect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::Lane;
use relevo_core::inbox::{
    Arrival, Beat, Begun, Claim, Claimed, Due, Enter, Entered, Entry, Held, Inbox as _, Kept, Orders, Setback, Stop,
};
use relevo_core::store::StoreError;
use relevo_store_memory::Transaction;
use tokio::time::Instant;
use uuid::Uuid;

use crate::history::lock;
use crate::inbox::directory::Directory;
use crate::inbox::event::{self, Case, Dead, Event, Grant, History};
use crate::inbox::mutants::MutantInbox;

/// One consumer's inbox that records every change in the history.
pub struct Server {
    consumer: usize,
    inner: MutantInbox,
    history: Arc<History>,
    directory: Arc<Directory>,
    /// A transaction is rolled back after this time without a call.
    stall: Duration,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    open: BTreeMap<u64, Session>,
    last: u64,
    grants: BTreeMap<String, (i64, Uuid)>,
    /// The entry at each position of each queue, to name messages in later calls.
    queued: BTreeMap<(ByteString, i64), Entry>,
}

/// An open transaction, and the events it will record on commit.
struct Session {
    transaction: Transaction,
    touched: Instant,
    grant: Option<Grant>,
    claim: Option<event::Claim>,
    done: Vec<Event>,
}

impl Server {
    /// Wraps an inbox.
    pub fn new(
        consumer: usize,
        inner: MutantInbox,
        history: Arc<History>,
        directory: Arc<Directory>,
        stall: Duration,
    ) -> Self {
        Self { consumer, inner, history, directory, stall, sessions: Mutex::default() }
    }

    /// Ends idle transactions.
    pub fn reap(&self) {
        let now = Instant::now();
        let idle = |session: &mut Session| now.duration_since(session.touched) > self.stall;
        // Dropped outside of the lock, because the drop rolls back and wakes waiting transactions.
        let ended: Vec<_> = lock(&self.sessions).open.extract_if(.., |_, session| idle(session)).collect();
        if !ended.is_empty() {
            self.history.record(Event::Fault("the server ends a transaction that stood still"));
        }
        drop(ended);
    }

    /// Simulates a redrive of a message that was redriven before. Only a mutant acts on it.
    pub fn redrive_again(&self, arrival: Arrival) {
        self.inner.redrive_again(arrival);
    }

    /// Whether no transaction is open.
    pub fn is_idle(&self) -> bool {
        lock(&self.sessions).open.is_empty()
    }

    /// See [`relevo_core::inbox::Inbox::begin`].
    pub async fn begin(&self, held: Option<Held>, arrivals: Vec<Arrival>) -> Result<Begun<u64>, StoreError> {
        let begun = self.inner.begin(Enter { held: held.as_ref(), arrivals: &arrivals }).await?;
        let waits = |entered: &[Entered]| {
            let behind = arrivals.iter().zip(entered).filter(|(_, entered)| **entered == Entered::Behind);
            behind.map(|(arrival, _)| Event::Waits(self.case(arrival.entry))).collect()
        };
        Ok(self.open(begun, held.as_ref(), None, waits))
    }

    /// See [`relevo_core::inbox::Inbox::begin_claimed`].
    pub async fn begin_claimed(
        &self,
        arrival: Arrival,
        held: Option<Held>,
        claim: Claim,
    ) -> Result<Begun<u64>, StoreError> {
        let begun = self.inner.begin_claimed(&arrival, held.as_ref(), claim).await?;
        Ok(self.open(begun, held.as_ref(), None, |_| Vec::new()))
    }

    /// See [`relevo_core::inbox::Inbox::begin_due`].
    pub async fn begin_due(&self, due: Due, number: i64) -> Result<Begun<u64>, StoreError> {
        let begun = self.inner.begin_due(&due, number).await?;
        Ok(self.open(begun, None, Some(&due), |_| Vec::new()))
    }

    fn open(
        &self,
        begun: Begun<Transaction>,
        held: Option<&Held>,
        due: Option<&Due>,
        done: impl FnOnce(&[Entered]) -> Vec<Event>,
    ) -> Begun<u64> {
        match begun {
            Begun::Open(transaction, entered) => {
                let done = done(&entered);
                let mut sessions = lock(&self.sessions);
                sessions.last += 1;
                let number = sessions.last;
                let grant = held.map(|held| Grant::of(self.consumer, held));
                let claim = due.map(|due| self.claim_of(due));
                let session = Session { transaction, touched: Instant::now(), grant, claim, done };
                sessions.open.insert(number, session);
                Begun::Open(number, entered)
            }
            Begun::Lost => Begun::Lost,
            Begun::Busy => Begun::Busy,
        }
    }

    /// Records a handler's effect in its transaction.
    pub fn effect(&self, session: u64, entry: Entry) -> Result<(), StoreError> {
        let case = self.case(entry);
        self.within(session, |session| {
            session.transaction.record(case.to_string()).map_err(|error| StoreError::Away(error.into()))?;
            session.done.push(Event::Effect(case));
            Ok(())
        })
    }

    /// See [`relevo_core::inbox::Inbox::skip`].
    pub async fn skip(&self, number: u64, entry: Entry) -> Result<(), StoreError> {
        let Some(mut session) = self.take(number) else { return Err(gone()) };
        let skipped = self.inner.skip(&mut session.transaction, entry).await;
        if skipped.is_ok() {
            session.done.push(Event::Skipped(self.case(entry)));
        }
        session.touched = Instant::now();
        lock(&self.sessions).open.insert(number, session);
        skipped
    }

    /// See [`relevo_core::inbox::Inbox::commit`].
    pub async fn commit(&self, session: u64) -> Result<(), StoreError> {
        let Some(Session { transaction, grant, claim, done, .. }) = self.take(session) else { return Err(gone()) };
        self.inner.commit(transaction).await?;
        // No other task runs between the commit and this, so the history contains commits in their order.
        if let Some(grant) = grant {
            self.history.record(Event::Wrote(grant, "committed"));
        }
        if let Some(claim) = claim {
            self.history.record(Event::WroteClaimed(claim, "committed"));
        }
        for event in done {
            self.history.record(event);
        }
        Ok(())
    }

    /// See [`relevo_core::inbox::Inbox::roll_back`].
    pub fn roll_back(&self, session: u64) {
        drop(self.take(session));
    }

    /// See [`relevo_core::inbox::Inbox::start`].
    pub async fn start(&self, arrival: Arrival) -> Result<u32, StoreError> {
        self.inner.start(&arrival).await
    }

    /// See [`relevo_core::inbox::Inbox::claim`].
    pub async fn claim(&self, arrival: Arrival, held: Option<Held>, lasts: Duration) -> Result<Claimed, StoreError> {
        let claimed = self.inner.claim(&arrival, held.as_ref(), lasts).await?;
        match claimed {
            Claimed::Mine(_) => self.wrote(held.as_ref(), "claimed a message"),
            Claimed::Behind => {
                self.wrote(held.as_ref(), "put a message behind others");
                self.history.record(Event::Waits(self.case(arrival.entry)));
            }
            Claimed::Repeat(_) | Claimed::Busy(_) | Claimed::Lost => {}
        }
        Ok(claimed)
    }

    /// See [`relevo_core::inbox::Inbox::ended`].
    pub async fn ended(&self, entry: Entry, claim: Option<Claim>) -> Result<(), StoreError> {
        self.inner.ended(entry, claim).await
    }

    /// See [`relevo_core::inbox::Inbox::set_back`].
    pub async fn set_back(
        &self,
        arrival: Arrival,
        held: Option<Held>,
        claim: Option<Claim>,
        setback: Setback,
    ) -> Result<Kept, StoreError> {
        let kept = self.inner.set_back(&arrival, held.as_ref(), claim, &setback).await?;
        if kept == Kept::Kept {
            self.wrote(held.as_ref(), "set a message back");
            self.stopped(arrival.entry, &setback);
        }
        Ok(kept)
    }

    /// See [`relevo_core::inbox::Inbox::due`].
    pub async fn due(&self, queues: usize, messages: usize, lasts: Duration) -> Result<Vec<Due>, StoreError> {
        let due = self.inner.due(queues, messages, lasts).await?;
        for due in &due {
            self.history.record(Event::Claimed(self.claim_of(due)));
            let messages =
                due.messages.iter().map(|waiting| ((due.queue.clone(), waiting.number), waiting.arrival.entry));
            lock(&self.sessions).queued.extend(messages);
        }
        Ok(due)
    }

    /// See [`relevo_core::inbox::Inbox::set_back_due`].
    pub async fn set_back_due(&self, due: Due, number: i64, setback: Setback) -> Result<Kept, StoreError> {
        let kept = self.inner.set_back_due(&due, number, &setback).await?;
        if kept == Kept::Kept {
            self.history.record(Event::WroteClaimed(self.claim_of(&due), "set a message back"));
            let entry = lock(&self.sessions).queued.get(&(due.queue, number)).copied();
            if let Some(entry) = entry {
                self.stopped(entry, &setback);
            }
        }
        Ok(kept)
    }

    /// See [`relevo_core::inbox::Inbox::release`].
    pub async fn release(&self, due: Due) -> Result<(), StoreError> {
        self.inner.release(&due).await
    }

    /// See [`relevo_core::inbox::Inbox::beat`].
    pub async fn beat(&self, beat: Beat) -> Result<Orders, StoreError> {
        self.inner.beat(&beat).await
    }

    /// See [`relevo_core::inbox::Inbox::take`].
    pub async fn take_lanes(&self, owner: Uuid, lanes: Vec<Lane>) -> Result<Vec<Held>, StoreError> {
        let taken = self.inner.take(owner, &lanes).await?;
        let mut sessions = lock(&self.sessions);
        for held in &taken {
            let grant = (held.epoch, held.owner);
            if sessions.grants.insert(held.lane.name().to_owned(), grant) != Some(grant) {
                self.history.record(Event::Granted(Grant::of(self.consumer, held)));
            }
        }
        drop(sessions);
        Ok(taken)
    }

    /// See [`relevo_core::inbox::Inbox::give_back`].
    pub async fn give_back(&self, owner: Uuid, lanes: Vec<Lane>) -> Result<(), StoreError> {
        self.inner.give_back(owner, &lanes).await
    }

    /// See [`relevo_core::inbox::Inbox::leave`].
    pub async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.leave(owner).await
    }

    /// See [`relevo_core::inbox::Inbox::prune`].
    pub async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.inner.prune(limit).await
    }

    fn stopped(&self, entry: Entry, setback: &Setback) {
        let dead = match setback.stop {
            Stop::Retry { .. } | Stop::Wait { .. } => None,
            Stop::DeadHold => Some(Dead::Hold),
            Stop::DeadContinue => Some(Dead::Continue),
        };
        let (case, class, attempts) = (self.case(entry), setback.class, setback.attempts);
        self.history.record(Event::SetBack { case, class, attempts, dead });
    }

    fn wrote(&self, held: Option<&Held>, what: &'static str) {
        if let Some(held) = held {
            self.history.record(Event::Wrote(Grant::of(self.consumer, held), what));
        }
    }

    fn claim_of(&self, due: &Due) -> event::Claim {
        event::Claim { consumer: self.consumer, queue: due.queue.clone(), token: due.token }
    }

    fn case(&self, entry: Entry) -> Case {
        self.directory.case(self.consumer, entry)
    }

    fn take(&self, number: u64) -> Option<Session> {
        lock(&self.sessions).open.remove(&number)
    }

    fn within<T>(
        &self,
        number: u64,
        deed: impl FnOnce(&mut Session) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut sessions = lock(&self.sessions);
        let session = sessions.open.get_mut(&number).ok_or_else(gone)?;
        session.touched = Instant::now();
        deed(session)
    }
}

fn gone() -> StoreError {
    StoreError::Away("the server has ended the transaction".into())
}
