//! Messages in memory, with one queue per key.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::outbox::LogEntry;
use relevo_core::outbox::leases::Lease;
use relevo_core::trace::ActiveSpan;
use relevo_core::{Outcome, Route};
use slab::Slab;

/// Identifies a message in memory until the message is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BufferId(usize);

#[cfg(test)]
impl From<usize> for BufferId {
    fn from(index: usize) -> Self {
        Self(index)
    }
}

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

/// The origin of a message. Its result is recorded there.
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
        /// The batch.
        batch: u64,
        /// Its number in the queue.
        ordinal: i64,
    },
}

impl Origin {
    /// Sorts messages of one key in the order of their source.
    pub(crate) const fn order(self) -> (u64, usize, i64) {
        match self {
            Self::Log { page, index } => (page, index, 0),
            Self::Parked { batch, ordinal } => (batch, 0, ordinal),
        }
    }
}

/// A key with messages in memory.
#[derive(Debug, Default)]
struct KeyQueue {
    /// Waiting messages, in order. The first one is sent when none is in flight.
    waiting: VecDeque<BufferId>,
    /// Messages in flight, in order, with their outcomes.
    in_flight: Vec<(BufferId, Option<Outcome>)>,
}

/// All messages in memory. A key has either at most one ready message or messages in flight. No decision depends on the
/// iteration order of the map, so that a simulation can replay a run.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    messages: Slab<BufferedMessage>,
    queues: HashMap<ByteString, KeyQueue, BuildHasherDefault<DefaultHasher>>,
    ready: VecDeque<BufferId>,
}

impl Index<BufferId> for Buffer {
    type Output = BufferedMessage;

    fn index(&self, id: BufferId) -> &BufferedMessage {
        &self.messages[id.0]
    }
}

impl IndexMut<BufferId> for Buffer {
    fn index_mut(&mut self, id: BufferId) -> &mut BufferedMessage {
        &mut self.messages[id.0]
    }
}

impl Buffer {
    /// Adds a message behind the others of its key.
    pub(crate) fn push(&mut self, message: BufferedMessage) -> BufferId {
        let key = message.entry.message.key.clone();
        let id = self.insert(message);
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.waiting.push_back(id);
        } else {
            // A copy, because the message's own key shares the buffer of a whole page, and the queue of a busy key
            // outlives pages.
            self.queues.insert(ByteString::from(&*key), KeyQueue::default());
            self.ready.push_back(id);
        }
        id
    }

    /// Adds a message that is in no queue.
    pub(crate) fn insert(&mut self, message: BufferedMessage) -> BufferId {
        BufferId(self.messages.insert(message))
    }

    pub(crate) fn remove(&mut self, id: BufferId) -> BufferedMessage {
        self.messages.remove(id.0)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn take_ready(&mut self) -> Option<BufferId> {
        self.ready.pop_front()
    }

    /// Makes a message ready after all others.
    pub(crate) fn push_ready(&mut self, id: BufferId) {
        self.ready.push_back(id);
    }

    /// Makes a message ready before all others.
    pub(crate) fn push_ready_front(&mut self, id: BufferId) {
        self.ready.push_front(id);
    }

    /// Puts a message in flight. With `and_successors`, the following messages of its key join it, as far as there is
    /// room.
    pub(crate) fn start(&mut self, id: BufferId, and_successors: bool, room: usize) -> Vec<BufferId> {
        let queue = self.queue_of(id);
        queue.in_flight.push((id, None));
        let mut started = vec![id];
        while and_successors && started.len() < room {
            let Some(next) = queue.waiting.pop_front() else { break };
            queue.in_flight.push((next, None));
            started.push(next);
        }
        started
    }

    /// Records an outcome. When every message in flight of the key has one, returns them with their outcomes, in order.
    pub(crate) fn finish(&mut self, id: BufferId, outcome: Outcome) -> Option<Vec<(BufferId, Outcome)>> {
        let queue = self.queue_of(id);
        let (_, recorded) = queue.in_flight.iter_mut().find(|(other, _)| *other == id)?;
        recorded.get_or_insert(outcome);
        if queue.in_flight.iter().any(|(_, outcome)| outcome.is_none()) {
            return None;
        }
        let finished = std::mem::take(&mut queue.in_flight);
        Some(finished.into_iter().filter_map(|(id, outcome)| Some((id, outcome?))).collect())
    }

    /// Puts messages back at the front of their key's queue, in order. None of them becomes ready.
    pub(crate) fn requeue(&mut self, key: &ByteString, ids: impl DoubleEndedIterator<Item = BufferId>) {
        let queue = self.queue(key);
        for id in ids.rev() {
            queue.waiting.push_front(id);
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

    /// Takes all messages that wait in a key's queue, and removes the key.
    pub(crate) fn take_waiting(&mut self, key: &ByteString) -> VecDeque<BufferId> {
        self.queues.remove(key).map(|queue| queue.waiting).unwrap_or_default()
    }

    fn queue_of(&mut self, id: BufferId) -> &mut KeyQueue {
        let key = self[id].entry.message.key.clone();
        self.queue(&key)
    }

    fn queue(&mut self, key: &ByteString) -> &mut KeyQueue {
        self.queues.get_mut(key).expect("a key with a message in memory has a queue")
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
        let key = ByteString::try_from(page.slice(0..3)).expect("valid UTF-8");
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
        let mut buffer = Buffer::default();
        let (first, second) = (Bytes::from(vec![b'x'; 4096]), Bytes::from(vec![b'x'; 4096]));
        let id = buffer.push(buffered_message(&first));
        buffer.push(buffered_message(&second));
        drop(buffer.remove(id));
        assert!(first.is_unique(), "nothing refers to the first page");
        assert!(!second.is_unique());
    }
}
