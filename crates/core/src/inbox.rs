//! The store port of consumers: it lets a handler's effect happen exactly once.
//!
//! A consumer is a name under which any number of processes, its *members*, work. An inbox keeps one row for each
//! (consumer, message id, replay). The row, the handler's effect, its emitted messages and its verdict commit together.
//! A message that cannot be handled now waits in a *queue* of the retry table, followed by later messages of its key.

pub mod admin;
pub mod attempts;
pub mod ids;
pub mod members;
pub mod replays;
pub mod retention_check;
pub mod retries;
pub mod retry_policy;
pub mod transactions;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use uuid::Uuid;

use crate::broker_consumer::{Lane, RawMessage};
use crate::dead_letters::DeadLetterAdmin;
use crate::inbox::admin::ConsumerAdmin;
use crate::inbox::attempts::{CallClaim, ClaimOutcome};
use crate::inbox::members::{Heartbeat, HeartbeatReply};
use crate::inbox::replays::ConsumerReplays;
use crate::inbox::retries::{ClaimedQueue, InboxFailure, RecordOutcome};
use crate::inbox::transactions::{BeginOutcome, Enter};
use crate::message::MessageId;
use crate::outbox::transaction::StoreTransaction;
use crate::store::StoreError;

/// Identifies a message in one consumer's inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupId {
    /// The same for every repeat of the message.
    pub id: MessageId,
    /// Zero for normal deliveries, or the number of a replay. It is not related to lease epochs.
    pub replay: u32,
}

/// A received message, with everything that a dead letter stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxMessage {
    /// Identifies it in the inbox.
    pub dedup_id: DedupId,
    /// The queue where it waits if it cannot be handled now. This is its key for an ordered consumer, its id otherwise.
    pub queue: ByteString,
    /// The received headers and payload, unchanged.
    pub raw: RawMessage,
    /// The address it was published to.
    pub address: Arc<str>,
    /// The lane it arrived in.
    pub lane: Lane,
    /// Its number at the broker, if the broker has one.
    pub offset: Option<u64>,
}

/// The right to handle the messages of one lane, for an ordered consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneLease {
    /// The lane.
    pub lane: Lane,
    /// Increases with every change of owner.
    pub epoch: i64,
    /// The member that owns it.
    pub owner: Uuid,
}

/// The state of a message in an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InboxState {
    /// Handling started and has not ended. The message may have crashed the process.
    Started,
    /// A call to an external service is running for it, outside of any transaction.
    Calling,
    /// It waits in the retry table.
    Waiting,
    /// Handled.
    Done,
    /// Its handler ignored it.
    Skipped,
    /// Dead-lettered.
    Dead,
    /// An operator redrove the dead letter, and the message waits in the retry table.
    Redriven,
}

impl InboxState {
    /// Every state, in life-cycle order.
    pub const ALL: [Self; 7] =
        [Self::Started, Self::Calling, Self::Waiting, Self::Done, Self::Skipped, Self::Dead, Self::Redriven];

    /// The name used in SQL, JSON and CLI output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Calling => "calling",
            Self::Waiting => "waiting",
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Dead => "dead",
            Self::Redriven => "redriven",
        }
    }

    /// Parses a name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// Retention settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxRetention {
    /// How long the inbox remembers handled messages. The consumer runtime dead-letters older ones, because it could
    /// not detect a repeat.
    pub done: Duration,
    /// How long redriven or archived dead letters are kept.
    pub dead_letters: Duration,
}

impl Default for InboxRetention {
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self { done: 30 * DAY, dead_letters: 90 * DAY }
    }
}

