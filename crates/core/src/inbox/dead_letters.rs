//! Dead letters of a consumer, and how operators select and mark them.

use jiff::Timestamp;

use super::InboxMessage;
use crate::message::MessageId;

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
