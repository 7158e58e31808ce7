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

use bytestring::ByteString;
use uuid::Uuid;

use crate::broker_consumer::{Lane, RawMessage};
use crate::dead_letters::DeadLetterAdmin;
use crate::inbox::admin::ConsumerAdmin;
use crate::inbox::attempts::{CallClaim, InboxAttempts};
use crate::inbox::members::InboxMembers;
use crate::inbox::replays::ConsumerReplays;
use crate::inbox::retries::{InboxRetries, QueueClaim};
use crate::inbox::transactions::InboxTransactions;
use crate::message::MessageId;

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
    /// Counted attempts so far. A message that is queued behind others keeps them.
    pub attempts: u32,
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

crate::text_enum! {
    /// The state of a message in an inbox.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum InboxState {
        /// Handling started and has not ended. The message may have crashed the process.
        Started = "started",
        /// A call to an external service is running for it, outside of any transaction.
        Calling = "calling",
        /// It waits in the retry table.
        Waiting = "waiting",
        /// Handled.
        Done = "done",
        /// Its handler ignored it.
        Skipped = "skipped",
        /// Dead-lettered.
        Dead = "dead",
        /// An operator redrove the dead letter, and the message waits in the retry table.
        Redriven = "redriven",
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

/// The right to write for messages. Every write checks it. If it is lost, the write changes nothing.
#[derive(Clone, Copy, Debug)]
pub enum Fence<'a> {
    /// Messages that the broker delivered.
    Live {
        /// The lane of all these messages, if the consumer keeps order.
        lane: Option<&'a LaneLease>,
    },
    /// One delivered message whose external service is called, or was called.
    Call {
        /// The lane of the message, if the consumer keeps order.
        lane: Option<&'a LaneLease>,
        /// The claim of its call.
        claim: CallClaim,
    },
    /// The first message of a claimed retry queue.
    Queue {
        /// The claim of the queue.
        claim: &'a QueueClaim,
        /// The number of the message in the queue.
        ordinal: i64,
    },
}

/// One consumer's inbox, as its consumer runtime uses it.
///
/// Unless stated otherwise, every call is one transaction. A cancelled call was either applied completely or not at
/// all. Dropping a transaction rolls it back. [`StoreError::Busy`](crate::store::StoreError::Busy) delays the message of
/// the call; any other retryable error may concern all messages.
pub trait Inbox: InboxTransactions + InboxAttempts + InboxRetries + InboxMembers + 'static {
    /// The name of the consumer.
    fn consumer(&self) -> &str;

    /// The retention settings.
    fn retention(&self) -> InboxRetention;

    /// The maximum number of messages in one transaction. The runtime uses the smaller one of this and its configuration.
    fn batch_max(&self) -> usize {
        usize::MAX
    }
}

/// All ports of operators to the consumers of a database.
pub trait ConsumerOperator: ConsumerAdmin + DeadLetterAdmin {
    /// Replays. `None` if the store has none.
    fn as_replays(&self) -> Option<&dyn ConsumerReplays>;
}
