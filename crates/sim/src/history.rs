//! What happened, in order: all that the oracles know.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::{Message, MessageId};
use tokio::time::Instant;

/// A message as the history names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Its id.
    pub id: MessageId,
    /// Its key.
    pub key: ByteString,
}

impl Name {
    /// The name of a message.
    pub fn of(message: &Message) -> Self {
        Self { id: message.id, key: message.key.clone() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The end of an id is its random part: enough to tell messages of one run apart.
        let id = self.id.to_string();
        write!(f, "{}/{}", self.key, &id[id.len() - 6..])
    }
}

/// One thing that happened, in whichever world.
pub trait Happening: Clone + fmt::Debug + fmt::Display + PartialEq + Hash + Send + 'static {
    /// The network or a server misbehaved.
    fn fault(what: &'static str) -> Self;

    /// A store answered something that should not happen.
    fn broken(what: String) -> Self;

    /// The message that it is about.
    fn name(&self) -> Option<&Name>;

    /// A message came into the world.
    fn is_message(&self) -> bool;

    /// Something went wrong, on purpose.
    fn is_fault(&self) -> bool;

    /// Something of a process's life.
    fn is_life(&self) -> bool;
}

/// What happened so far, each with its virtual time.
#[derive(Debug)]
pub struct History<E> {
    start: Instant,
    events: Mutex<Vec<(Duration, E)>>,
}

impl<E: Happening> History<E> {
    /// Begins now.
    pub fn begin() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }

    /// How long it has lasted.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Something happened now.
    pub fn record(&self, event: E) {
        let at = self.now();
        lock(&self.events).push((at, event));
    }

    /// Everything, in order.
    pub fn events(&self) -> Vec<(Duration, E)> {
        lock(&self.events).clone()
    }
}

/// A fingerprint of a whole history: equal for equal runs.
pub fn fingerprint<E: Hash>(events: &[(Duration, E)]) -> u64 {
    let mut hasher = DefaultHasher::new();
    events.hash(&mut hasher);
    hasher.finish()
}

/// A fingerprint of a payload.
pub fn fingerprint_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Takes a lock that nothing panics under.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
