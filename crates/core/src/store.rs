//! The ports to the database: one trait a caller.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use jiff::Timestamp;
use uuid::Uuid;

use crate::message::{Message, MessageId};

/// The right to read and settle one shard of one destination until it expires or is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// Which shard.
    pub shard: u16,
    /// Of how many; regrouping changes it and takes every lease away.
    pub shards: u16,
    /// Rises with every change of owner.
    pub epoch: i64,
    /// Random for each owner: after a failover two owners may hold equal epochs.
    pub owner: Uuid,
}

/// How far a shard has come. Any two ticks make a window; `place` is the sequence number up to which the window
/// `from → to` is settled. With `from == to` it is exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Everything visible at this tick is settled.
    pub from: i64,
    /// The tick at which the current window ends.
    pub to: i64,
    /// What of the window is settled, by sequence number.
    pub place: i64,
}

impl Position {
    /// At a tick, with nothing half read.
    pub const fn at(tick: i64) -> Self {
        Self { from: tick, to: tick, place: 0 }
    }

    /// Whether the window has been read to its end.
    pub const fn is_exhausted(&self) -> bool {
        self.from == self.to
    }
}

/// A message in the log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its number in the outbox; unique, and in commit order within a window for writers that lock the key.
    pub seq: i64,
    /// The slot of its key.
    pub slot: u16,
    /// The message itself.
    pub message: Arc<Message>,
}

/// What one call reads.
#[derive(Clone, Debug)]
pub struct Read<'a> {
    /// Shards that stand at the same position.
    pub leases: &'a [Lease],
    /// Where they stand.
    pub after: Position,
    /// At most so many messages.
    pub limit: usize,
    /// No further message once payloads have this many bytes; always at least one.
    pub bytes: usize,
    /// How far new windows may go.
    pub ceiling: Ceiling,
}

/// Some of a window's messages, in order.
#[derive(Clone, Debug)]
pub struct Page {
    /// In sequence order; empty when there is nothing new.
    pub entries: Vec<Entry>,
    /// Where the shards stand when all of them are settled.
    pub end: Position,
}

/// How far windows may go while shards are being regrouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ceiling {
    /// As far as there is something.
    #[default]
    Open,
    /// Finish the current window and open no other.
    NoNewWindow,
    /// Windows end at this tick.
    Tick(i64),
}

/// What a relay asks for when it takes and renews leases.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The relay's random token.
    pub owner: Uuid,
    /// The relay's name, for people.
    pub name: String,
    /// How long leases last from now.
    pub lease: Duration,
    /// Shards whose work is finished and that are given back.
    pub give_back: Vec<Lease>,
}

/// What a relay holds.
#[derive(Clone, Debug, Default)]
pub struct Leased {
    /// Every lease of this owner, renewed.
    pub leases: Vec<Lease>,
    /// How long all of them last, from when they were asked for.
    pub lasts: Duration,
    /// How many shards are this relay's fair share; more than that should be given back.
    pub fair: usize,
    /// How far windows may go.
    pub ceiling: Ceiling,
    /// Addresses that nothing can pass to at the moment.
    pub holds: Vec<Hold>,
    /// A message published earlier may have no row: the database moved to another timeline.
    pub timeline_changed: bool,
}

/// An address that nothing can pass to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Which address.
    pub address: String,
    /// Why, for people.
    pub error: String,
}

/// Where a newly leased shard stands.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Which shard.
    pub shard: u16,
    /// How far it has come.
    pub position: Position,
    /// Keys with messages that wait.
    pub parked: Vec<ByteString>,
}

/// Why the head of a key does not go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Tried again after this pause.
    Retry {
        /// From now, on the database's clock.
        after: Duration,
    },
    /// Its address is held, for this long, or until a probe at this distance passes.
    Address {
        /// Which address.
        address: Arc<str>,
        /// From now, on the database's clock.
        after: Duration,
    },
    /// It took connections down; tried alone after this pause.
    Quarantine {
        /// From now, on the database's clock.
        after: Duration,
    },
    /// Given up; the key waits for a person.
    DeadHold,
    /// Given up; the key goes on.
    DeadContinue,
}

