//! Filters and results of a search of the log.

use jiff::Timestamp;

use crate::outbox::inspect::{MessageStatus, MessageSummary};

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
