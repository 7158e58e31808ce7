//! The inbox part of an open transaction: its locks, and the changes it makes on commit.
//!
//! The changes are not in the tables before the commit, so other transactions do not see them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::{DedupId, InboxMessage, InboxState as Known};

use super::tables::{ConsumerTables, QueuedRow};
use crate::state::{Micros, Tables};

/// The inbox part of an open transaction.
#[derive(Debug)]
pub(crate) struct PendingWrites {
    pub(crate) consumer: Arc<str>,
    /// Its owner cannot change.
    pub(crate) lane: Option<Lane>,
    /// Locked against everything except further appends.
    pub(crate) queues: BTreeSet<ByteString>,
    pub(crate) writes: Vec<PendingWrite>,
}

/// The change to one message on commit.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) message: InboxMessage,
    pub(crate) kind: WriteKind,
}

/// See [`PendingWrite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    /// It gets this state and leaves its queue, where it has this number.
    End(Known, Option<i64>),
    /// It waits at the end of its queue.
    Append,
    /// It was entered before.
    Duplicate,
}

impl PendingWrites {
    /// Whether this transaction writes the message's row, which locks the row until it ends.
    pub(crate) fn locks_row(&self, dedup_id: DedupId) -> bool {
        self.writes.iter().any(|write| write.message.dedup_id == dedup_id && write.kind != WriteKind::Duplicate)
    }

    /// Changes the state that a message gets on commit. Returns the previous value.
    pub(crate) fn set_state(&mut self, dedup_id: DedupId, state: Known) -> Option<Known> {
        let mut writes = self.writes.iter_mut().filter(|write| write.message.dedup_id == dedup_id);
        writes.find_map(|write| match &mut write.kind {
            WriteKind::End(target, _) => Some(std::mem::replace(target, state)),
            WriteKind::Append | WriteKind::Duplicate => None,
        })
    }

    /// Applies the changes on commit.
    pub(crate) fn apply(self, tables: &mut ConsumerTables, now: Micros) {
        for PendingWrite { message, kind } in self.writes {
            match kind {
                WriteKind::End(state, number) => {
                    tables.set_state(message.dedup_id, state, now);
                    if let Some(number) = number
                        && let Some(queue) = tables.queues.get_mut(&message.queue)
                    {
                        queue.messages.remove(&number);
                    }
                }
                WriteKind::Append => {
                    tables.set_state(message.dedup_id, Known::Waiting, now);
                    // Never create a queue here: a member that empties one waits for this transaction first.
                    assert!(
                        tables.queues.contains_key(&message.queue),
                        "a queue exists while a transaction appends to it"
                    );
                    tables.append(QueuedRow::new(message), now);
                }
                WriteKind::Duplicate => {}
            }
        }
    }
}

/// Locks of open transactions.
impl Tables {
    fn open_writes<'a>(&'a self, consumer: &'a str) -> impl Iterator<Item = &'a PendingWrites> {
        self.open_transactions
            .values()
            .filter_map(|open| open.inbox.as_ref())
            .filter(move |pending| &*pending.consumer == consumer)
    }

    /// Whether an open transaction writes this message's row.
    pub(crate) fn is_row_locked(&self, consumer: &str, dedup_id: DedupId) -> bool {
        self.open_writes(consumer).any(|pending| pending.locks_row(dedup_id))
    }

    /// Whether an open transaction locks the lane's owner.
    pub(crate) fn is_lane_locked(&self, consumer: &str, lane: &Lane) -> bool {
        self.open_writes(consumer).any(|pending| pending.lane.as_ref() == Some(lane))
    }

    /// Whether an open transaction appends to the queue or takes from it.
    pub(crate) fn is_queue_locked(&self, consumer: &str, queue: &ByteString) -> bool {
        self.open_writes(consumer).any(|pending| pending.queues.contains(queue))
    }

    /// Whether an open transaction appends to any queue of this consumer or takes from it.
    pub(crate) fn is_any_queue_locked(&self, consumer: &str) -> bool {
        self.open_writes(consumer).any(|pending| !pending.queues.is_empty())
    }
}
