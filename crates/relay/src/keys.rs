//! The messages in memory, and each key's queue of them.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::store::{Entry, Lease};
use relevo_core::trace::Open;
use relevo_core::{Outcome, Route};
use slab::Slab;

/// A message in memory that has not been resolved.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) entry: Entry,
    pub(crate) lease: Lease,
    pub(crate) route: Arc<Route>,
    pub(crate) address: Arc<str>,
    pub(crate) source: Source,
    /// Counted attempts before this one.
    pub(crate) attempts: u32,
    /// Answers lost in a row.
    pub(crate) unknowns: u32,
    /// Sent although its address is held, to find out whether it still is.
    pub(crate) is_probe: bool,
    /// What is told of it: that it is sent, and then that it is settled.
    pub(crate) span: Option<Open>,
    /// Was handed to the broker before.
    pub(crate) was_sent: bool,
}

/// Where an item came from, and so where its verdict goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The log.
    Page {
        /// Which page.
        page: u64,
        /// Which of its entries.
        index: usize,
    },
    /// A parked key's queue.
    Run {
        /// Which run.
        run: u64,
        /// Its number in the queue.
        no: i64,
    },
}

impl Source {
    /// Items of one key, in the order of their source.
    pub(crate) const fn order(self) -> (u64, usize, i64) {
        match self {
            Self::Page { page, index } => (page, index, 0),
            Self::Run { run, no } => (run, 0, no),
        }
    }
}

/// One key with something in memory.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// In order; the first goes out when nothing flies.
    pub(crate) waiting: VecDeque<usize>,
    /// On their way, in order, each with what became of it.
    pub(crate) flying: Vec<(usize, Option<Outcome>)>,
}

/// Every message in memory. A key has at most one item that is ready, or a run of them that flies; iteration over the
/// map never decides anything, so that a simulation can replay.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    pub(crate) items: Slab<Item>,
    queues: HashMap<ByteString, Queue, BuildHasherDefault<DefaultHasher>>,
    pub(crate) ready: VecDeque<usize>,
}

impl Keys {
    /// Takes a message into memory, behind the others of its key.
    pub(crate) fn push(&mut self, item: Item) -> usize {
        let key = item.entry.message.key.clone();
        let at = self.items.insert(item);
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.waiting.push_back(at);
        } else {
            // A copy: the message's own key is a part of the buffer of a whole page, and a busy key's queue outlives pages.
            self.queues.insert(ByteString::from(&*key), Queue::default());
            self.ready.push_back(at);
        }
        at
    }

    /// Sends an item off; with `run`, the rest of its key's queue that fits goes with it.
    pub(crate) fn fly(&mut self, at: usize, run: bool, room: usize) -> Vec<usize> {
        let key = self.items[at].entry.message.key.clone();
        let queue = self.queue(&key);
        queue.flying.push((at, None));
        let mut flying = vec![at];
        while run && flying.len() < room {
            let Some(next) = queue.waiting.pop_front() else { break };
            queue.flying.push((next, None));
            flying.push(next);
        }
        flying
    }

    /// Records an outcome. When nothing of the key flies any more, returns all of its outcomes in order.
    pub(crate) fn land(&mut self, at: usize, outcome: Outcome) -> Option<Vec<(usize, Outcome)>> {
        let key = self.items[at].entry.message.key.clone();
        let queue = self.queue(&key);
        let flight = queue.flying.iter_mut().find(|(item, _)| *item == at)?;
        if flight.1.is_none() {
            flight.1 = Some(outcome);
        }
        if queue.flying.iter().any(|(_, outcome)| outcome.is_none()) {
            return None;
        }
        let landed = std::mem::take(&mut queue.flying);
        Some(landed.into_iter().filter_map(|(item, outcome)| Some((item, outcome?))).collect())
    }

    /// Puts items back in front of their key's queue, in order, without making any of them ready.
    pub(crate) fn put_back(&mut self, key: &ByteString, items: impl DoubleEndedIterator<Item = usize>) {
        let queue = self.queue(key);
        for item in items.rev() {
            queue.waiting.push_front(item);
        }
    }

    /// The key's next message is ready; without one the key is forgotten.
    pub(crate) fn go_on(&mut self, key: &ByteString) {
        match self.queue(key).waiting.pop_front() {
            Some(next) => self.ready.push_back(next),
            None => {
                self.queues.remove(key);
            }
        }
    }

    /// Takes everything that waits in a key's queue, and forgets the key.
    pub(crate) fn take_waiting(&mut self, key: &ByteString) -> VecDeque<usize> {
        self.queues.remove(key).map(|queue| queue.waiting).unwrap_or_default()
    }

    fn queue(&mut self, key: &ByteString) -> &mut Queue {
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

    /// A message whose key is a part of a page's buffer, as stores give it.
    fn item(page: &Bytes) -> Item {
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
        Item {
            entry: Entry { seq: 1, slot: 0, message: Arc::new(message) },
            lease: Lease { shard: 0, shards: 1, epoch: 1, owner: Uuid::nil() },
            route: Arc::new(Route::everything()),
            address: "orders".into(),
            source: Source::Page { page: 0, index: 0 },
            attempts: 0,
            unknowns: 0,
            is_probe: false,
            span: None,
            was_sent: false,
        }
    }

    #[test]
    fn a_busy_keys_queue_keeps_no_page_in_memory() {
        let mut keys = Keys::default();
        let (first, second) = (Bytes::from(vec![b'x'; 4096]), Bytes::from(vec![b'x'; 4096]));
        let at = keys.push(item(&first));
        keys.push(item(&second));
        drop(keys.items.remove(at));
        assert!(first.is_unique(), "the first page is needed by nothing");
        assert!(!second.is_unique());
    }
}
