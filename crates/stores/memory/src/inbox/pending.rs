//! What an open transaction holds of an inbox: locks that others find in their way, and what happens when it commits.
//!
//! Nothing of it is in the tables before that, so that nobody sees it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::consume::Lane;
use relevo_core::inbox::{Arrival, Entry, State as Known};

use super::desk::{Desk, Waiting};
use crate::state::{Micros, State};

/// The inbox's share of an open transaction.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) consumer: Arc<str>,
    pub(crate) traced: bool,
    /// Locked against a change of its owner.
    pub(crate) lane: Option<Lane>,
    /// Locked against everything but further appends.
    pub(crate) queues: BTreeSet<ByteString>,
    pub(crate) deeds: Vec<Deed>,
}

/// What happens to one message when the transaction commits.
#[derive(Debug)]
pub(crate) struct Deed {
    pub(crate) arrival: Arrival,
    pub(crate) kind: Kind,
}

/// See [`Deed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It counts as this, and leaves its queue, in which it has this number.
    Ends(Known, Option<i64>),
    /// It waits at the end of its queue.
    Waits,
    /// It came before.
    Repeats,
}

impl Pending {
    /// Whether the message's row is written, and nobody else can touch it until this transaction ends.
    pub(crate) fn locks(&self, entry: Entry) -> bool {
        self.deeds.iter().any(|deed| deed.arrival.entry == entry && deed.kind != Kind::Repeats)
    }

    /// Changes what a message will count as; gives what it would have.
    pub(crate) fn mark(&mut self, entry: Entry, state: Known) -> Option<Known> {
        let mut deeds = self.deeds.iter_mut().filter(|deed| deed.arrival.entry == entry);
        deeds.find_map(|deed| match &mut deed.kind {
            Kind::Ends(marked, _) => Some(std::mem::replace(marked, state)),
            Kind::Waits | Kind::Repeats => None,
        })
    }

    /// The transaction commits.
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
                    // Never a new one: whoever empties it must have waited for this.
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

    /// Whether an open transaction needs the lane's owner to stay.
    pub(crate) fn is_lane_locked(&self, consumer: &str, lane: &Lane) -> bool {
        self.pending(consumer).any(|pending| pending.lane.as_ref() == Some(lane))
    }

    /// Whether an open transaction appends to the queue, or takes from it.
    pub(crate) fn is_queue_locked(&self, consumer: &str, queue: &ByteString) -> bool {
        self.pending(consumer).any(|pending| pending.queues.contains(queue))
    }

    /// Whether an open transaction appends to any queue of this consumer, or takes from it.
    pub(crate) fn is_any_queue_locked(&self, consumer: &str) -> bool {
        self.pending(consumer).any(|pending| !pending.queues.is_empty())
    }
}
