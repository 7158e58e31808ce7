//! The outbox: a log of messages that relays read, publish and settle. One port per file.

pub mod admin;
pub mod inspect;
pub mod leases;
pub mod log;
pub mod maintenance;
pub mod parked;
pub mod sample;
pub mod search;

use std::sync::Arc;

use crate::dead_letters::DeadLetterAdmin;
use crate::message::Message;
use crate::outbox::admin::OutboxAdmin;
use crate::outbox::inspect::OutboxInspector;
use crate::outbox::leases::ShardLeases;
use crate::outbox::log::OutboxReader;
use crate::outbox::maintenance::Maintenance;
use crate::outbox::parked::ParkedReader;
use crate::outbox::sample::OutboxMonitor;
use crate::outbox::search::OutboxSearch;

/// The progress of a shard. Two ticks form a window. The window `from_tick → to_tick` is settled up to `settled_seq`.
/// If `from_tick` equals `to_tick`, the window is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Everything visible at this tick is settled.
    pub from_tick: i64,
    /// The tick at which the current window ends.
    pub to_tick: i64,
    /// The sequence number up to which the window is settled.
    pub settled_seq: i64,
}

impl Position {
    /// At a tick, without an open window.
    pub const fn at(tick: i64) -> Self {
        Self { from_tick: tick, to_tick: tick, settled_seq: 0 }
    }

    /// Whether the window has been read to its end.
    pub const fn is_exhausted(&self) -> bool {
        self.from_tick == self.to_tick
    }
}

/// A message in the log.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// Its number in the outbox. Unique, and in commit order within a window for writers that lock the key.
    pub seq: i64,
    /// The slot of its key.
    pub slot: u16,
    /// The message itself.
    pub message: Arc<Message>,
}

/// All store ports of the relay.
pub trait RelayStore: ShardLeases + OutboxReader + ParkedReader + Maintenance {}

impl<T: ShardLeases + OutboxReader + ParkedReader + Maintenance> RelayStore for T {}

/// All ports of operators to an outbox. They name the destination in each call.
pub trait OutboxOperator: OutboxInspector + OutboxAdmin + OutboxMonitor + DeadLetterAdmin {
    /// The search of the log. `None` if the store has none.
    fn as_search(&self) -> Option<&dyn OutboxSearch>;
}