/// A head that stopped, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// What happens to it.
    pub stop: Stop,
    /// Counted attempts so far.
    pub attempts: u32,
    /// The failure class's word.
    pub class: &'static str,
    /// The error, for people.
    pub error: String,
    /// The route that chose its address.
    pub route: Arc<str>,
}

/// A message of a page that did not go out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Park {
    /// Its number in the log.
    pub seq: i64,
    /// Its slot.
    pub slot: u16,
    /// Its key.
    pub key: ByteString,
    /// Why it stopped; `None` for one that waits behind a parked head of its key.
    pub stopped: Option<Stopped>,
}

/// What became of messages that were read: how far shards have come, and what is parked on the way.
#[derive(Clone, Debug, Default)]
pub struct Settlement {
    /// The new position of each shard.
    pub progress: Vec<(Lease, Position)>,
    /// Messages up to those positions that were not confirmed, in sequence order.
    pub parks: Vec<Park>,
}

/// The answer to a settlement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Shards whose lease is gone. Nothing of them was changed.
    pub lost: Vec<u16>,
    /// Messages that were to wait behind a head which is gone. Nothing of their shards was changed: they must go out
    /// first, before later ones of their keys.
    pub passed: Vec<i64>,
}

/// Messages of a parked key that may be tried now.
#[derive(Clone, Debug)]
pub struct Run {
    /// The key.
    pub key: ByteString,
    /// Its slot.
    pub slot: u16,
    /// Counted attempts of the first message.
    pub attempts: u32,
    /// Whether the first message must be sent alone.
    pub quarantined: bool,
    /// The address that is probed, where the key waits for one.
    pub address: Option<String>,
    /// The queue's first messages, in order, each with its number in the queue.
    pub messages: Vec<(i64, Entry)>,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Advance {
    /// The lease of the key's shard.
    pub lease: Lease,
    /// The key.
    pub key: ByteString,
    /// Queue numbers that were confirmed.
    pub delivered: Vec<i64>,
    /// Why the next one, by its queue number, did not go out; `None` if nothing failed.
    pub stopped: Option<(i64, Stopped)>,
    /// An address that is proven to pass, so that every key that waits for it may go on.
    pub released: Option<Arc<str>>,
}

/// The answer to an [`Advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advanced {
    /// The lease is gone; nothing was changed.
    Lost,
    /// Nothing is left of the key's queue: its messages take the live path again.
    Unparked,
    /// More of it waits.
    Waits,
}

/// What a database can do for a relay, bound to one outbox and one destination.
#[async_trait]
pub trait Leases: Send + Sync {
    /// In one transaction: gives back, renews what this owner holds, and takes free or expired shards up to its fair
    /// share. The epoch of every shard taken rises.
    async fn lease(&self, ask: Ask) -> Result<Leased, StoreError>;

    /// Where newly leased shards stand. Reads what was committed after the lease was taken, so that nothing a former
    /// owner settled is missed.
    async fn standing(&self, leases: &[Lease]) -> Result<Vec<Standing>, StoreError>;

    /// Frees every lease of this owner at once, also those that it does not know of because a reply was lost, and takes it
    /// off the list.
    async fn leave(&self, owner: Uuid) -> Result<(), StoreError>;
}

/// The relay's hot path.
#[async_trait]
pub trait OutboxReader: Send + Sync {
    /// The next messages after a position, in commit order. The same call gives the same page while its window lasts.
    async fn read(&self, read: Read<'_>) -> Result<Page, StoreError>;

    /// Records what became of messages, shard by shard, in one transaction that checks each lease.
    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError>;
}

/// Keys that wait.
#[async_trait]
pub trait ParkedKeys: Send + Sync {
    /// Carries out what operators marked, then gives the runs that are due, at most `keys` of them with at most
    /// `messages` each.
    async fn due(&self, leases: &[Lease], keys: usize, messages: usize) -> Result<Vec<Run>, StoreError>;