/// One consumer's inbox.
///
/// Unless stated otherwise, every call is one transaction. A cancelled call was either applied completely or not at
/// all. Dropping a transaction rolls it back.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// The transaction in which a handler runs.
    type Transaction: StoreTransaction;

    /// Opens a transaction and enters messages in it. If a lane is given, the transaction also locks the lane, so that
    /// its owner cannot change before the end. Waits for other workers only for a short time.
    async fn begin(&self, enter: Enter<'_>) -> Result<BeginOutcome<Self::Transaction>, StoreError>;

    /// Marks a message as skipped, in the handler's transaction. It was entered as handled.
    async fn skip(&self, transaction: &mut Self::Transaction, entry: DedupId) -> Result<(), StoreError>;

    /// Commits. After an error, the commit may have happened.
    async fn commit(&self, transaction: Self::Transaction) -> Result<(), StoreError>;

    /// Commits, then begins the next transaction like [`begin`](Self::begin). A store may do both in one round trip.
    /// The outer error belongs to the commit: the commit may have happened, and nothing was begun. The inner result
    /// belongs to the next transaction.
    async fn commit_and_begin(
        &self,
        transaction: Self::Transaction,
        next: Enter<'_>,
    ) -> Result<Result<BeginOutcome<Self::Transaction>, StoreError>, StoreError> {
        self.commit(transaction).await?;
        Ok(self.begin(next).await)
    }

    /// Rolls back all changes.
    async fn rollback(&self, transaction: Self::Transaction) -> Result<(), StoreError>;

    /// Records that handling of a redelivered message starts. Returns how often it has started, so that a message that
    /// crashes the process each time is detected.
    async fn record_start(&self, arrival: &InboxMessage) -> Result<u32, StoreError>;

    /// Claims a message for a call to an external service outside of any transaction. The claim expires after `lasts`.
    async fn claim_call(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        lasts: Duration,
    ) -> Result<ClaimOutcome, StoreError>;

    /// Opens the transaction that commits the result of a call. Succeeds only while the claim is still valid.
    async fn begin_claimed(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<Self::Transaction>, StoreError>;

    /// Records that handling ended without a result while the process is alive, so that the message is tried again.
    /// Resets the number of starts to zero. Ends the claim, so that the next call can claim: the state returns to
    /// [`InboxState::Started`]. Changes nothing if the message has ended, waits, was never recorded, or has a claim of another
    /// worker.
    async fn end_attempt(&self, entry: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError>;

    /// Stores a message that was not handled, in the retry table or as a dead letter. `claim` is the claim of its call.
    /// Without one, an expired call of another worker counts as a start without an end.
    async fn set_back(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: Option<CallClaim>,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError>;

    /// Claims due queues until `lasts` is over: at most `queues` queues with at most `messages` messages each.
    async fn claim_due(&self, queues: usize, messages: usize, lasts: Duration)
    -> Result<Vec<ClaimedQueue>, StoreError>;

    /// Opens the transaction that handles one message of a claimed queue. It must be the first remaining message. On
    /// commit, the message is done and leaves the queue.
    async fn begin_due(&self, due: &ClaimedQueue, number: i64) -> Result<BeginOutcome<Self::Transaction>, StoreError>;

    /// Stores a message of a claimed queue that failed again. After [`DeadContinue`](retries::InboxFailureAction::DeadContinue) the next message may be
    /// handled. Any other value ends the claim.
    async fn set_back_due(
        &self,
        due: &ClaimedQueue,
        number: i64,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError>;

    /// Ends a claim. An empty queue is deleted, so that later messages of its key are handled directly again. A lost
    /// claim is ignored.
    async fn release_queue(&self, due: &ClaimedQueue) -> Result<(), StoreError>;

    /// Records a heartbeat and returns the operator commands for the member.
    async fn heartbeat(&self, beat: &Heartbeat) -> Result<HeartbeatReply, StoreError>;

    /// Takes lanes for a living member. It gets lanes that it already owns, free lanes, and lanes whose owner is dead
    /// and has no open transaction. The epoch of a lane increases with every change of owner. Lanes of other members
    /// are not returned.
    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError>;

    /// Frees lanes of a living member, because the broker has assigned them to another one. Does not change lanes of
    /// other owners. May wait for open transactions that hold the lanes.
    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError>;

    /// Frees the lanes of a member and deletes the member.
    async fn leave(&self, owner: Uuid) -> Result<(), StoreError>;

    /// Deletes expired rows, at most `limit` of each kind: done or skipped messages, and discarded or redriven dead
    /// letters. Returns whether more are left.
    async fn prune(&self, limit: usize) -> Result<bool, StoreError>;
}

/// All ports of operators to the consumers of a database.
pub trait ConsumerOperator: ConsumerAdmin + DeadLetterAdmin {
    /// Replays. `None` if the store has none.
    fn as_replays(&self) -> Option<&dyn ConsumerReplays>;
}

#[cfg(test)]
mod tests {
    use super::replays::ReplayState;
    use super::*;

    #[test]
    fn every_state_text_is_parsed_back() {
        assert!(InboxState::ALL.iter().all(|state| InboxState::parse(state.as_str()) == Some(*state)));
        assert!(ReplayState::ALL.iter().all(|state| ReplayState::parse(state.as_str()) == Some(*state)));
        assert_eq!((InboxState::parse("other"), ReplayState::parse("other")), (None, None));
    }
}
