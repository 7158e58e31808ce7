//! The store port of consumers: it lets a handler's effect happen exactly once.
//!
//! A consumer is a name under which any number of processes, its *members*, work. An inbox keeps one row for each
//! (consumer, message id, replay). The row, the handler's effect, its emitted messages and its verdict commit together.
//! A message that cannot be handled now waits in a *queue* of the retry table, followed by later messages of its key.

pub mod ids;
pub mod operate;
pub mod retention_check;
pub mod retry_policy;
pub mod source;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use jiff::Timestamp;
use uuid::Uuid;

use crate::broker_consumer::{Lane, RawMessage};
use crate::message::MessageId;
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
    /// Correlates it with the messages that caused it.
    pub correlation: Option<ByteString>,
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

/// Messages to enter into the inbox.
#[derive(Clone, Copy, Debug)]
pub struct Enter<'a> {
    /// The lane of all these messages, if the consumer keeps order.
    pub held: Option<&'a LaneLease>,
    /// The messages, in order of arrival.
    pub arrivals: &'a [InboxMessage],
}

/// The result of entering one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnterOutcome {
    /// Handle it. It is done if the transaction commits.
    New,
    /// It was entered before. Only acknowledge it.
    Duplicate(InboxState),
    /// Its queue waits in the retry table. If the transaction commits, the message waits there too, behind the others.
    QueuedBehind,
}

/// The result of opening a transaction for a handler.
#[derive(Debug)]
pub enum BeginOutcome<T> {
    /// The transaction, and the result for each message in order.
    Open(T, Vec<EnterOutcome>),
    /// Another member owns the lane or the claim now. Nothing was changed.
    Fenced,
    /// Another worker has one of the messages, or its queue, in an open transaction. Nothing was changed. This is a
    /// delay and does not count as an attempt.
    Busy,
}

/// The right to call an external service for one message, until the claim expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallClaim {
    /// A random token, new for each claim.
    pub token: Uuid,
    /// How often handling of the message has started, including this time.
    pub unfinished_starts: u32,
}

/// The result of a claim request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The caller owns the claim and may make the call.
    Claimed(CallClaim),
    /// It was entered before. Only acknowledge it.
    Duplicate(InboxState),
    /// Its queue waits in the retry table, and the message now waits there too.
    QueuedBehind,
    /// Another worker's call may still run, at most for this long.
    Busy(Duration),
    /// Another member owns the lane now. Nothing was changed.
    Fenced,
}

/// What happens to a message that was not handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InboxFailureAction {
    /// It waits in the retry table, followed by later messages of its queue.
    Retry {
        /// From now, on the database's clock.
        after: Duration,
    },
    /// It was not tried. It keeps its place in the queue and its number of starts.
    Postpone {
        /// From now, on the database's clock.
        after: Duration,
    },
    /// Dead-lettered. Its queue waits for an operator.
    DeadHold,
    /// Dead-lettered. Its queue continues.
    DeadContinue,
}

/// A message that was not handled, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxFailure {
    /// What happens to it.
    pub action: InboxFailureAction,
    /// Counted attempts so far.
    pub attempts: u32,
    /// The class of the error.
    pub class: &'static str,
    /// The error text.
    pub error: String,
    /// The backtrace, if the handler panicked.
    pub backtrace: Option<String>,
}

/// The result of a setback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOutcome {
    /// It waits, or it is a dead letter. Acknowledge it.
    Recorded,
    /// It ended in the meantime. Acknowledge it.
    Duplicate(InboxState),
    /// Another member owns the lane or the claim now. Nothing was changed.
    Fenced,
    /// Another worker has it in an open transaction, or another worker's call may still run. Nothing was changed.
    Busy,
}

/// A queue of the retry table that is due, claimed by one member.
#[derive(Clone, Debug)]
pub struct ClaimedQueue {
    /// The queue.
    pub queue: ByteString,
    /// The claim. Every call for the queue includes it. After it expires, another member may claim the queue.
    pub token: Uuid,
    /// The first messages in order. Empty if the queue only has to be released.
    pub messages: Vec<QueuedMessage>,
}

/// A message of a claimed queue, with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedMessage {
    /// Its number in the queue.
    pub ordinal: i64,
    /// The message.
    pub message: InboxMessage,
    /// Counted attempts.
    pub attempts: u32,
    /// How often its handling started and did not end. For the first message, this includes the current start.
    pub unfinished_starts: u32,
    /// Whether an operator redrove it from the dead letters. Its age is then not checked.
    pub reopened: bool,
}

/// The heartbeat of a member.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// A random token, new for each process.
    pub owner: Uuid,
    /// The member's name, for operators.
    pub name: String,
    /// How long the member counts as alive from now.
    pub ttl: Duration,
    /// The lanes that it owns. Everything up to the number is settled at the broker.
    pub settled_offsets: Vec<(Lane, Option<u64>)>,
    /// When it last received a message.
    pub last_message_at: Option<Timestamp>,
    /// Lanes whose breaker is open, with the reason.
    pub breakers: Vec<(Lane, String)>,
}

/// Operator commands for a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// An operator paused the whole consumer.
    pub paused: bool,
    /// Lanes that an operator paused.
    pub paused_lanes: Vec<Lane>,
    /// Lanes whose breaker an operator forced open (`true`) or closed (`false`).
    pub breaker_overrides: Vec<(Lane, bool)>,
    /// Another member counted this one as dead, and may have taken its lanes.
    pub expired: bool,
}

/// Retention settings, and whether traces are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxRetention {
    /// How long the inbox remembers handled messages. The consumer runtime dead-letters older ones, because it could
    /// not detect a repeat.
    pub done: Duration,
    /// How long redriven or archived dead letters are kept.
    pub dead_letters: Duration,
    /// How long traces are kept. `None` writes no traces.
    pub trace: Option<Duration>,
}

impl Default for InboxRetention {
    fn default() -> Self {
        const DAY: Duration = Duration::from_hours(24);
        Self { done: 30 * DAY, dead_letters: 90 * DAY, trace: None }
    }
}

/// One consumer's inbox.
///
/// Unless stated otherwise, every call is one transaction. A cancelled call was either applied completely or not at
/// all. Dropping a transaction rolls it back.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// The transaction in which a handler runs.
    type Transaction: Send;

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

    /// Stores a message of a claimed queue that failed again. After [`InboxFailureAction::DeadContinue`] the next message may be
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

    /// Deletes expired rows, at most `limit` of each kind: done or skipped messages, archived or redriven dead letters,
    /// and traces. Returns whether more are left.
    async fn prune(&self, limit: usize) -> Result<bool, StoreError>;
}

#[cfg(test)]
mod tests {
    use super::operate::{DeadLetterState, ReplayState};
    use super::*;

    #[test]
    fn every_state_text_is_parsed_back() {
        assert!(InboxState::ALL.iter().all(|state| InboxState::parse(state.as_str()) == Some(*state)));
        assert!(DeadLetterState::ALL.iter().all(|fate| DeadLetterState::parse(fate.as_str()) == Some(*fate)));
        assert!(ReplayState::ALL.iter().all(|state| ReplayState::parse(state.as_str()) == Some(*state)));
        assert_eq!(
            (InboxState::parse("other"), DeadLetterState::parse("other"), ReplayState::parse("other")),
            (None, None, None)
        );
    }
}
