//! Messages that were not handled: the failure that is recorded, and the retry queue where they wait.

use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use uuid::Uuid;

use super::{Fence, InboxMessage, InboxState};
use crate::route::AfterDead;
use crate::store::StoreError;

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
    /// Dead-lettered. Its queue waits for an operator, or continues.
    DeadLetter(AfterDead),
}

impl InboxFailureAction {
    /// Whether the queue of the message waits for an operator.
    pub fn holds_queue(self) -> bool {
        self == Self::DeadLetter(AfterDead::Hold)
    }
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

/// The result of recording a failure.
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

/// The right to work on a retry queue. Every call for the queue includes it. After it expires, another member may claim
/// the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueClaim {
    /// The queue.
    pub queue: ByteString,
    /// A random token, new for each claim.
    pub token: Uuid,
}

/// A queue of the retry table that is due, claimed by one member.
#[derive(Clone, Debug)]
pub struct ClaimedQueue {
    /// The claim.
    pub claim: QueueClaim,
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
    /// How often its handling started and did not end. For the first message, this includes the current start.
    pub unfinished_starts: u32,
}

/// Failures, and the retry queues where messages wait.
#[async_trait]
pub trait InboxRetries: Send + Sync {
    /// Stores a message that was not handled, in the retry table or as a dead letter. With [`Fence::Live`], an expired
    /// call of another worker counts as a start without an end. With [`Fence::Queue`], the next message of the queue may be
    /// handled after a dead letter that does not hold its queue; any other action ends the claim.
    async fn record_failure(
        &self,
        message: &InboxMessage,
        fence: Fence<'_>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError>;

    /// Claims due queues until `ttl` is over: at most `queues` queues with at most `messages` messages each.
    async fn claim_due(&self, queues: usize, messages: usize, ttl: Duration) -> Result<Vec<ClaimedQueue>, StoreError>;

    /// Ends a claim. An empty queue is deleted, so that later messages of its key are handled directly again. A lost
    /// claim is ignored.
    async fn release_queue(&self, claim: &QueueClaim) -> Result<(), StoreError>;
}

/// Error classes that the consumer runtime records. Handlers may name others.
pub mod classes {
    /// A later attempt may succeed.
    pub const TRANSIENT: &str = "transient";
    /// No attempt can succeed.
    pub const POISON: &str = "poison";
    /// A service that the handler needs is down.
    pub const OUTAGE: &str = "outage";
    /// The handler exceeded its timeout.
    pub const TIMEOUT: &str = "timeout";
    /// The handler panicked.
    pub const PANIC: &str = "panic";
    /// The database rejected the handler's work at commit.
    pub const COMMIT: &str = "commit";
    /// The message cannot be decoded, or does not match its schema.
    pub const UNDECODABLE: &str = "undecodable";
    /// Handling the message crashed the process too often.
    pub const CRASH: &str = "crash";
    /// The message is older than the inbox retention.
    pub const EXPIRED: &str = "expired";
    /// Other handlers ran for too long.
    pub const BUSY: &str = "busy";
    /// An operator paused the lane.
    pub const PAUSED: &str = "paused";
    /// The process was stopped.
    pub const STOPPED: &str = "stopped";
}
