//! Entering messages and opening the transaction in which a handler runs.

use super::{InboxMessage, InboxState, LaneLease};

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
