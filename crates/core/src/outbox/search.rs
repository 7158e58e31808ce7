//! Called by operators: searches of the log. A store without a searchable log does not implement this port.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::message::MessageId;
use crate::outbox::inspect::{MessageStatus, MessageSummary};
use crate::store::StoreError;

/// Selects messages. All set fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageFilter {
    /// With this key.
    pub key: Option<String>,
    /// With this topic.
    pub topic: Option<String>,
    /// With this type.
    pub kind: Option<String>,
    /// With this status.
    pub status: Option<MessageStatus>,
    /// Emitted at this time or later.
    pub since: Option<Timestamp>,
    /// Emitted before this time.
    pub until: Option<Timestamp>,
    /// Continues a search: the value of [`SearchPage::next`].
    pub before_seq: Option<i64>,
}

/// One page of search results, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchPage {
    /// The messages.
    pub messages: Vec<MessageSummary>,
    /// Where the search continues. `None` if the search is complete.
    pub next: Option<i64>,
    /// How far back the search got, if it ran out of time before it reached the limit.
    pub searched_back_to: Option<Timestamp>,
}

/// A range of the log, by emit time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeRange {
    /// Start of the range. `None` means the oldest retained message.
    pub since: Option<Timestamp>,
    /// End of the range. `None` means now.
    pub until: Option<Timestamp>,
}

/// The result of comparing committed with settled messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Messages of the log in the range.
    pub committed: u64,
    /// The number of those messages per status, in the order of [`MessageStatus::ALL`].
    pub by_status: Vec<(MessageStatus, u64)>,
    /// The oldest unsettled message.
    pub oldest_unsettled: Option<Timestamp>,
    /// Inconsistencies, such as a waiting message that no relay will read, or a key that waits for nothing.
    pub inconsistencies: Vec<String>,
}

/// Selects messages of a tail. All set fields must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailFilter {
    /// With this key.
    pub key: Option<String>,
    /// With this topic.
    pub topic: Option<String>,
    /// With this type.
    pub kind: Option<String>,
}

/// A message of a tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailMessage {
    /// Its number in the log.
    pub seq: i64,
    /// Its id.
    pub id: MessageId,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: String,
    /// Its type.
    pub kind: String,
    /// When it was emitted.
    pub created_at: Timestamp,
}

/// Messages of the log that became visible since the previous page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailPage {
    /// The messages, by number.
    pub messages: Vec<TailMessage>,
    /// The cursor of the next page.
    pub next: String,
    /// Whether the page is full, so that more messages may be visible already.
    pub more: bool,
}

/// How far back the first page of a tail searches for messages that match its filter.
pub const TAIL_RANGE: i64 = 100_000;

/// Reads the whole log of an outbox for operators. Nothing here changes anything.
#[async_trait]
pub trait OutboxSearch: Send + Sync {
    /// Searches backwards from the newest message. Stops after about `budget` and returns how far it got.
    async fn search(
        &self,
        destination: &str,
        filter: &MessageFilter,
        limit: usize,
        budget: Duration,
    ) -> Result<SearchPage, StoreError>;

    /// Follows the log: returns the messages that became visible after `cursor`, at most `limit`. Each message is
    /// returned once, also if its transaction commits after messages with higher numbers.
    ///
    /// Without a cursor, returns the newest messages among the last [`TAIL_RANGE`] numbers. Later pages return
    /// everything that was not visible then.
    async fn tail(&self, filter: &TailFilter, cursor: Option<&str>, limit: usize) -> Result<TailPage, StoreError>;

    /// Compares committed messages with settled ones.
    async fn verify(&self, destination: &str, range: TimeRange) -> Result<VerifyReport, StoreError>;
}
