//! Consumers that are broken on purpose, through their ports, to prove that the oracles detect the fault.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use parking_lot::Mutex;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome, InboxAttempts};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply, InboxMembers};
use relevo_core::inbox::retries::{
    ClaimedQueue, InboxFailure, InboxFailureAction, InboxRetries, QueueClaim, QueuedMessage, RecordOutcome,
};
use relevo_core::inbox::transactions::{BeginOutcome, CommitOutcome, EnterOutcome, InboxTransactions};
use relevo_core::inbox::{DedupId, Fence, Inbox, InboxMessage, InboxRetention, InboxState, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane,
};
use relevo_store_memory::{Inbox as Memory, Transaction};
use uuid::Uuid;

/// Shorter than most handlers take.
const SHORT_CLAIM: Duration = Duration::from_millis(20);

relevo_core::text_enum! {
    /// One fault of a consumer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Mutant {
        /// Acknowledges messages on receipt, before the commit.
        AcknowledgeFirst = "acknowledge-first",
        /// Handles a message again that is already handled.
        HandleAgain = "handle-again",
        /// Calls the external service while another worker does, and commits under another worker's claim.
        IgnoreCalls = "ignore-calls",
        /// Handles the messages of a lane that another member owns.
        IgnoreLanes = "ignore-lanes",
        /// Claims queues of the retry table for a moment, and works on them after another member has claimed them.
        IgnoreClaims = "ignore-claims",
        /// Deletes a queue without checking again, so that newly added messages are lost.
        DeleteUnchecked = "delete-unchecked",
        /// Redrives a dead letter that is already redriven.
        RedriveAgain = "redrive-again",
        /// Handles a message at once although others of its key wait.
        Overtake = "overtake",
        /// Counts an outage of the external service as an attempt.
        CountOutages = "count-outages",
        /// Counts deliveries of the broker as attempts.
        CountDeliveries = "count-deliveries",
        /// Dead-letters a message in one transaction and stores its dead letter in another.
        SplitDeadLetter = "split-dead-letter",
        /// Stores only the beginning of a dead letter's bytes.
        CutBytes = "cut-bytes",
        /// Acknowledges a message while another member's call for it is running.
        TrustCallers = "trust-callers",
        /// Keeps no order within a key.
        KeysAtOnce = "keys-at-once",
        /// Calls the external service with a new id each time.
        FreshIds = "fresh-ids",
    }
}

impl Mutant {
    /// The promise that the mutant breaks.
    pub const fn breaks(self) -> &'static str {
        match self {
            Self::AcknowledgeFirst
            | Self::HandleAgain
            | Self::IgnoreCalls
            | Self::DeleteUnchecked
            | Self::Overtake
            | Self::SplitDeadLetter
            | Self::TrustCallers
            | Self::KeysAtOnce
            | Self::FreshIds => "P6",
            Self::IgnoreLanes | Self::IgnoreClaims => "P8",
            Self::RedriveAgain | Self::CutBytes => "P7",
            Self::CountOutages | Self::CountDeliveries => "P5",
        }
    }
}

/// An inbox that may contain the fault of a mutant.
pub struct MutantInbox {
    inner: Memory,
    mutant: Option<Mutant>,
    state: Mutex<MutantState>,
}

/// The state of a mutant.
#[derive(Default)]
struct MutantState {
    /// The last claim of each queue.
    claims: BTreeMap<ByteString, Uuid>,
    /// Messages that were appended to each queue since.
    appended: BTreeMap<ByteString, Vec<DedupId>>,
    stranded: BTreeSet<DedupId>,
    /// Dead letters that were redriven a second time.
    redriven_again: Vec<InboxMessage>,
    /// Those of them that a member is handling.
    running: BTreeMap<ByteString, InboxMessage>,
    dead_letters: u64,
}

impl MutantInbox {
    /// Wraps an inbox. Without a mutant, it behaves normally.
    pub fn new(inner: Memory, mutant: Option<Mutant>) -> Self {
        Self { inner, mutant, state: Mutex::default() }
    }

