//! Consumers that are broken on purpose, through their ports, to prove that the oracles detect the fault.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use relevo_core::inbox::{
    Arrival, Beat, Begun, Claim, Claimed, Due, Enter, Entered, Entry, Held, Inbox, Kept, Orders, Setback, State, Stop,
    Waiting,
};
use relevo_core::store::StoreError;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane,
};
use relevo_store_memory::{Inbox as Memory, Transaction};
use uuid::Uuid;

use crate::history::lock;

/// Shorter than most handlers take.
const MOMENT: Duration = Duration::from_millis(20);

/// One fault of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Acknowledges messages on receipt, before the commit.
    AcknowledgeFirst,
    /// Handles a message again that is already handled.
    ForgetHandled,
    /// Calls the external service while another worker does, and commits under another worker's claim.
    IgnoreCalls,
    /// Handles the messages of a lane that another member owns.
    IgnoreLanes,
    /// Claims queues of the retry table for a moment, and works on them after another member has claimed them.
    IgnoreClaims,
    /// Deletes a queue without checking again, so that newly added messages are lost.
    EmptyUnseen,
    /// Redrives a dead letter that is already redriven.
    RedriveAgain,
    /// Handles a message at once although others of its key wait.
    Overtake,
    /// Counts an outage of the external service as an attempt.
    CountAway,
    /// Counts deliveries of the broker as attempts.
    CountDeliveries,
    /// Dead-letters a message in one transaction and stores its dead letter in another.
    BuryApart,
    /// Stores only the beginning of a dead letter's bytes.
    CutBytes,
    /// Acknowledges a message while another member's call for it is running.
    TrustCallers,
    /// Keeps no order within a key.
    KeysAtOnce,
    /// Calls the external service with a new id each time.
    FreshIds,
}

impl Mutant {
    /// All mutants.
    pub const ALL: [Self; 15] = [
        Self::AcknowledgeFirst,
        Self::ForgetHandled,
        Self::IgnoreCalls,
        Self::IgnoreLanes,
        Self::IgnoreClaims,
        Self::EmptyUnseen,
        Self::RedriveAgain,
        Self::Overtake,
        Self::CountAway,
        Self::CountDeliveries,
        Self::BuryApart,
        Self::CutBytes,
        Self::TrustCallers,
        Self::KeysAtOnce,
        Self::FreshIds,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AcknowledgeFirst => "acknowledge-first",
            Self::ForgetHandled => "forget-handled",
            Self::IgnoreCalls => "ignore-calls",
            Self::IgnoreLanes => "ignore-lanes",
            Self::IgnoreClaims => "ignore-claims",
            Self::EmptyUnseen => "empty-unseen",
            Self::RedriveAgain => "redrive-again",
            Self::Overtake => "overtake",
            Self::CountAway => "count-away",
            Self::CountDeliveries => "count-deliveries",
            Self::BuryApart => "bury-apart",
            Self::CutBytes => "cut-bytes",
            Self::TrustCallers => "trust-callers",
            Self::KeysAtOnce => "keys-at-once",
            Self::FreshIds => "fresh-ids",
        }
    }

    /// The promise that the mutant breaks.
    pub const fn breaks(self) -> &'static str {
        match self {
            Self::AcknowledgeFirst
            | Self::ForgetHandled
            | Self::IgnoreCalls
            | Self::EmptyUnseen
            | Self::Overtake
            | Self::BuryApart
            | Self::TrustCallers
            | Self::KeysAtOnce
            | Self::FreshIds => "P6",
            Self::IgnoreLanes | Self::IgnoreClaims => "P8",
            Self::RedriveAgain | Self::CutBytes => "P7",
            Self::CountAway | Self::CountDeliveries => "P5",
        }
    }
}

/// An inbox that may contain the fault of a mutant.
pub struct MutantInbox {
    inner: Memory,
    mutant: Option<Mutant>,
    state: Mutex<Confusion>,
}

/// The state of a mutant.
#[derive(Default)]
struct Confusion {
    /// The last claim of each queue.
    claims: BTreeMap<ByteString, Uuid>,
    /// Messages that were appended to each queue since.
    appended: BTreeMap<ByteString, Vec<Entry>>,
    stranded: BTreeSet<Entry>,
    /// Dead letters that were redriven a second time.
    again: Vec<Arrival>,
    /// Those of them that a member is handling.
    running: BTreeMap<ByteString, Arrival>,
    buried: u64,
}

