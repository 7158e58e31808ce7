//! Called by operators: consumers, their members, lanes and retry queues, and the state of single messages.

use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use jiff::Timestamp;

use super::{DedupId, InboxState};
use crate::message::MessageId;
use crate::store::StoreError;

/// A consumer and its summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerSummary {
    /// Its name.
    pub name: String,
    /// An operator paused the whole consumer.
    pub paused: bool,
    /// The number of living members.
    pub members: u32,
    /// The time of the last heartbeat of any member.
    pub heartbeat_at: Option<Timestamp>,
    /// When any member last received a message.
    pub last_message_at: Option<Timestamp>,
    /// Messages in its retry table, counted up to 10 000.
    pub waiting: u64,
    /// Dead letters that wait for an operator, counted up to 10 000.
    pub dead: u64,
    /// How long its inbox remembers handled messages, according to the last pruning. `None` if it was never pruned.
    pub done_retention: Option<Duration>,
}

/// A process that works for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// Its name, for operators.
    pub name: String,
    /// Whether it counts as alive.
    pub alive: bool,
    /// The time of its last heartbeat.
    pub heartbeat_at: Timestamp,
    /// When it last received a message.
    pub last_message_at: Option<Timestamp>,
}

/// A lane of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneInfo {
    /// Its name.
    pub name: String,
    /// The name of the member that owns it.
    pub owner: Option<String>,
    /// Increases with every change of owner.
    pub epoch: i64,
    /// Everything up to this broker number was settled at the last update.
    pub settled_offset: Option<u64>,
    /// An operator paused it.
    pub paused: bool,
    /// The reason why its breaker is open. `None` if it is closed.
    pub breaker: Option<String>,
    /// An operator forced its breaker open (`true`) or closed (`false`).
    pub breaker_override: Option<bool>,
}

/// A queue of the retry table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryQueueInfo {
    /// The key, or the message id for a consumer without order.
    pub queue: ByteString,
    /// The first message.
    pub head: DedupId,
    /// The number of waiting messages.
    pub length: u64,
    /// Counted attempts of the first message.
    pub attempts: u32,
    /// The time of the next attempt. `None` if the queue waits for an operator.
    pub next_attempt_at: Option<Timestamp>,
    /// The error of the first message.
    pub error: String,
}

/// One consumer in detail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerDetails {
    /// Its summary.
    pub summary: ConsumerSummary,
    /// Its members, living ones first.
    pub members: Vec<MemberInfo>,
    /// Its lanes.
    pub lanes: Vec<LaneInfo>,
    /// The first queues of its retry table, by next attempt.
    pub queues: Vec<RetryQueueInfo>,
}

/// An operator's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsumerControl {
    /// Stop receiving messages.
    Pause,
    /// Continue to receive messages.
    Resume,
    /// Treat the external service as down.
    OpenBreaker,
    /// Treat the external service as reachable.
    CloseBreaker,
    /// Let the breaker decide again.
    AutoBreaker,
}

/// The result of forgetting a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// It has no members, and its former members were deleted.
    Removed,
    /// A member is alive. Nothing was changed.
    MembersAlive,
    /// No consumer has this name.
    Unknown,
}

/// The inbox state of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxRecord {
    /// The consumer.
    pub consumer: String,
    /// The message.
    pub dedup_id: DedupId,
    /// Its state.
    pub state: InboxState,
    /// How often its handling started and did not end.
    pub unfinished_starts: u32,
    /// When it was entered or last changed. `None` for a waiting or dead message, if the store does not record it.
    pub at: Option<Timestamp>,
}

/// Operator access to consumers.
#[async_trait]
pub trait ConsumerAdmin: Send + Sync {
    /// Every known consumer. A forgotten consumer is listed only while it has waiting messages or dead letters, or
    /// after a new heartbeat or a handled message.
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError>;

    /// One consumer, with the first `limit` queues of its retry table. `None` if the consumer is unknown.
    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError>;

    /// Sends a command to a consumer or to one of its lanes. Returns `false` if the name is unknown.
    async fn set_control(&self, consumer: &str, lane: Option<&str>, order: ConsumerControl)
    -> Result<bool, StoreError>;

    /// Deletes the members of a consumer, its lanes with their marks, and the operator commands. Handled messages,
    /// waiting messages, dead letters and replays stay. A consumer that comes back continues from there.
    ///
    /// Changes nothing while a member is alive or has an open transaction in one of the lanes. A concurrent heartbeat
    /// happens either before this call, which then changes nothing, or after it.
    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError>;

    /// The inbox state of a message for all consumers, by consumer and replay.
    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError>;
}