    /// Records what came of runs; one answer each, in order.
    async fn advance(&self, advances: Vec<Advance>) -> Result<Vec<Advanced>, StoreError>;
}

/// What keeps an outbox tidy; any relay may do it, one does it at a time.
#[async_trait]
pub trait Upkeep: Send + Sync {
    /// Prepares partitions, drops what retention allows, prunes histories.
    async fn maintain(&self) -> Result<Maintained, StoreError>;
}

/// What upkeep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Another relay was at it.
    pub busy: bool,
    /// Partitions prepared.
    pub prepared: u32,
    /// Partitions emptied or dropped.
    pub dropped: u32,
    /// Sentences that a person should read, such as a destination that holds back retention.
    pub warnings: Vec<String>,
}

/// A dead letter, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The message, with its original bytes.
    pub message: Message,
    /// Why it was given up.
    pub error: String,
    /// The failure class's word.
    pub class: String,
    /// Counted attempts.
    pub attempts: u32,
    /// The route that chose its address.
    pub route: String,
    /// When it was given up; if it was redriven and failed again, the last time.
    pub dead_at: Timestamp,
    /// `dead`, `redrive` or `discard` once marked, `redriven`, `discarded`.
    pub state: String,
    /// Who marked it last, and why.
    pub marked: Option<Marked>,
}

/// An operator's mark on a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// When.
    pub at: Timestamp,
    /// Who asked.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// Which dead letters an operator means. Empty means all of the destination's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Only these ids, if there are any.
    pub ids: Vec<MessageId>,
    /// Only this key.
    pub key: Option<String>,
    /// Only this route.
    pub route: Option<String>,
    /// Only those that wait for a person: neither marked nor finished.
    pub unmarked: bool,
}

/// Who marks, and why; both are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Which dead letters.
    pub filter: DeadFilter,
    /// Only tells what would be marked.
    pub dry_run: bool,
    /// Who asks.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// What operators do with dead letters: they only mark, the lease's owner acts.
#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Dead letters, oldest first.
    async fn dead(&self, filter: &DeadFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError>;

    /// Marks for redrive whatever is dead and unmarked; says how many. A second call marks nothing.
    async fn redrive(&self, mark: &Mark) -> Result<u64, StoreError>;

    /// Marks for discarding; says how many.
    async fn discard(&self, mark: &Mark) -> Result<u64, StoreError>;
}

/// Everything the relay needs of a store.
pub trait Store: Leases + OutboxReader + ParkedKeys + Upkeep {}

impl<T: Leases + OutboxReader + ParkedKeys + Upkeep> Store for T {}

/// What a store cannot do, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, or the connection broke in mid-call: it may have happened. The caller forgets what it
    /// holds in memory and begins again.
    #[error("the database cannot be reached")]
    Away(#[source] Box<dyn Error + Send + Sync>),
    /// The server is a standby, whose snapshots do not list open transactions.
    #[error("the database is a standby")]
    Standby,
    /// The schema is missing, older or newer than this program.
    #[error("{what}")]
    Schema {
        /// What was found.
        what: String,
    },
    /// The rows were written in another database: a restored dump, a copy, an upgraded cluster.
    #[error("{what}")]
    Foreign {
        /// What was found, and which command mends it.
        what: String,
    },
    /// A person switched this destination off, or it does not exist, or a grant is missing.
    #[error("{what}")]
    Refused {
        /// What was refused.
        what: String,
    },
    /// The database answered something that must not happen.
    #[error("the database refused a call")]
    Broken(#[source] Box<dyn Error + Send + Sync>),
}

impl StoreError {
    /// Whether waiting may mend it.
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::Away(_) | Self::Standby | Self::Broken(_) => true,
            Self::Schema { .. } | Self::Foreign { .. } | Self::Refused { .. } => false,
        }
    }
}
