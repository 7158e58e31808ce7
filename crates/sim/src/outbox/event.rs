//! Events between writers, relays and their broker.

use std::fmt;

use bytestring::ByteString;
use relevo_core::outbox::leases::Lease;
use uuid::Uuid;

use crate::history::{self, MessageName, SimEvent};

/// The history of a run of this world.
pub type History = history::History<Event>;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A transaction committed a message.
    Committed {
        /// The message.
        name: MessageName,
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
    RolledBack(MessageName),
    /// Its writer cancelled it before it was due.
    Cancelled(MessageName),
    /// The broker received it.
    Received {
        /// The message.
        name: MessageName,
        /// A hash of its payload.
        bytes: u64,
        /// The epoch of the lease under which it was sent.
        epoch: i64,
    },
    /// The broker rejected it.
    Refused {
        /// The message.
        name: MessageName,
        /// The failure class.
        class: &'static str,
    },
    /// The network lost it on its way to the broker.
    LostInTransit(MessageName),
    /// A relay parked it.
    Parked {
        /// The message.
        name: MessageName,
        /// The failure class.
        class: &'static str,
        /// Counted attempts.
        attempts: u32,
        /// The treatment of its key, if it was dead-lettered.
        dead: Option<Dead>,
    },
    /// An operator marked its dead letter.
    Marked {
        /// The message.
        name: MessageName,
        /// Whether the mark is a discard. Otherwise it is a redrive.
        discard: bool,
    },
    /// A second mark request marked it again.
    MarkedTwice(MessageName),
    /// The queue of its key contains it twice.
    QueuedTwice(MessageName),
    /// A relay acquired a lease.
    LeaseTaken(LeaseRef),
    /// A relay released a lease.
    LeaseReleased(LeaseRef),
    /// A relay recorded something under a lease.
    Wrote {
        /// The lease.
        lease: LeaseRef,
        /// The recorded change.
        text: &'static str,
    },
    /// An event in the life cycle of a relay.
    Relay {
        /// Its number.
        relay: usize,
        /// Its new state.
        text: &'static str,
    },
    /// The store returned an unexpected reply.
    StoreError(String),
    /// A network or server fault.
    Fault(&'static str),
    /// An operator requested this number of shards.
    Reshard(u16),
    /// All faults end here.
    FaultsEnded,
}

/// The treatment of the key of a dead-lettered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dead {
    /// The key waits.
    Hold,
    /// The key continues.
    Continue,
}

/// A lease in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRef {
    /// The shard.
    pub shard: u16,
    /// The number of shards.
    pub shard_count: u16,
    /// Its epoch.
    pub epoch: i64,
    /// Its owner.
    pub owner: Uuid,
}

impl From<&Lease> for LeaseRef {
    fn from(lease: &Lease) -> Self {
        Self { shard: lease.shard, shard_count: lease.shard_count, epoch: lease.epoch, owner: lease.owner }
    }
}

impl SimEvent for Event {
    fn fault(text: &'static str) -> Self {
        Self::Fault(text)
    }

    fn store_error(text: String) -> Self {
        Self::StoreError(text)
    }

    fn name(&self) -> Option<&MessageName> {
        match self {
            Self::Committed { name, .. }
            | Self::RolledBack(name)
            | Self::Cancelled(name)
            | Self::Received { name, .. }
            | Self::Refused { name, .. }
            | Self::LostInTransit(name)
            | Self::Parked { name, .. }
            | Self::Marked { name, .. }
            | Self::MarkedTwice(name)
            | Self::QueuedTwice(name) => Some(name),
            Self::LeaseTaken(_)
            | Self::LeaseReleased(_)
            | Self::Wrote { .. }
            | Self::Relay { .. }
            | Self::StoreError(_)
            | Self::Fault(_)
            | Self::Reshard(_)
            | Self::FaultsEnded => None,
        }
    }

    fn is_message(&self) -> bool {
        matches!(self, Self::Committed { .. })
    }

    fn is_fault(&self) -> bool {
        matches!(self, Self::Fault(_) | Self::Refused { .. } | Self::Relay { .. } | Self::Reshard(_))
    }

    fn is_lifecycle(&self) -> bool {
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
            Self::LostInTransit(name) => write!(f, "lost in transit {name}"),
            Self::Parked { name, class, attempts, dead } => {
                let action = match dead {
                    None => "parked",
                    Some(Dead::Hold) => "dead-lettered, key held:",
                    Some(Dead::Continue) => "dead-lettered, key continues:",
                };
                write!(f, "{action} {name}, {class}, {attempts} attempts")
            }
            Self::Marked { name, discard } => {
                write!(f, "marked {name} for {}", if *discard { "discarding" } else { "redrive" })
            }
            Self::MarkedTwice(name) => write!(f, "marked twice {name}"),
            Self::QueuedTwice(name) => write!(f, "queued twice {name}"),
            Self::LeaseTaken(lease) => write!(f, "leased {lease}"),
            Self::LeaseReleased(lease) => write!(f, "released {lease}"),
            Self::Wrote { lease, text } => write!(f, "{text} under {lease}"),
            Self::Relay { relay, text } => write!(f, "relay {relay} {text}"),
            Self::StoreError(text) => write!(f, "unexpected reply of the store: {text}"),
            Self::Fault(text) => write!(f, "fault: {text}"),
            Self::Reshard(shards) => write!(f, "reshard to {shards} shards"),
            Self::FaultsEnded => write!(f, "all faults end"),
        }
    }
}

impl fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = self.owner.as_u128() >> 112;
        write!(f, "shard {} of {}, epoch {}, owner {owner:04x}", self.shard, self.shard_count, self.epoch)
    }
}