    /// Simulates a redrive of a message that was redriven before.
    pub fn redrive_again(&self, message: InboxMessage) {
        if self.is(Mutant::RedriveAgain) {
            self.state.lock().redriven_again.push(message);
        }
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn lane<'a>(&self, lease: Option<&'a LaneLease>) -> Option<&'a LaneLease> {
        lease.filter(|_| !self.is(Mutant::IgnoreLanes))
    }

    /// The claim to use for a call about a queue.
    fn claim(&self, claim: &QueueClaim) -> QueueClaim {
        let current = self.state.lock().claims.get(&claim.queue).copied();
        let token = current.filter(|_| self.is(Mutant::IgnoreClaims)).unwrap_or(claim.token);
        QueueClaim { token, ..claim.clone() }
    }

    /// Opens a transaction in any state of the message.
    async fn begin_unchecked(&self, message: &InboxMessage) -> Result<BeginOutcome<Transaction>, StoreError> {
        let outcome = self.inner.begin(std::slice::from_ref(message), Fence::Live { lane: None }).await?;
        Ok(match outcome {
            BeginOutcome::Open(transaction, _) => BeginOutcome::Open(transaction, vec![EnterOutcome::New]),
            other => other,
        })
    }

    /// Loses messages that were appended to a queue while it was emptied.
    async fn drop_stranded(&self, claimed: &mut ClaimedQueue) -> Result<(), StoreError> {
        while let Some(first) = claimed.messages.first()
            && self.state.lock().stranded.contains(&first.message.dedup_id)
        {
            let fence = Fence::Queue { claim: &claimed.claim, ordinal: first.ordinal };
            if let BeginOutcome::Open(tx, _) = self.inner.begin(std::slice::from_ref(&first.message), fence).await? {
                self.inner.commit(tx, &[]).await?;
            }
            claimed.messages.remove(0);
        }
        Ok(())
    }
}

impl Inbox for MutantInbox {
    fn consumer(&self) -> &str {
        self.inner.consumer()
    }

    fn retention(&self) -> InboxRetention {
        self.inner.retention()
    }
}

impl MutantInbox {
    async fn begin_live(
        &self,
        messages: &[InboxMessage],
        lane: Option<&LaneLease>,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        let mut outcome = self.inner.begin(messages, Fence::Live { lane: self.lane(lane) }).await?;
        if let BeginOutcome::Open(_, entered) = &mut outcome {
            for (entered, message) in entered.iter_mut().zip(messages) {
                match (self.mutant, *entered) {
                    (Some(Mutant::HandleAgain), EnterOutcome::Duplicate(InboxState::Done))
                    | (Some(Mutant::Overtake), EnterOutcome::QueuedBehind) => *entered = EnterOutcome::New,
                    (Some(Mutant::DeleteUnchecked), EnterOutcome::QueuedBehind) => {
                        self.state.lock().appended.entry(message.queue.clone()).or_default().push(message.dedup_id);
                    }
                    _ => {}
                }
            }
        }
        Ok(outcome)
    }

    async fn begin_queued(
        &self,
        messages: &[InboxMessage],
        claim: &QueueClaim,
        ordinal: i64,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        if claim.token.is_nil() {
            let message = self.state.lock().running.get(&claim.queue).cloned();
            let Some(message) = message else { return Ok(BeginOutcome::Fenced) };
            return self.begin_unchecked(&message).await;
        }
        self.inner.begin(messages, Fence::Queue { claim: &self.claim(claim), ordinal }).await
    }

    async fn record_live_failure(
        &self,
        message: &InboxMessage,
        fence: Fence<'_>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let is_dead = matches!(failure.action, InboxFailureAction::DeadLetter(_));
        if is_dead && self.is(Mutant::SplitDeadLetter) {
            let dead_count = &mut self.state.lock().dead_letters;
            *dead_count += 1;
            if dead_count.is_multiple_of(3) {
                // Simulates a crash between the two: the message has ended, and its dead letter was never stored.
                return Ok(RecordOutcome::Duplicate(InboxState::Dead));
            }
        }
        let mut message = message.clone();
        if is_dead && self.is(Mutant::CutBytes) {
            let payload = &message.raw.payload;
            message.raw.payload = payload.slice(..payload.len() / 2);
        }
        self.inner.record_failure(&message, fence, failure).await
    }
}

#[async_trait]
impl InboxTransactions for MutantInbox {
    type Transaction = Transaction;

    async fn begin(
        &self,
        messages: &[InboxMessage],
        fence: Fence<'_>,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        match fence {
            Fence::Live { lane } => self.begin_live(messages, lane).await,
            Fence::Call { lane, claim } => {
                match self.inner.begin(messages, Fence::Call { lane: self.lane(lane), claim }).await? {
                    BeginOutcome::Fenced if self.is(Mutant::IgnoreCalls) => self.begin_unchecked(&messages[0]).await,
                    outcome => Ok(outcome),
                }
            }
            Fence::Queue { claim, ordinal } => self.begin_queued(messages, claim, ordinal).await,
        }
    }

    async fn commit(&self, tx: Transaction, skipped: &[DedupId]) -> Result<CommitOutcome, StoreError> {
        self.inner.commit(tx, skipped).await
    }

    async fn rollback(&self, tx: Transaction) -> Result<(), StoreError> {
        self.inner.rollback(tx).await
    }
}

