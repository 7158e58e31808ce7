//! Called by operators: replays, which send messages of a log to a consumer again.

use async_trait::async_trait;
use jiff::Timestamp;

use super::InboxMessage;
use crate::store::StoreError;

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

crate::text_enum! {
    /// The state of a replay.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ReplayState {
        /// Messages are being added to the retry table.
        Running = "running",
        /// All messages were added.
        Finished = "finished",
        /// An operator or the dead-letter limit stopped it.
        Stopped = "stopped",
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

/// Replays to consumers.
#[async_trait]
pub trait ConsumerReplays: Send + Sync {
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