impl MutantInbox {
    /// Wraps an inbox. Without a mutant, it behaves normally.
    pub fn new(inner: Memory, mutant: Option<Mutant>) -> Self {
        Self { inner, mutant, state: Mutex::default() }
    }

    /// Simulates a redrive of a message that was redriven before.
    pub fn redrive_again(&self, arrival: Arrival) {
        if self.is(Mutant::RedriveAgain) {
            lock(&self.state).again.push(arrival);
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn lane<'a>(&self, held: Option<&'a Held>) -> Option<&'a Held> {
        held.filter(|_| !self.is(Mutant::IgnoreLanes))
    }

    /// The claim to use for a call about a queue.
    fn claimed(&self, due: &Due) -> Due {
        let current = lock(&self.state).claims.get(&due.queue).copied();
        let token = current.filter(|_| self.is(Mutant::IgnoreClaims)).unwrap_or(due.token);
        Due { token, ..due.clone() }
    }

    /// Opens a transaction whatever the state of the message is.
    async fn force(&self, arrival: &Arrival) -> Result<Begun<Transaction>, StoreError> {
        let begun = self.inner.begin(Enter { held: None, arrivals: std::slice::from_ref(arrival) }).await?;
        Ok(match begun {
            Begun::Open(transaction, _) => Begun::Open(transaction, vec![Entered::New]),
            other => other,
        })
    }

    /// Loses messages that were appended to a queue while it was emptied.
    async fn strand(&self, due: &mut Due) -> Result<(), StoreError> {
        while let Some(first) = due.messages.first()
            && lock(&self.state).stranded.contains(&first.arrival.entry)
        {
            if let Begun::Open(transaction, _) = self.inner.begin_due(due, first.number).await? {
                self.inner.commit(transaction).await?;
            }
            due.messages.remove(0);
        }
        Ok(())
    }
}

#[async_trait]
impl Inbox for MutantInbox {
    type Transaction = Transaction;

    async fn begin(&self, enter: Enter<'_>) -> Result<Begun<Transaction>, StoreError> {
        let enter = Enter { held: self.lane(enter.held), ..enter };
        let mut begun = self.inner.begin(enter).await?;
        if let Begun::Open(_, entered) = &mut begun {
            for (entered, arrival) in entered.iter_mut().zip(enter.arrivals) {
                match (self.mutant, *entered) {
                    (Some(Mutant::ForgetHandled), Entered::Repeat(State::Done))
                    | (Some(Mutant::Overtake), Entered::Behind) => *entered = Entered::New,
                    (Some(Mutant::EmptyUnseen), Entered::Behind) => {
                        lock(&self.state).appended.entry(arrival.queue.clone()).or_default().push(arrival.entry);
                    }
                    _ => {}
                }
            }
        }
        Ok(begun)
    }

    async fn skip(&self, transaction: &mut Transaction, entry: Entry) -> Result<(), StoreError> {
        self.inner.skip(transaction, entry).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.inner.commit(transaction).await
    }

    async fn roll_back(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.inner.roll_back(transaction).await
    }

    async fn start(&self, arrival: &Arrival) -> Result<u32, StoreError> {
        self.inner.start(arrival).await
    }

    async fn claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> Result<Claimed, StoreError> {
        let claimed = self.inner.claim(arrival, self.lane(held), lasts).await?;
        Ok(match (self.mutant, claimed) {
            (Some(Mutant::IgnoreCalls), Claimed::Busy(_)) => Claimed::Mine(Claim { token: Uuid::nil(), started: 1 }),
            (Some(Mutant::TrustCallers), Claimed::Busy(_)) => Claimed::Repeat(State::Done),
            (_, claimed) => claimed,
        })
    }

    async fn begin_claimed(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Claim,
    ) -> Result<Begun<Transaction>, StoreError> {
        match self.inner.begin_claimed(arrival, self.lane(held), claim).await? {
            Begun::Lost if self.is(Mutant::IgnoreCalls) => self.force(arrival).await,
            begun => Ok(begun),
        }
    }

    async fn ended(&self, entry: Entry, claim: Option<Claim>) -> Result<(), StoreError> {
        self.inner.ended(entry, claim).await
    }