#[async_trait]
impl InboxAttempts for MutantInbox {
    async fn record_start(&self, message: &InboxMessage) -> Result<u32, StoreError> {
        self.inner.record_start(message).await
    }

    async fn claim_call(
        &self,
        message: &InboxMessage,
        lane: Option<&LaneLease>,
        ttl: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        let claimed = self.inner.claim_call(message, self.lane(lane), ttl).await?;
        Ok(match (self.mutant, claimed) {
            (Some(Mutant::IgnoreCalls), ClaimOutcome::Busy(_)) => {
                ClaimOutcome::Claimed(CallClaim { token: Uuid::nil(), unfinished_starts: 1 })
            }
            (Some(Mutant::TrustCallers), ClaimOutcome::Busy(_)) => ClaimOutcome::Duplicate(InboxState::Done),
            (_, claimed) => claimed,
        })
    }

    async fn end_attempt(&self, id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.inner.end_attempt(id, claim).await
    }
}

#[async_trait]
impl InboxRetries for MutantInbox {
    async fn record_failure(
        &self,
        message: &InboxMessage,
        fence: Fence<'_>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        match fence {
            Fence::Live { lane } => {
                self.record_live_failure(message, Fence::Live { lane: self.lane(lane) }, failure).await
            }
            Fence::Call { lane, claim } => {
                self.record_live_failure(message, Fence::Call { lane: self.lane(lane), claim }, failure).await
            }
            Fence::Queue { claim, .. } if claim.token.is_nil() => Ok(RecordOutcome::Fenced),
            Fence::Queue { claim, ordinal } => {
                let claim = self.claim(claim);
                self.inner.record_failure(message, Fence::Queue { claim: &claim, ordinal }, failure).await
            }
        }
    }

    async fn claim_due(&self, queues: usize, messages: usize, ttl: Duration) -> Result<Vec<ClaimedQueue>, StoreError> {
        let ttl = if self.is(Mutant::IgnoreClaims) { SHORT_CLAIM } else { ttl };
        let mut claimed = self.inner.claim_due(queues, messages, ttl).await?;
        for claimed in &mut claimed {
            self.state.lock().claims.insert(claimed.claim.queue.clone(), claimed.claim.token);
            self.state.lock().appended.remove(&claimed.claim.queue);
            self.drop_stranded(claimed).await?;
        }
        let mut state = self.state.lock();
        for message in std::mem::take(&mut state.redriven_again) {
            let queue = message.queue.clone();
            state.running.insert(queue.clone(), message.clone());
            let messages = vec![QueuedMessage { ordinal: 0, message, unfinished_starts: 1 }];
            claimed.push(ClaimedQueue { claim: QueueClaim { queue, token: Uuid::nil() }, messages });
        }
        Ok(claimed)
    }

    async fn release_queue(&self, claim: &QueueClaim) -> Result<(), StoreError> {
        if self.is(Mutant::DeleteUnchecked) {
            let mut state = self.state.lock();
            let appended = state.appended.remove(&claim.queue).unwrap_or_default();
            state.stranded.extend(appended);
        }
        self.inner.release_queue(&self.claim(claim)).await
    }
}

#[async_trait]
impl InboxMembers for MutantInbox {
    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        self.inner.heartbeat(heartbeat).await
    }

    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError> {
        self.inner.acquire_lanes(owner, lanes).await
    }

    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        self.inner.release_lanes(owner, lanes).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.leave(owner).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        self.inner.prune(limit).await
    }
}

/// A broker connection that may contain the fault of a mutant.
pub struct MutantConsumer<C> {
    inner: C,
    mutant: Option<Mutant>,
}

impl<C: BrokerConsumer> MutantConsumer<C> {
    /// Wraps a connection. Without a mutant, it behaves normally.
    pub const fn new(inner: C, mutant: Option<Mutant>) -> Self {
        Self { inner, mutant }
    }
}

#[async_trait]
impl<C: BrokerConsumer> BrokerConsumer for MutantConsumer<C> {
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
                delivery.retry_count += u32::from(delivery.redelivered);
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
