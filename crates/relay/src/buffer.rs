//! Messages in memory, with one queue per key.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::outbox::LogEntry;
use relevo_core::outbox::leases::Lease;
use relevo_core::trace::ActiveSpan;
use relevo_core::{Outcome, Route};
use slab::Slab;

/// A message in memory without a final result.
#[derive(Debug)]
pub(crate) struct BufferedMessage {
    pub(crate) entry: LogEntry,
    pub(crate) lease: Lease,
    pub(crate) route: Arc<Route>,
    pub(crate) address: Arc<str>,
    pub(crate) origin: Origin,
    /// Counted attempts before this one.
    pub(crate) attempts: u32,
    /// Consecutive lost confirmations.
    pub(crate) lost_confirms: u32,
    /// Sent although its address is held, to test the address.
    pub(crate) is_probe: bool,
    /// Its current span: first of sending, then of settling.
    pub(crate) span: Option<ActiveSpan>,
    /// Whether it was passed to the broker before.
    pub(crate) was_sent: bool,
}

/// The origin of an item. Its result is recorded there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The log.
    Log {
        /// The page.
        page: u64,
        /// The index of its entry.
        index: usize,
    },
    /// A parked key's queue.
    Parked {
        /// The run.
        batch: u64,
        /// Its number in the queue.
        ordinal: i64,
    },
}

impl Origin {
    /// Sorts items of one key in the order of their source.
    pub(crate) const fn order(self) -> (u64, usize, i64) {
        match self {
            Self::Log { page, index } => (page, index, 0),
            Self::Parked { batch: run, ordinal: no } => (run, 0, no),
        }
    }
}

/// A key with messages in memory.
#[derive(Debug, Default)]
pub(crate) struct KeyQueue {
    /// Waiting items, in order. The first one is sent when none is in flight.
    pub(crate) waiting: VecDeque<usize>,
    /// Items in flight, in order, with their outcomes.
    pub(crate) in_flight: Vec<(usize, Option<Outcome>)>,
}

/// All messages in memory. A key has either at most one ready item or items in flight. No decision depends on the
/// iteration order of the map, so that a simulation can replay a run.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) messages: Slab<BufferedMessage>,
    queues: HashMap<ByteString, KeyQueue, BuildHasherDefault<DefaultHasher>>,
    pub(crate) ready: VecDeque<usize>,
}

impl Buffer {
    /// Adds a message behind the others of its key.
    pub(crate) fn push(&mut self, item: BufferedMessage) -> usize {
        let key = item.entry.message.key.clone();
        let at = self.messages.insert(item);
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.waiting.push_back(at);
        } else {
            // A copy, because the message's own key shares the buffer of a whole page, and the queue of a busy key
            // outlives pages.
            self.queues.insert(ByteString::from(&*key), KeyQueue::default());
            self.ready.push_back(at);
        }
        at
    }

    /// Puts an item in flight. With `run`, the following items of its key join it, as far as there is room.
    pub(crate) fn start(&mut self, at: usize, run: bool, room: usize) -> Vec<usize> {
        let key = self.messages[at].entry.message.key.clone();
        let queue = self.queue(&key);
        queue.in_flight.push((at, None));
        let mut flying = vec![at];
        while run && flying.len() < room {
            let Some(next) = queue.waiting.pop_front() else { break };
            queue.in_flight.push((next, None));
            flying.push(next);
        }
        flying
    }

    /// Records an outcome. When the last item in flight of the key has one, returns all of its outcomes in order.
    pub(crate) fn finish(&mut self, at: usize, outcome: Outcome) -> Option<Vec<(usize, Outcome)>> {
        let key = self.messages[at].entry.message.key.clone();
        let queue = self.queue(&key);
        let flight = queue.in_flight.iter_mut().find(|(item, _)| *item == at)?;
        if flight.1.is_none() {
            flight.1 = Some(outcome);
        }
        if queue.in_flight.iter().any(|(_, outcome)| outcome.is_none()) {
            return None;
        }
        let landed = std::mem::take(&mut queue.in_flight);
        Some(landed.into_iter().filter_map(|(item, outcome)| Some((item, outcome?))).collect())
    }

    /// Puts items back at the front of their key's queue, in order. None of them becomes ready.
    pub(crate) fn requeue(&mut self, key: &ByteString, items: impl DoubleEndedIterator<Item = usize>) {
        let queue = self.queue(key);
        for item in items.rev() {
            queue.waiting.push_front(item);
        }
    }

    /// Makes the key's next message ready. Removes a key without messages.
    pub(crate) fn release_next(&mut self, key: &ByteString) {
        match self.queue(key).waiting.pop_front() {
            Some(next) => self.ready.push_back(next),
            None => {
                self.queues.remove(key);
            }
        }
    }

    /// Takes everything that waits in a key's queue, and removes the key.
    pub(crate) fn take_waiting(&mut self, key: &ByteString) -> VecDeque<usize> {
        self.queues.remove(key).map(|queue| queue.waiting).unwrap_or_default()
    }

    fn queue(&mut self, key: &ByteString) -> &mut KeyQueue {
        self.queues.get_mut(key).expect("a key with an item in memory has a queue")
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use jiff::Timestamp;
    use relevo_core::{Message, MessageId};
    use uuid::Uuid;

    use super::*;

    /// A message whose key shares a page's buffer, as stores return it.
    fn buffered_message(page: &Bytes) -> BufferedMessage {
        let key = ByteString::try_from(page.slice(0..3)).expect("it is text");
        let message = Message {
            id: MessageId::v7(1, [0; 10]),
            kind: "OrderPlaced".into(),
            key,
            topic: "orders".into(),
            payload: page.slice(3..),
            content_type: "text/plain".into(),
            headers: relevo_core::message::Headers::new(),
            created_at: Timestamp::UNIX_EPOCH,
        };
        BufferedMessage {
            entry: LogEntry { seq: 1, slot: 0, message: Arc::new(message) },
            lease: Lease { shard: 0, shard_count: 1, epoch: 1, owner: Uuid::nil() },
            route: Arc::new(Route::catch_all()),
            address: "orders".into(),
            origin: Origin::Log { page: 0, index: 0 },
            attempts: 0,
            lost_confirms: 0,
            is_probe: false,
            span: None,
            was_sent: false,
        }
    }

    #[test]
    fn the_queue_of_a_busy_key_keeps_no_page_in_memory() {
        let mut keys = Buffer::default();
        let (first, second) = (Bytes::from(vec![b'x'; 4096]), Bytes::from(vec![b'x'; 4096]));
        let at = keys.push(buffered_message(&first));
        keys.push(buffered_message(&second));
        drop(keys.messages.remove(at));
        assert!(first.is_unique(), "the first page is needed by nothing");
        assert!(!second.is_unique());
    }
}
