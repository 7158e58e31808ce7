//! What happened, in order: all that the oracles know.

use std::collections::hash_map::DefaultHasher;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::store::Lease;
use relevo_core::{Message, MessageId};
use tokio::time::Instant;
use uuid::Uuid;

/// A message as the history names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A transaction committed a message.
    Committed {
        /// Which.
        name: Name,
        /// Its type.
        kind: ByteString,
        /// Its topic.
        topic: ByteString,
        /// A fingerprint of its payload.
        bytes: u64,
        /// It waits for its time.
        scheduled: bool,
    },
    /// It was emitted, and its transaction or savepoint rolled back.
    RolledBack(Name),
    /// Its writer took it back before its time came.
    Cancelled(Name),
    /// The broker has it.
    Received {
        /// Which.
        name: Name,
        /// A fingerprint of its payload.
        bytes: u64,
        /// The lease under which it was sent.
        epoch: i64,
    },
    /// The broker did not take it.
    Refused {
        /// Which.
        name: Name,
        /// Why.
        class: &'static str,
    },
    /// The network lost it on its way to the broker.
    Vanished(Name),
    /// A relay parked it.
    Parked {
        /// Which.
        name: Name,
        /// Why.
        class: &'static str,
        /// Counted attempts.
        attempts: u32,
        /// It was given up, and this becomes of its key.
        dead: Option<Dead>,
    },
    /// An operator marked its dead letter.
    Marked {
        /// Which.
        name: Name,
        /// For discarding, not for redrive.
        discard: bool,
    },
    /// A second click marked it once more.
    MarkedTwice(Name),
    /// It stands twice in the queue of its key.
    QueuedTwice(Name),
    /// A lease was taken.
    Granted(Grant),
    /// A lease was given back.
    Freed(Grant),
    /// Something was recorded under a lease.
    Wrote {
        /// Under which.
        grant: Grant,
        /// What.
        what: &'static str,
    },
    /// Something of a relay's life.
    Relay {
        /// Its number.
        relay: usize,
        /// What.
        what: &'static str,
    },
    /// The store answered something that should not happen.
    Broken(String),
    /// The network or a server misbehaved.
    Fault(&'static str),
    /// An operator asked for so many shards.
    Regroup(u16),
    /// All faults end here.
    Quiet,
}

/// What became of the key of a message that was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dead {
    /// It waits.
    Hold,
    /// It goes on.
    Continue,
}

/// A lease, as the history keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// Which shard.
    pub shard: u16,
    /// Of how many.
    pub shards: u16,
    /// Its epoch.
    pub epoch: i64,
    /// Its owner.
    pub owner: Uuid,
}

impl From<&Lease> for Grant {
    fn from(lease: &Lease) -> Self {
        Self { shard: lease.shard, shards: lease.shards, epoch: lease.epoch, owner: lease.owner }
    }
}

impl Event {
    /// The message that it is about.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Self::Committed { name, .. }
            | Self::RolledBack(name)
            | Self::Cancelled(name)
            | Self::Received { name, .. }
            | Self::Refused { name, .. }
            | Self::Vanished(name)
            | Self::Parked { name, .. }
            | Self::Marked { name, .. }
            | Self::MarkedTwice(name)
            | Self::QueuedTwice(name) => Some(name),
            Self::Granted(_)
            | Self::Freed(_)
            | Self::Wrote { .. }
            | Self::Relay { .. }
            | Self::Broken(_)
            | Self::Fault(_)
            | Self::Regroup(_)
            | Self::Quiet => None,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Committed { name, kind, topic, scheduled, .. } => {
                write!(f, "committed {name} ({kind} to {topic}{})", if *scheduled { ", scheduled" } else { "" })
            }
            Self::RolledBack(name) => write!(f, "rolled back {name}"),
            Self::Cancelled(name) => write!(f, "cancelled {name}"),
            Self::Received { name, epoch, .. } => write!(f, "RECEIVED {name} (epoch {epoch})"),
            Self::Refused { name, class } => write!(f, "refused {name}: {class}"),
            Self::Vanished(name) => write!(f, "lost on the way {name}"),
            Self::Parked { name, class, attempts, dead } => {
                let how = match dead {
                    None => "parked",
                    Some(Dead::Hold) => "buried, its key held,",
                    Some(Dead::Continue) => "buried, its key going on,",
                };
                write!(f, "{how} {name}: {class}, {attempts} attempts")
            }
            Self::Marked { name, discard } => {
                write!(f, "marked {name} for {}", if *discard { "discarding" } else { "redrive" })
            }
            Self::MarkedTwice(name) => write!(f, "marked twice {name}"),
            Self::QueuedTwice(name) => write!(f, "queued twice {name}"),
            Self::Granted(grant) => write!(f, "leased {grant}"),
            Self::Freed(grant) => write!(f, "given back {grant}"),
            Self::Wrote { grant, what } => write!(f, "{what} under {grant}"),
            Self::Relay { relay, what } => write!(f, "relay {relay} {what}"),
            Self::Broken(what) => write!(f, "the store is broken: {what}"),
            Self::Fault(what) => write!(f, "fault: {what}"),
            Self::Regroup(shards) => write!(f, "regroup to {shards} shards"),
            Self::Quiet => write!(f, "all faults end"),
        }
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner.as_u128() >> 112;
        write!(f, "shard {} of {}, epoch {}, owner {owner:04x}", self.shard, self.shards, self.epoch)
    }
}

/// What happened so far, each with its virtual time.
#[derive(Debug)]
pub struct History {
    start: Instant,
    events: Mutex<Vec<(Duration, Event)>>,
}

impl History {
    /// Begins now.
    pub fn begin() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }

    /// How long it has lasted.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Something happened now.
    pub fn record(&self, event: Event) {
        let at = self.now();
        lock(&self.events).push((at, event));
    }

    /// Everything, in order.
    pub fn events(&self) -> Vec<(Duration, Event)> {
        lock(&self.events).clone()
    }
}

/// A fingerprint of a whole history: equal for equal runs.
pub fn fingerprint(events: &[(Duration, Event)]) -> u64 {
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
