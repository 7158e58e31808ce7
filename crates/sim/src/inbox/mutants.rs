//! Consumers that are broken on purpose, at the ports, so that the oracles are known to see it.

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

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// Acknowledges what it receives, not what it has committed.
    AcknowledgeFirst,
    /// Handles a message again that it has handled.
    ForgetHandled,
    /// Calls the far side although another does, and commits whoever's claim it is.
    IgnoreCalls,
    /// Handles a lane's messages whoever has the lane.
    IgnoreLanes,
    /// Claims queues of the retry table for a moment, and works on them whoever has claimed them since.
    IgnoreClaims,
    /// Deletes a queue without a second look: what was put there meanwhile is gone.
    EmptyUnseen,
    /// Redrives what was redriven.
    RedriveAgain,
    /// Handles a message at once although others of its key wait.
    Overtake,
    /// Counts as an attempt that what the handler needs is away.
    CountAway,
    /// Counts as attempts how often the broker handed a message over.
    CountDeliveries,
    /// Gives a message up in one transaction and keeps its dead letter in another.
    BuryApart,
    /// Keeps the beginning of a dead letter's bytes.
    CutBytes,
    /// Acknowledges a message that another member is calling for.
    TrustCallers,
    /// Keeps no order within a key.
    KeysAtOnce,
    /// Calls the far side under another id each time.
    FreshIds,
}

impl Mutant {
    /// All of them.
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

    /// The promise that it breaks.
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

/// An inbox, possibly one that makes a consumer wrong.
pub struct MutantInbox {
    inner: Memory,
    mutant: Option<Mutant>,
    state: Mutex<Confusion>,
}

/// What a mutant has to remember.
#[derive(Default)]
struct Confusion {
    /// Who claimed which queue last.
    claims: BTreeMap<ByteString, Uuid>,
    /// What was put behind others since.
    appended: BTreeMap<ByteString, Vec<Entry>>,
    stranded: BTreeSet<Entry>,
    /// Redriven a second time.
    again: Vec<Arrival>,
    /// Of those, what somebody works on.
    running: BTreeMap<ByteString, Arrival>,
    buried: u64,
}

impl MutantInbox {
    /// Leaves an inbox as it is, or makes it wrong.
    pub fn new(inner: Memory, mutant: Option<Mutant>) -> Self {
        Self { inner, mutant, state: Mutex::default() }
    }

    /// Somebody redrives a message that was redriven before.
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

    /// The claim under which a call about a queue is made.
    fn claimed(&self, due: &Due) -> Due {
        let current = lock(&self.state).claims.get(&due.queue).copied();
        let token = current.filter(|_| self.is(Mutant::IgnoreClaims)).unwrap_or(due.token);
        Due { token, ..due.clone() }
    }

    /// Opens a transaction whatever is known of the message.
    async fn force(&self, arrival: &Arrival) -> Result<Begun<Transaction>, StoreError> {
        let begun = self.inner.begin(Enter { held: None, arrivals: std::slice::from_ref(arrival) }).await?;
        Ok(match begun {
            Begun::Open(transaction, _) => Begun::Open(transaction, vec![Entered::New]),
            other => other,
        })
    }

    /// Loses what was put into a queue while it was emptied.
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
                // As if the process died between the two: the message has ended, and its letter was never written.
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

/// A connection to the broker, possibly one that makes a consumer wrong.
pub struct Port<C> {
    inner: C,
    mutant: Option<Mutant>,
}

impl<C: BrokerConsumer> Port<C> {
    /// Leaves the connection as it is, or makes it wrong.
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
            // Those that fail are delivered again.
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
