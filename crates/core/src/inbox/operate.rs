//! Operator ports of consumers.

use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use jiff::Timestamp;

use super::{DedupId, InboxMessage, InboxState};
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

/// The state of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadLetterState {
    /// It waits for an operator.
    Dead,
    /// An operator redrove it.
    Redriven,
    /// An operator archived it.
    Discarded,
}

impl DeadLetterState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Dead, Self::Redriven, Self::Discarded];

    /// The name used in SQL, JSON and CLI output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
        }
    }

    /// Parses a name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fate| fate.as_str() == word)
    }
}

/// A dead-lettered message of a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The consumer.
    pub consumer: String,
    /// The message, with its original headers and bytes.
    pub message: InboxMessage,
    /// The class of the error.
    pub class: String,
    /// The error.
    pub error: String,
    /// The backtrace, if the handler panicked.
    pub backtrace: Option<String>,
    /// Counted attempts.
    pub attempts: u32,
    /// When the consumer first received it.
    pub arrived_at: Timestamp,
    /// When it was dead-lettered. If it failed again after a redrive, the last time.
    pub dead_at: Timestamp,
    /// How often it was redriven.
    pub redrives: u32,
    /// Its state.
    pub state: DeadLetterState,
    /// Notes of operators.
    pub reason: Option<String>,
}

/// Selects dead letters. All set fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Of this consumer.
    pub consumer: Option<String>,
    /// Only these ids. Empty means any id.
    pub ids: Vec<MessageId>,
    /// Of this queue, which is the key for an ordered consumer.
    pub queue: Option<String>,
    /// With an error of this class.
    pub class: Option<String>,
    /// With this state.
    pub state: Option<DeadLetterState>,
    /// Dead-lettered at this time or later.
    pub since: Option<Timestamp>,
    /// Dead-lettered before this time.
    pub until: Option<Timestamp>,
}

/// A redrive or archive request, with its author and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    /// Selects the dead letters. Only pending ones are changed.
    pub filter: DeadLetterFilter,
    /// Only count what would be changed.
    pub dry_run: bool,
    /// The number of messages to retry per second. `None` retries all at once.
    pub rate_per_second: Option<u32>,
    /// Who requested it.
    pub by: String,
    /// The reason. It is stored with the dead letter.
    pub reason: String,
}

/// What a consumer did with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The consumer.
    pub consumer: String,
    /// The message.
    pub entry: DedupId,
    /// Its current state.
    pub state: InboxState,
    /// The number of repeats that were not handled.
    pub repeats: u32,
    /// The address it was published to.
    pub address: String,
    /// The lane it arrived in.
    pub lane: String,
    /// Its number at the broker.
    pub place: Option<u64>,
    /// Correlates it with other messages.
    pub correlation: Option<String>,
    /// When it was entered, or last changed.
    pub at: Timestamp,
}

/// The inbox state of a message. It is available even if no traces are written.
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

/// A requested replay to one consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayPlan {
    /// The consumer.
    pub consumer: String,
    /// The log and the filter, in a format that only the reader parses.
    pub source: String,
    /// The number of messages to replay.
    pub count: u64,
    /// The maximum number of messages per second.
    pub rate: u32,
    /// The replay stops after this number of new dead letters.
    pub dead_letters_max: u64,
    /// Who requested it.
    pub requested_by: String,
    /// Why.
    pub reason: String,
}

/// The state of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayState {
    /// Messages are being added to the retry table.
    Running,
    /// All messages were added.
    Finished,
    /// An operator or the dead-letter limit stopped it.
    Stopped,
}

impl ReplayState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Running, Self::Finished, Self::Stopped];

    /// The name used in SQL, JSON and CLI output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Stopped => "stopped",
        }
    }

    /// Parses a name.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == word)
    }
}

