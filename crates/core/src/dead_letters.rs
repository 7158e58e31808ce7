//! Called by operators: messages that were dead-lettered.

use async_trait::async_trait;
use jiff::Timestamp;

use crate::message::{Message, MessageId};
use crate::store::StoreError;

/// A dead letter of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message, with its original bytes.
    pub message: Message,
    /// The error that dead-lettered it.
    pub error: String,
    /// The name of the failure class.
    pub class: String,
    /// Counted attempts.
    pub attempts: u32,
    /// The route that chose its address.
    pub route: String,
    /// The time when it was dead-lettered. If it failed again after a redrive, the last time.
    pub dead_at: Timestamp,
    /// `dead`, then `redriving` or `discarding` while a mark waits, then `redriven` or `discarded`.
    pub state: String,
    /// The last mark of an operator.
    pub marked: Option<OperatorMark>,
}

/// An operator's mark on a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorMark {
    /// The time of the request.
    pub at: Timestamp,
    /// The operator who requested it.
    pub by: String,
    /// The reason for it.
    pub reason: String,
}

/// Selects dead letters of the destination. An empty filter selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Only these ids. Empty means any id.
    pub ids: Vec<MessageId>,
    /// Only this key.
    pub key: Option<String>,
    /// Only this route.
    pub route: Option<String>,
    /// Only those that wait for an operator: neither marked nor finished.
    pub unmarked: bool,
}

/// A redrive or discard request. Its author and reason are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    /// Selects the dead letters.
    pub filter: DeadLetterFilter,
    /// Only counts the dead letters that would be marked.
    pub dry_run: bool,
    /// The operator who requested it.
    pub by: String,
    /// The reason for it.
    pub reason: String,
}

/// Operator access to dead letters. Operators only mark them; the relay that holds the lease acts.
#[async_trait]
pub trait DeadLetterAdmin: Send + Sync {
    /// Dead letters, oldest first.
    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;

    /// Marks dead letters for redrive and returns how many. Only unmarked ones are selected, so a second call marks
    /// nothing.
    async fn redrive(&self, request: &MarkRequest) -> Result<u64, StoreError>;

    /// Marks dead letters for discarding and returns how many. Only unmarked ones are selected, so a second call marks
    /// nothing.
    async fn discard(&self, request: &MarkRequest) -> Result<u64, StoreError>;
}
