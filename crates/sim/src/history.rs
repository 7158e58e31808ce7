//! The history of a run. The oracles know nothing else.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use bytestring::ByteString;
use parking_lot::Mutex;
use relevo_core::{Message, MessageId};
use tokio::time::Instant;

/// A message's name in the history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageName {
    /// Its id.
    pub id: MessageId,
    /// Its key.
    pub key: ByteString,
}

impl MessageName {
    /// The name of a message.
    pub fn of(message: &Message) -> Self {
        Self { id: message.id, key: message.key.clone() }
    }
}

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The end of an id is random, so six characters distinguish the messages of one run.
        let id = self.id.to_string();
        write!(f, "{}/{}", self.key, &id[id.len() - 6..])
    }
}

/// One event of a run, in either world.
pub trait SimEvent: Clone + fmt::Debug + fmt::Display + PartialEq + Hash + Send + 'static {
    /// A network or server fault.
    fn fault(text: &'static str) -> Self;

    /// An unexpected reply of a store.
    fn store_error(text: String) -> Self;

    /// The message of the event, if it has one.
    fn name(&self) -> Option<&MessageName>;

    /// Whether the event is a new message.
    fn is_message(&self) -> bool;

    /// Whether the event is an injected fault.
    fn is_fault(&self) -> bool;

    /// Whether the event belongs to the life cycle of a process.
    fn is_lifecycle(&self) -> bool;
}

/// The events so far, each with its virtual time.
#[derive(Debug)]
pub struct History<E> {
    start: Instant,
    events: Mutex<Vec<(Duration, E)>>,
}

impl<E: SimEvent> History<E> {
    /// Starts a history now.
    pub fn begin() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }

    /// The virtual time since the start.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Records an event with the current time.
    pub fn record(&self, event: E) {
        let at = self.now();
        self.events.lock().push((at, event));
    }

    /// All events, in order.
    pub fn events(&self) -> Vec<(Duration, E)> {
        self.events.lock().clone()
    }
}

/// A hash of a whole history. Equal runs have equal hashes.
pub fn fingerprint<E: Hash>(events: &[(Duration, E)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    events.hash(&mut hasher);
    hasher.finish()
}

/// A hash of a payload.
pub fn fingerprint_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}
