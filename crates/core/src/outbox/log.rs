//! Called by the relay: reads messages of the log and settles them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;

use crate::AfterDead;
use crate::outbox::leases::Lease;
use crate::outbox::{LogEntry, Position};
use crate::store::StoreError;

/// One read request.
#[derive(Clone, Debug)]
pub struct PageRequest<'a> {
    /// Leased shards and where to continue each. The store chooses which of them it reads.
    pub shards: &'a [(Lease, Position)],
    /// The maximum number of messages.
    pub messages_max: usize,
    /// Stop after this number of payload bytes. At least one message is always read.
    pub bytes_max: usize,
    /// How far new windows may extend.
    pub window_limit: WindowLimit,
}

/// Messages of some shards.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The messages of each key in order. Empty if there is nothing new.
    pub entries: Vec<LogEntry>,
    /// The shards that were read, also those without messages.
    pub shards: Vec<ReadShard>,
    /// Whether there was nothing more for any requested shard.
    pub caught_up: bool,
}

/// A shard of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadShard {
    /// Its lease.
    pub lease: Lease,
    /// The position at which the page starts. Nothing of the page is settled there.
    pub start: Position,
    /// The position after all messages of the page are settled.
    pub end: Position,
}

/// How far windows may extend while shards are being resharded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WindowLimit {
    /// No limit.
    #[default]
    Unlimited,
    /// Finish the current window, and open no new one.
    CurrentWindow,
    /// Windows end at this tick.
    UntilTick(i64),
}

/// The action for the failed head of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParkAction {
    /// It is retried after this delay.
    Retry {
        /// From now, on the database's clock.
        after: Duration,
    },
    /// Its address is held. `after` is the length of the hold, or the time until the next probe.
    HoldAddress {
        /// The address.
        address: Arc<str>,
        /// From now, on the database's clock.
        after: Duration,
    },
    /// It broke connections, and is retried alone after this delay.
    Quarantine {
        /// From now, on the database's clock.
        after: Duration,
    },
    /// Dead-lettered. The key waits for an operator, or continues.
    DeadLetter(AfterDead),
}

/// The failed head of a key, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishFailure {
    /// The action for it.
    pub action: ParkAction,
    /// Counted attempts so far.
    pub attempts: u32,
    /// The name of the failure class.
    pub class: &'static str,
    /// The error text.
    pub error: String,
    /// The route that chose its address.
    pub route: Arc<str>,
}

/// A message of a page that was not published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedMessage {
    /// Its number in the log.
    pub seq: i64,
    /// Its slot.
    pub slot: u16,
    /// Its key.
    pub key: ByteString,
    /// The failure. `None` if it only waits behind the parked head of its key.
    pub failure: Option<PublishFailure>,
}

/// The result of messages that were read: the progress of the shards, and the messages to park.
#[derive(Clone, Debug, Default)]
pub struct Settlement {
    /// The new position of each shard.
    pub progress: Vec<(Lease, Position)>,
    /// Messages up to those positions that were not confirmed, in sequence order.
    pub parked: Vec<ParkedMessage>,
}

/// The result of a settlement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettleResult {
    /// Shards whose lease was lost.
    pub lost_shards: Vec<u16>,
    /// Messages that should wait behind a head that is no longer parked. They were not settled. The relay must publish
    /// them before later messages of their keys.
    pub reread: Vec<i64>,
}

/// The log, as the relay reads and settles it on its hot path.
#[async_trait]
pub trait OutboxReader: Send + Sync {
    /// Reads the next messages of some of the shards. The same call may return other messages of other keys, but never
    /// leaves out an earlier message of a key.
    async fn read(&self, request: PageRequest<'_>) -> Result<Page, StoreError>;

    /// Records the results of messages, and checks each lease.
    ///
    /// Each shard changes completely, or in a series of steps, each of which settles a prefix of its messages and parks
    /// those of the prefix that failed. After an error other than [`StoreError::Busy`], and for a shard in
    /// `lost_shards` or with messages in `reread`, such a prefix may be settled: the relay reads the shard again.
    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError>;
}
