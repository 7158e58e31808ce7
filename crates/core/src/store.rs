//! The store ports of the outbox, one trait per caller.
//!
//! A call that fails with `StoreError::Away`, or that is cancelled, may have taken effect.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use jiff::Timestamp;
use uuid::Uuid;

use crate::message::{Message, MessageId};

/// The right to read and settle one shard of one destination, until it expires or another relay takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The shard.
    pub shard: u16,
    /// The number of shards. Resharding changes it and revokes every lease.
    pub shard_count: u16,
    /// Increases with every change of owner.
    pub epoch: i64,
    /// Random for each owner, because two owners may hold equal epochs after a failover.
    pub owner: Uuid,
}

/// The progress of a shard. Two ticks form a window. The window `from → to` is settled up to sequence number `place`.
/// With `from == to` the window is exhausted.
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

/// One read request.
#[derive(Clone, Debug)]
pub struct PageRequest<'a> {
    /// Shards at the same position.
    pub leases: &'a [Lease],
    /// Their position.
    pub after: Position,
    /// The maximum number of messages.
    pub messages_max: usize,
    /// Stop after this number of payload bytes. At least one message is always read.
    pub bytes_max: usize,
    /// How far new windows may extend.
    pub window_limit: WindowLimit,
}

/// Messages of one window, in order.
#[derive(Clone, Debug)]
pub struct Page {
    /// In sequence order. Empty if there is nothing new.
    pub entries: Vec<LogEntry>,
    /// The position of the shards after all entries are settled.
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

/// A relay's request to acquire and renew leases.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The relay's random token.
    pub owner: Uuid,
    /// The relay's name, for operators.
    pub name: String,
    /// The lease duration from now.
    pub duration: Duration,
    /// Shards to release, because their work is finished.
    pub release: Vec<Lease>,
}

/// The leases of a relay.
#[derive(Clone, Debug, Default)]
pub struct LeaseResponse {
    /// Every lease of this owner, renewed.
    pub leases: Vec<Lease>,
    /// The duration of all leases, counted from the request.
    pub duration: Duration,
    /// The fair share of this relay, in shards. It should release more than that.
    pub fair_share: usize,
    /// How far windows may extend.
    pub window_limit: WindowLimit,
    /// Addresses that reject every message at the moment.
    pub held_addresses: Vec<HeldAddress>,
    /// The database moved to another timeline, so a message published earlier may have no row.
    pub timeline_changed: bool,
}

/// An address that rejects every message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAddress {
    /// The address.
    pub address: String,
    /// The error text.
    pub error: String,
}

/// The state of a newly leased shard.
#[derive(Clone, Debug)]
pub struct TakenShard {
    /// The shard.
    pub shard: u16,
    /// Its progress.
    pub position: Position,
    /// Its parked keys.
    pub parked_keys: Vec<ByteString>,
}

/// What happens to the failed head of a key.
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
    /// Dead-lettered. The key waits for an operator.
    DeadHold,
    /// Dead-lettered. The key continues.
    DeadContinue,
}

/// The failed head of a key, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishFailure {
    /// What happens to it.
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
    /// Why it failed. `None` if it only waits behind the parked head of its key.
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
    /// Shards whose lease was lost. Nothing was changed for them.
    pub lost_shards: Vec<u16>,
    /// Messages that should wait behind a head that is no longer parked. Nothing was changed for their shards. The
    /// relay must publish them before later messages of their keys.
    pub reread: Vec<i64>,
}

/// Messages of a parked key that are due.
#[derive(Clone, Debug)]
pub struct ParkedBatch {
    /// The key.
    pub key: ByteString,
    /// Its slot.
    pub slot: u16,
    /// Counted attempts of the first message.
    pub attempts: u32,
    /// Whether the first message must be sent alone.
    pub quarantined: bool,
    /// The address to probe, if the key waits for a held address.
    pub probe_address: Option<String>,
    /// The first messages of the queue, in order, each with its number in the queue.
    pub messages: Vec<(i64, LogEntry)>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct ParkedSettlement {
    /// The lease of the key's shard.
    pub lease: Lease,
    /// The key.
    pub key: ByteString,
    /// Queue numbers of confirmed messages.
    pub delivered: Vec<i64>,
    /// The next message, by its queue number, and why it failed. `None` if nothing failed.
    pub failed: Option<(i64, PublishFailure)>,
    /// An address that accepts messages again. Every key that waits for it may continue.
    pub released_address: Option<Arc<str>>,
}

/// The result of an [`ParkedSettlement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkedResult {
    /// The lease was lost. Nothing was changed.
    LeaseLost,
    /// The key's queue is empty. Its next messages are published directly from the log again.
    KeyFreed,
    /// More messages of the key wait.
    StillParked,
}

/// Shard leases of one outbox and one destination.
#[async_trait]
pub trait ShardLeases: Send + Sync {
    /// In one transaction: releases the given leases, renews those of this owner, and acquires free or expired shards
    /// up to its fair share. The epoch of every acquired shard increases.
    async fn acquire_leases(&self, ask: LeaseRequest) -> Result<LeaseResponse, StoreError>;

