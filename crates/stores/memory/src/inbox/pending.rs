//! The inbox part of an open transaction: its locks, and the changes it makes on commit.
//!
//! The changes are not in the tables before the commit, so other transactions do not see them.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::consume::Lane;
use relevo_core::inbox::{Arrival, Entry, State as Known};

use super::desk::{Desk, Waiting};
use crate::state::{Micros, State};

/// The inbox part of an open transaction.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) consumer: Arc<str>,
    pub(crate) traced: bool,
    /// Its owner cannot change.
    pub(crate) lane: Option<Lane>,
    /// Locked against everything except further appends.
    pub(crate) queues: BTreeSet<ByteString>,
    pub(crate) deeds: Vec<Deed>,
}

/// The change to one message on commit.
#[derive(Debug)]
pub(crate) struct Deed {
    pub(crate) arrival: Arrival,
    pub(crate) kind: Kind,
}

/// See [`Deed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It gets this state and leaves its queue, where it has this number.
    Ends(Known, Option<i64>),
    /// It waits at the end of its queue.
    Waits,
    /// It was entered before.
    Repeats,
}

impl Pending {
    /// Whether this transaction writes the message's row, which locks the row until it ends.
    pub(crate) fn locks(&self, entry: Entry) -> bool {
        self.deeds.iter().any(|deed| deed.arrival.entry == entry && deed.kind != Kind::Repeats)
    }

    /// Changes the state that a message gets on commit. Returns the previous value.
    pub(crate) fn mark(&mut self, entry: Entry, state: Known) -> Option<Known> {
        let mut deeds = self.deeds.iter_mut().filter(|deed| deed.arrival.entry == entry);
        deeds.find_map(|deed| match &mut deed.kind {
            Kind::Ends(marked, _) => Some(std::mem::replace(marked, state)),
            Kind::Waits | Kind::Repeats => None,
        })
    }

    /// Applies the changes on commit.
    pub(crate) fn apply(self, desk: &mut Desk, now: Micros) {
        for Deed { arrival, kind } in self.deeds {
            match kind {
                Kind::Ends(state, number) => {
                    desk.know(arrival.entry, state, now);
                    desk.trace(self.traced, &arrival, state, now);
                    if let Some(number) = number
                        && let Some(queue) = desk.queues.get_mut(&arrival.queue)
                    {
                        queue.messages.remove(&number);
                    }
                }
                Kind::Waits => {
                    desk.know(arrival.entry, Known::Waiting, now);
                    desk.trace(self.traced, &arrival, Known::Waiting, now);
                    // Never create a queue here: a member that empties one waits for this transaction first.
                    assert!(desk.queues.contains_key(&arrival.queue), "a queue outlasts whoever appends to it");
                    desk.append(Waiting::fresh(arrival), now);
                }
                Kind::Repeats => desk.trace_repeat(self.traced, arrival.entry),
            }
        }
    }
}

/// Locks of open transactions.
impl State {
    fn pending<'a>(&'a self, consumer: &'a str) -> impl Iterator<Item = &'a Pending> {
        self.open.values().filter_map(|open| open.inbox.as_ref()).filter(move |pending| &*pending.consumer == consumer)
    }

    /// Whether an open transaction writes this message's row.
    pub(crate) fn is_row_locked(&self, consumer: &str, entry: Entry) -> bool {
        self.pending(consumer).any(|pending| pending.locks(entry))
    }

    /// Whether an open transaction locks the lane's owner.
    pub(crate) fn is_lane_locked(&self, consumer: &str, lane: &Lane) -> bool {
        self.pending(consumer).any(|pending| pending.lane.as_ref() == Some(lane))
    }

    /// Whether an open transaction appends to the queue or takes from it.
    pub(crate) fn is_queue_locked(&self, consumer: &str, queue: &ByteString) -> bool {
        self.pending(consumer).any(|pending| pending.queues.contains(queue))
    }

    /// Whether an open transaction appends to any queue of this consumer or takes from it.
    pub(crate) fn is_any_queue_locked(&self, consumer: &str) -> bool {
        self.pending(consumer).any(|pending| !pending.queues.is_empty())
    }
}
