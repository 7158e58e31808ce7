//! Events between writers, relays and their broker.

use std::fmt;

use bytestring::ByteString;
use relevo_core::store::Lease;
use uuid::Uuid;

use crate::history::{self, Happening, Name};

/// The history of a run of this world.
pub type History = history::History<Event>;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A transaction committed a message.
    Committed {
        /// The message.
        name: Name,
        /// Its type.
        kind: ByteString,
        /// Its topic.
        topic: ByteString,
        /// A hash of its payload.
        bytes: u64,
        /// Whether it is scheduled for later.
        scheduled: bool,
    },
    /// It was emitted, but its transaction or savepoint rolled back.
    RolledBack(Name),
    /// Its writer cancelled it before it was due.
    Cancelled(Name),
    /// The broker received it.
    Received {
        /// The message.
        name: Name,
        /// A hash of its payload.
        bytes: u64,
        /// The epoch of the lease under which it was sent.
        epoch: i64,
    },
    /// The broker rejected it.
    Refused {
        /// The message.
        name: Name,
        /// The failure class.
        class: &'static str,
    },
    /// The network lost it on its way to the broker.
    Vanished(Name),
    /// A relay parked it.
    Parked {
        /// The message.
        name: Name,
        /// The failure class.
        class: &'static str,
        /// Counted attempts.
        attempts: u32,
        /// What happens to its key, if it was dead-lettered.
        dead: Option<Dead>,
    },
    /// An operator marked its dead letter.
    Marked {
        /// The message.
        name: Name,
        /// Whether the mark is a discard. Otherwise it is a redrive.
        discard: bool,
    },
    /// A second mark request marked it again.
    MarkedTwice(Name),
    /// The queue of its key contains it twice.
    QueuedTwice(Name),
    /// A relay acquired a lease.
    Granted(Grant),
    /// A relay released a lease.
    Freed(Grant),
    /// A relay recorded something under a lease.
    Wrote {
        /// The lease.
        grant: Grant,
        /// What it recorded.
        what: &'static str,
    },
    /// An event in the life cycle of a relay.
    Relay {
        /// Its number.
        relay: usize,
        /// What happened.
        what: &'static str,
    },
    /// The store returned an unexpected reply.
    Broken(String),
    /// A network or server fault.
    Fault(&'static str),
    /// An operator requested this number of shards.
    Regroup(u16),
    /// All faults end here.
    Quiet,
}

/// What happens to the key of a dead-lettered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dead {
    /// The key waits.
    Hold,
    /// The key continues.
    Continue,
}

/// A lease in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The shard.
    pub shard: u16,
    /// The number of shards.
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

impl Happening for Event {
    fn fault(what: &'static str) -> Self {
        Self::Fault(what)
    }

    fn broken(what: String) -> Self {
        Self::Broken(what)
    }

    fn name(&self) -> Option<&Name> {
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

    fn is_message(&self) -> bool {
        matches!(self, Self::Committed { .. })
    }

    fn is_fault(&self) -> bool {
        matches!(self, Self::Fault(_) | Self::Refused { .. } | Self::Relay { .. } | Self::Regroup(_))
    }

    fn is_life(&self) -> bool {
        matches!(self, Self::Relay { .. })
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