    /// Reads the state of newly leased shards. It reads data committed after the lease was acquired, so that it
    /// includes everything a former owner settled.
    async fn standing(&self, leases: &[Lease]) -> Result<Vec<TakenShard>, StoreError>;

    /// Frees every lease of this owner, including those it does not know of because a reply was lost. Removes the owner
    /// from the list of relays.
    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError>;
}

/// The log, as the relay reads and settles it on its hot path.
#[async_trait]
pub trait OutboxReader: Send + Sync {
    /// Reads the next messages after a position, in commit order. The same call returns the same page while its window
    /// is open.
    async fn read(&self, read: PageRequest<'_>) -> Result<Page, StoreError>;

    /// Records the results of messages, in one transaction that checks each lease. Changes each shard completely or not
    /// at all, and returns the unchanged ones.
    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError>;
}

/// Parked keys, as the relay retries them.
#[async_trait]
pub trait ParkedReader: Send + Sync {
    /// Applies the marks of operators, then returns due runs: at most `keys` runs with at most `messages` messages
    /// each.
    ///
    /// It does not claim them: a run stays due, and may be returned again, until its result is recorded.
    async fn read_parked(&self, leases: &[Lease], keys: usize, messages: usize)
    -> Result<Vec<ParkedBatch>, StoreError>;

    /// Records the results of runs. Returns one result per run, in order.
    async fn settle_parked(&self, advances: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError>;
}

/// Maintenance of an outbox. Any relay may do it, but only one at a time.
#[async_trait]
pub trait Maintenance: Send + Sync {
    /// Creates partitions, deletes what retention allows, and prunes histories.
    async fn maintain(&self) -> Result<MaintenanceReport, StoreError>;
}

/// The result of maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Another relay was doing it, so this call did nothing.
    pub skipped: bool,
    /// Created partitions.
    pub prepared: u32,
    /// Emptied or dropped partitions.
    pub dropped: u32,
    /// Warnings for an operator, such as a destination that delays retention.
    pub warnings: Vec<String>,
}

/// A dead letter of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message, with its original bytes.
    pub message: Message,
    /// Why it was dead-lettered.
    pub error: String,
    /// The name of the failure class.
    pub class: String,
    /// Counted attempts.
    pub attempts: u32,
    /// The route that chose its address.
    pub route: String,
    /// When it was dead-lettered. If it failed again after a redrive, the last time.
    pub dead_at: Timestamp,
    /// `dead`, then `redriving` or `discarding` while a mark waits, then `redriven` or `discarded`.
    pub state: String,
    /// The last mark of an operator.
    pub marked: Option<OperatorMark>,
}

/// An operator's mark on a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorMark {
    /// When.
    pub at: Timestamp,
    /// Who requested it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// Selects dead letters of the destination. An empty filter selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Only these ids. Empty means any id.
    pub ids: Vec<MessageId>,
    /// Only this key.
    pub key: Option<String>,
    /// Only this route.
    pub route: Option<String>,
    /// Only those that wait for an operator: neither marked nor finished.
    pub unmarked: bool,
}

/// A redrive or discard request. Its author and reason are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    /// Selects the dead letters.
    pub filter: DeadLetterFilter,
    /// Only count what would be marked.
    pub dry_run: bool,
    /// Who requested it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// Operator access to dead letters. Operators only mark them; the relay that holds the lease acts.
#[async_trait]
pub trait DeadLetterAdmin: Send + Sync {
    /// Dead letters, oldest first.
    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;

    /// Marks dead letters for redrive and returns how many. Only unmarked ones are selected, so a second call marks
    /// nothing.
    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError>;

    /// Marks dead letters for discarding and returns how many. Only unmarked ones are selected, so a second call marks
    /// nothing.
    async fn discard(&self, mark: &MarkRequest) -> Result<u64, StoreError>;
}

/// All store ports of the relay.
pub trait RelayStore: ShardLeases + OutboxReader + ParkedReader + Maintenance {}

impl<T: ShardLeases + OutboxReader + ParkedReader + Maintenance> RelayStore for T {}

/// Errors of a store, classified by what the caller can do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is unreachable, or the connection broke during a call, which may have taken effect. The caller
    /// discards its state in memory and starts again.
    #[error("the database cannot be reached")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
    /// The server is a standby, whose snapshots do not list open transactions.
    #[error("the database is a standby")]
    Standby,
    /// The schema is missing, older or newer than this program.
    #[error("{reason}")]
    SchemaMismatch {
        /// What was found.
        reason: String,
    },
    /// The rows were written in another database: a restored dump, a copy or an upgraded cluster.
    #[error("{reason}")]
    WrongDatabase {
        /// What was found, and the command that fixes it.
        reason: String,
    },
    /// The destination is disabled or does not exist, or a grant is missing.
    #[error("{reason}")]
    Refused {
        /// What was refused.
        reason: String,
    },
    /// The database returned an unexpected reply.
    #[error("the database refused a call")]
    Unexpected(#[source] Box<dyn Error + Send + Sync>),
}

impl StoreError {
    /// Whether a later retry may succeed.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::Standby | Self::Unexpected(_) => true,
            Self::SchemaMismatch { .. } | Self::WrongDatabase { .. } | Self::Refused { .. } => false,
        }
    }
}
