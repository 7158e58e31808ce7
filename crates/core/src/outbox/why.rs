//! Why a key is not making progress. Stores gather the facts; the cause is chosen here.

use jiff::Timestamp;

use crate::dead_letters::MarkAction;
use crate::message::MessageId;
use crate::outbox::inspect::{MessageSummary, ShardInfo};
use crate::outbox::leases::HeldAddress;

/// What a store knows about a key at a destination. `unread` and `scheduled` are set only if the key is not parked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFacts {
    /// Whether the relays of the destination may run.
    pub enabled: bool,
    /// The key's shard.
    pub shard: ShardInfo,
    /// The parked key.
    pub parked: Option<ParkedFacts>,
    /// The oldest dead letter of the key with a mark that the relay has not applied.
    pub unapplied_mark: Option<MarkedDeadLetter>,
    /// The unsettled messages of the key.
    pub unread: Option<WaitingMessages>,
    /// The scheduled messages of the key.
    pub scheduled: Option<ScheduledMessages>,
}

/// A parked key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedFacts {
    /// What it waits for.
    pub state: ParkedState,
    /// When the first message is retried, or its address is probed.
    pub next_at: Option<Timestamp>,
    /// Whether that time has passed on the store's clock.
    pub is_due: bool,
    /// When it was parked.
    pub since: Timestamp,
    /// The message that blocks it: the dead letter, or the first parked message.
    pub head: Option<MessageSummary>,
    /// The number of parked messages, without the dead letter. Counted up to 10 000.
    pub queued: u64,
}

/// What a parked key waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParkedState {
    /// A retry.
    Retrying,
    /// Its address.
    Held(HeldAddress),
    /// A retry, alone.
    Quarantined,
    /// An operator.
    Dead {
        /// The dead letter.
        id: MessageId,
        /// Its mark, if the relay has not applied it yet.
        unapplied_mark: Option<MarkAction>,
    },
}

/// A dead letter with a mark that the relay has not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkedDeadLetter {
    /// Its id.
    pub id: MessageId,
    /// Its mark.
    pub mark: MarkAction,
    /// Its message.
    pub message: Option<MessageSummary>,
}

/// The unsettled messages of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingMessages {
    /// The first message.
    pub head: Option<MessageSummary>,
    /// The number of messages. Counted up to 10 000.
    pub count: u64,
    /// When the first message was emitted.
    pub since: Option<Timestamp>,
}

/// The scheduled messages of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduledMessages {
    /// The message that is due first.
    pub head: MessageSummary,
    /// The number of messages. Counted up to 10 000.
    pub count: u64,
    /// When the first message is due.
    pub due_at: Timestamp,
}

/// The reason why a key is not making progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// No message of the key waits.
    Idle,
    /// Its messages have not been read yet, and a relay holds the shard.
    NotReadYet,
    /// The relay would act now, but no relay holds the shard.
    NoRelay,
    /// The destination is disabled.
    Disabled,
    /// The first message failed and waits for a retry.
    Retrying {
        /// When it is retried.
        at: Timestamp,
    },
    /// The first message's address is held.
    AddressHeld {
        /// The address and the reason.
        held_address: HeldAddress,
        /// When it is probed next.
        probe_at: Option<Timestamp>,
    },
    /// The first message broke connections and is retried alone.
    Quarantined {
        /// When it is retried.
        at: Timestamp,
    },
    /// The first message is a dead letter, and the key waits for an operator.
    DeadLetter {
        /// The dead letter.
        id: MessageId,
    },
    /// An operator marked a dead letter, and the relay has not applied the mark yet.
    MarkNotApplied {
        /// The dead letter.
        id: MessageId,
        /// Its mark.
        mark: MarkAction,
    },
    /// All remaining messages of the key are scheduled for later.
    Scheduled {
        /// When the first one is due.
        at: Timestamp,
    },
}

/// The state of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReport {
    /// The reason why it is not making progress.
    pub cause: WaitCause,
    /// The message that blocks the key.
    pub head: Option<MessageSummary>,
    /// The number of waiting messages of the key, including the head. Counted up to 10 000.
    pub waiting: u64,
    /// When the head started to wait.
    pub since: Option<Timestamp>,
    /// The key's shard.
    pub shard: ShardInfo,
}

/// Chooses the first cause that holds: the key is parked, its messages are unread, a mark is not applied, its messages
/// are scheduled. Otherwise the key is idle.
pub fn explain(facts: KeyFacts) -> KeyReport {
    let KeyFacts { enabled, shard, parked, unapplied_mark, unread, scheduled } = facts;
    let (cause, is_due, WaitingMessages { head, count, since }) = if let Some(parked) = parked {
        explain_parked(parked, unapplied_mark)
    } else if let Some(unread) = unread {
        (WaitCause::NotReadYet, true, unread)
    } else if let Some(MarkedDeadLetter { id, mark, message }) = unapplied_mark {
        let messages = WaitingMessages { head: message, count: 1, since: None };
        (WaitCause::MarkNotApplied { id, mark }, true, messages)
    } else if let Some(ScheduledMessages { head, count, due_at }) = scheduled {
        let since = Some(head.created_at);
        (WaitCause::Scheduled { at: due_at }, false, WaitingMessages { head: Some(head), count, since })
    } else {
        (WaitCause::Idle, false, WaitingMessages { head: None, count: 0, since: None })
    };
    let cause = match cause {
        // A relay changes nothing about these: a dead letter needs an operator first.
        WaitCause::Idle | WaitCause::Scheduled { .. } | WaitCause::DeadLetter { .. } => cause,
        _ if !enabled => WaitCause::Disabled,
        _ if is_due && shard.lease_remaining.is_zero() => WaitCause::NoRelay,
        _ => cause,
    };
    KeyReport { cause, head, waiting: count, since, shard }
}

/// Returns the cause, whether the relay would act now, and the messages.
fn explain_parked(parked: ParkedFacts, unapplied_mark: Option<MarkedDeadLetter>) -> (WaitCause, bool, WaitingMessages) {
    let ParkedFacts { state, next_at, is_due, since, head, queued } = parked;
    let at = next_at.unwrap_or(since);
    let count = queued + u64::from(matches!(state, ParkedState::Dead { .. }));
    let (cause, is_due) = match (state, unapplied_mark) {
        // Marks of other dead letters do not free the key.
        (ParkedState::Dead { id, unapplied_mark: None }, _) => (WaitCause::DeadLetter { id }, false),
        (ParkedState::Dead { id, unapplied_mark: Some(mark) }, _) | (_, Some(MarkedDeadLetter { id, mark, .. })) => {
            (WaitCause::MarkNotApplied { id, mark }, true)
        }
        (ParkedState::Held(held_address), None) => (WaitCause::AddressHeld { held_address, probe_at: next_at }, is_due),
        (ParkedState::Quarantined, None) => (WaitCause::Quarantined { at }, is_due),
        (ParkedState::Retrying, None) => (WaitCause::Retrying { at }, is_due),
    };
    (cause, is_due, WaitingMessages { head, count, since: Some(since) })
}

#[cfg(test)]
mod tests;