/// A replay and its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Its number, above zero. Its messages are entered under this number.
    pub number: u32,
    /// The request.
    pub plan: ReplayPlan,
    /// Its state.
    pub state: ReplayState,
    /// The number of messages added to the retry table.
    pub enqueued: u64,
    /// How many of those were handled or skipped.
    pub done: u64,
    /// How many of those are dead letters.
    pub dead: u64,
    /// How many of those can be handled now, because they wait for no operator and no time. Counted up to 100 000.
    pub ready: u64,
    /// Where the reader continues.
    pub cursor: Option<String>,
    /// When it started.
    pub started_at: Timestamp,
}

impl Replay {
    /// The number of added messages that are not finished.
    pub const fn waiting(&self) -> u64 {
        self.enqueued.saturating_sub(self.done + self.dead)
    }
}

/// Messages that a reader took from a log, in order, and the reader's progress.
#[derive(Clone, Copy, Debug)]
pub struct ReplayBatch<'a> {
    /// The messages.
    pub messages: &'a [InboxMessage],
    /// The position where the reader started. It must equal the stored position. `None` at the beginning.
    pub cursor: Option<&'a str>,
    /// The position where the reader continues. `None` if it has read everything.
    pub next_cursor: Option<&'a str>,
}

/// The result of adding a portion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// The messages wait in the retry table, and the replay has moved to the end of the portion.
    Enqueued,
    /// Another reader has moved the replay. Nothing was changed.
    CursorMoved,
    /// The replay is not running. Nothing was changed, unless this call stopped it.
    NotRunning,
}

/// Operator access to consumers.
#[async_trait]
pub trait Operate: Send + Sync {
    /// Every known consumer. A forgotten consumer is listed only while it has waiting messages or dead letters, or
    /// after a new heartbeat or a handled message.
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError>;

    /// One consumer, with the first `limit` queues of its retry table. `None` if the consumer is unknown.
    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError>;

    /// Sends a command to a consumer or to one of its lanes. Returns `false` if the name is unknown.
    async fn set_control(&self, consumer: &str, lane: Option<&str>, order: ConsumerControl)
    -> Result<bool, StoreError>;

    /// Deletes the members of a consumer, its lanes with their marks, and the operator commands. Handled messages,
    /// waiting messages, dead letters, traces and replays stay. A consumer that comes back continues from there.
    ///
    /// Changes nothing while a member is alive or has an open transaction in one of the lanes. A concurrent heartbeat
    /// happens either before this call, which then changes nothing, or after it.
    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError>;

    /// Dead letters, oldest first.
    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;

    /// Reopens dead letters and returns how many. Those of one queue keep their order and go in front of the messages
    /// that wait behind them. A second call reopens nothing.
    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError>;

    /// Archives dead letters and returns how many. A queue that waited for one continues.
    async fn archive(&self, mark: &MarkRequest) -> Result<u64, StoreError>;

    /// What consumers did with a message.
    async fn trace(&self, id: MessageId) -> Result<Vec<Trace>, StoreError>;

    /// The inbox state of a message for all consumers, by consumer and replay.
    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError>;

    /// Starts a replay and returns its number.
    async fn create_replay(&self, plan: &ReplayPlan) -> Result<u32, StoreError>;

    /// Adds messages to the consumer's retry table under the replay's number, and records the reader's position or that
    /// it has read everything. If two readers are at the same position, only one succeeds. A message is added only
    /// once. If the replay has reached the dead-letter limit of its plan, it is stopped instead.
    async fn enqueue_replay(
        &self,
        consumer: &str,
        number: u32,
        portion: ReplayBatch<'_>,
    ) -> Result<EnqueueOutcome, StoreError>;

    /// Stops a replay. Its messages that wait in the retry table and were not started are removed. If the replay is
    /// resumed, the reader continues before the first removed message. Returns `false` if the replay was not running.
    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError>;

    /// Resumes a stopped replay until it has `dead_more` more dead letters than now. Returns `false` if it was not
    /// stopped.
    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError>;

    /// The replays of a consumer, newest first.
    async fn list_replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError>;
}