    async fn set_back(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> Result<Kept, StoreError> {
        let is_dead = !matches!(setback.stop, Stop::Retry { .. } | Stop::Wait { .. });
        if is_dead && self.is(Mutant::BuryApart) {
            let buried = &mut lock(&self.state).buried;
            *buried += 1;
            if buried.is_multiple_of(3) {
                // Simulates a crash between the two: the message has ended, and its dead letter was never stored.
                return Ok(Kept::Repeat(State::Dead));
            }
        }
        let mut arrival = arrival.clone();
        if is_dead && self.is(Mutant::CutBytes) {
            let payload = &arrival.raw.payload;
            arrival.raw.payload = payload.slice(..payload.len() / 2);
        }
        self.inner.set_back(&arrival, self.lane(held), claim, setback).await
    }

    async fn due(&self, queues: usize, messages: usize, lasts: Duration) -> Result<Vec<Due>, StoreError> {
        let lasts = if self.is(Mutant::IgnoreClaims) { MOMENT } else { lasts };
        let mut due = self.inner.due(queues, messages, lasts).await?;
        for due in &mut due {
            lock(&self.state).claims.insert(due.queue.clone(), due.token);
            lock(&self.state).appended.remove(&due.queue);
            self.strand(due).await?;
        }
        let mut state = lock(&self.state);
        for arrival in std::mem::take(&mut state.again) {
            let queue = arrival.queue.clone();
            state.running.insert(queue.clone(), arrival.clone());
            let messages = vec![Waiting { number: 0, arrival, attempts: 0, started: 1, reopened: true }];
            due.push(Due { queue, token: Uuid::nil(), messages });
        }
        Ok(due)
    }

    async fn begin_due(&self, due: &Due, number: i64) -> Result<Begun<Transaction>, StoreError> {
        if due.token.is_nil() {
            let arrival = lock(&self.state).running.get(&due.queue).cloned();
            let Some(arrival) = arrival else { return Ok(Begun::Lost) };
            return self.force(&arrival).await;
        }
        self.inner.begin_due(&self.claimed(due), number).await
    }

    async fn set_back_due(&self, due: &Due, number: i64, setback: &Setback) -> Result<Kept, StoreError> {
        if due.token.is_nil() {
            return Ok(Kept::Lost);
        }
        self.inner.set_back_due(&self.claimed(due), number, setback).await
    }

    async fn release(&self, due: &Due) -> Result<(), StoreError> {
        if self.is(Mutant::EmptyUnseen) {
            let mut state = lock(&self.state);
            let appended = state.appended.remove(&due.queue).unwrap_or_default();
            state.stranded.extend(appended);
        }
        self.inner.release(&self.claimed(due)).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Orders, StoreError> {
        self.inner.beat(beat).await
    }

    async fn take(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<Held>, StoreError> {
        self.inner.take(owner, lanes).await
    }

    async fn give_back(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        self.inner.give_back(owner, lanes).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.leave(owner).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.inner.prune(limit).await
    }
}

/// A broker connection that may contain the fault of a mutant.
pub struct Port<C> {
    inner: C,
    mutant: Option<Mutant>,
}

impl<C: BrokerConsumer> Port<C> {
    /// Wraps a connection. Without a mutant, it behaves normally.
    pub const fn new(inner: C, mutant: Option<Mutant>) -> Self {
        Self { inner, mutant }
    }
}

#[async_trait]
impl<C: BrokerConsumer> BrokerConsumer for Port<C> {
    fn capabilities(&self) -> ConsumerCapabilities {
        self.inner.capabilities()
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        self.inner.delayed_retry()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        let mut deliveries = self.inner.receive(limit).await?;
        if self.mutant == Some(Mutant::CountDeliveries) {
            for delivery in &mut deliveries {
                delivery.retries += u32::from(delivery.redelivered);
            }
        }
        if self.mutant == Some(Mutant::AcknowledgeFirst) {
            let tags: Vec<DeliveryTag> = deliveries.iter().map(|delivery| delivery.tag).collect();
            // Messages whose acknowledgement fails are delivered again.
            drop(self.inner.acknowledge(&tags).await);
        }
        Ok(deliveries)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        self.inner.acknowledge(tags).await
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.pause(lane).await
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.resume(lane).await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.inner.close().await
    }
}
