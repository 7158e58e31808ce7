//! What can happen between writers, relays and their broker.

use std::fmt;

use bytestring::ByteString;
use relevo_core::store::Lease;
use uuid::Uuid;

use crate::history::{self, Happening, Name};

/// What happened so far.
pub type History = history::History<Event>;

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
