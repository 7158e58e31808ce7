//! The outbox: a log of messages that relays read, publish and settle. One port per file.

pub mod admin;
pub mod inspect;
pub mod leases;
pub mod log;
pub mod maintenance;
pub mod parked;
pub mod rules;
pub mod sample;
pub mod search;
pub mod transaction;
pub mod why;

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

/// How far a shard is settled. Only stores create positions and read them. A relay compares positions, and moves them
/// past messages.
///
/// Two ticks form a window. The window `from_tick → to_tick` is settled up to `settled_seq`. If the ticks are equal, the
/// window is exhausted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    from_tick: i64,
    to_tick: i64,
    settled_seq: i64,
}

impl Position {
    /// At a tick, without an open window.
    pub const fn at(tick: i64) -> Self {
        Self { from_tick: tick, to_tick: tick, settled_seq: 0 }
    }

    /// In a window that is settled up to this sequence number.
    pub const fn in_window(from_tick: i64, to_tick: i64, settled_seq: i64) -> Self {
        Self { from_tick, to_tick, settled_seq }
    }

    /// Moves past a message of the page that starts at this position, with its sequence number and its slot. A relay
    /// does this for each message of the shard, in order.
    pub const fn advance_past(&mut self, seq: i64, _slot: u16) {
        self.settled_seq = seq;
    }

    /// For stores: everything visible at this tick is settled.
    pub const fn from_tick(&self) -> i64 {
        self.from_tick
    }

    /// For stores: the tick at which the current window ends.
    pub const fn to_tick(&self) -> i64 {
        self.to_tick
    }

    /// For stores: the sequence number up to which the window is settled.
    pub const fn settled_seq(&self) -> i64 {
        self.settled_seq
    }

    /// For stores: whether the window has been read to its end.
    pub const fn is_exhausted(&self) -> bool {
        self.from_tick == self.to_tick
    }
}

/// A message in the log.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// Its number in the outbox. Unique, and in commit order within a key whose writers lock it. It says nothing about
    /// the order of different keys.
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
