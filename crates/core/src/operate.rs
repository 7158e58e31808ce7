//! What people ask of an outbox and tell it; the commands, and later the console, are written against this.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::message::{Message, MessageId};
use crate::store::{Hold, StoreError};

/// Where a new destination starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what commits from now on.
    Now,
    /// With the oldest message that is retained.
    Oldest,
}

/// A destination, as it is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Its name.
    pub name: String,
    /// Into how many shards it cuts the outbox.
    pub shards: u16,
    /// The number of shards that was asked for and is not reached yet.
    pub regrouping_to: Option<u16>,
    /// Relays of one that is off do not run.
    pub on: bool,
}

/// How much waits for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Messages of the log that are not settled.
    pub pending: i64,
    /// Whether `pending` was counted; otherwise it is an estimate.
    pub exact: bool,
    /// Parked messages, counted up to the limit.
    pub parked: i64,
    /// Dead letters that nobody marked, counted up to the limit.
    pub dead: i64,
}

/// Where a message stands on its way to one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// Its time has not come.
    Scheduled,
    /// In the log, not settled.
    Pending,
    /// Failed, and is tried again.
    Retrying,
    /// Its address is held.
    Held,
    /// Took connections down, and is tried alone.
    Quarantined,
    /// Parked behind another message of its key.
    Behind,
    /// Given up.
    Dead,
    /// Given up, and put aside by a person.
    Discarded,
    /// Confirmed by the broker, or wanted by no route.
    Published,
}

impl Status {
    /// Every status, in the order of a message's journey.
    pub const ALL: [Self; 9] = [
        Self::Scheduled,
        Self::Pending,
        Self::Retrying,
        Self::Held,
        Self::Quarantined,
        Self::Behind,
        Self::Dead,
        Self::Discarded,
        Self::Published,
    ];

    /// The word that SQL, JSON and people see.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Pending => "pending",
            Self::Retrying => "retrying",
            Self::Held => "held",
            Self::Quarantined => "quarantined",
            Self::Behind => "behind",
            Self::Dead => "dead",
            Self::Discarded => "discarded",
            Self::Published => "published",
        }
    }

    /// The status of this word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.word() == word)
    }
}

/// A message in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its number in the log; a scheduled one has none yet.
    pub seq: Option<i64>,
    /// Its id.
    pub id: MessageId,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: String,
    /// Its type.
    pub kind: String,
    /// When it was emitted.
    pub created_at: Timestamp,
    /// Where it stands.
    pub status: Status,
    /// Counted attempts.
    pub attempts: u32,
    /// When it is tried next.
    pub next_attempt_at: Option<Timestamp>,
    /// Why it last failed.
    pub last_error: Option<String>,
    /// When it was settled as delivered.
    pub published_at: Option<Timestamp>,
}

/// Which messages are looked for; everything that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Of this key.
    pub key: Option<String>,
    /// Of this topic.
    pub topic: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// In this status.
    pub status: Option<Status>,
    /// Emitted at this time or later.
    pub since: Option<Timestamp>,
    /// Emitted before this time.
    pub until: Option<Timestamp>,
    /// Continues a search: what [`Found::next`] said.
    pub before: Option<i64>,
}

/// What a search found so far, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The messages.
    pub messages: Vec<Listed>,
    /// Where the search goes on; `None` when everything was seen.
    pub next: Option<i64>,
    /// How far back it came, if the time ran out before the limit was reached.
    pub ran_out_at: Option<Timestamp>,
}

/// One message with all that is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Where it stands.
    pub listed: Listed,
    /// The message, with its original bytes.
    pub message: Message,
}

/// A shard and who works on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which shard.
    pub shard: u16,
    /// The relay that holds its lease, by name; `None` when it is free.
    pub owner: Option<String>,
    /// Rises with every change of owner.
    pub epoch: i64,
    /// How long the lease still lasts; zero when it has expired.
    pub lasts: Duration,
    /// When something of it was last settled.
    pub settled_at: Option<Timestamp>,
    /// Keys of it that wait.
    pub parked_keys: u64,
}

/// Why a key does not move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It does: nothing of it waits.
    Nothing,
    /// Its messages wait for a relay to read them, and one holds the shard.
    Unread,
    /// Its messages wait for a relay to read them, and none holds the shard.
    NoRelay,
    /// The destination is switched off.
    SwitchedOff,
    /// The first message failed and is tried again then.
    Retry {
        /// When.
        at: Timestamp,
    },
    /// The first message's address is held.
    Held {
        /// The address, and why.
        hold: Hold,
        /// When it is probed next.
        probe_at: Option<Timestamp>,
    },
    /// The first message took connections down and is tried alone then.
    Quarantined {
        /// When.
        at: Timestamp,
    },
    /// The first message is a dead letter, and the key waits for a person.
    Dead {
        /// The dead letter.
        id: MessageId,
    },
    /// A person marked it, and the shard's owner has not acted yet.
    Marked {
        /// The dead letter.
        id: MessageId,
        /// `redrive` or `discard`.
        mark: String,
    },
    /// Everything of the key that is left is scheduled for later.
    Scheduled {
        /// When the first of it is due.
        at: Timestamp,
    },
}

/// A key that somebody asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// Why it does not move.
    pub cause: Cause,
    /// The message that everything else of the key waits for.
    pub head: Option<Listed>,
    /// How many messages of the key wait, the head included; counted up to 10 000.
    pub waiting: u64,
    /// Since when the head waits.
    pub since: Option<Timestamp>,
    /// The key's shard.
    pub shard: Shard,
}

/// A range of the log, by the time of `emit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// From this time, or from the oldest that is retained.
    pub since: Option<Timestamp>,
    /// To this time, or to now.
    pub until: Option<Timestamp>,
}

/// What was committed in a range, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Messages of the log in the range.
    pub committed: u64,
    /// Of those, how many stand where, in the order of [`Status::ALL`].
    pub by_status: Vec<(Status, u64)>,
    /// The oldest that is not settled.
    pub oldest_unsettled: Option<Timestamp>,
    /// What must not be: a message that waits where nobody looks, a key that waits for nothing.
    pub contradictions: Vec<String>,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Will become a problem.
    Warning,
    /// Contradicts a promise.
    Danger,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was looked at, in a few words that stay the same, such as `synchronous_commit`.
    pub subject: String,
    /// What was seen.
    pub seen: String,
    /// What mends it.
    pub fix: Option<String>,
}

/// What people ask of an outbox, bound to one destination. Nothing here changes anything.
#[async_trait]
pub trait Inspect: Send + Sync {
    /// Every destination of the outbox, by name.
    async fn destinations(&self) -> Result<Vec<Destination>, StoreError>;

    /// How much waits: exact up to 10 000, an estimate above.
    async fn backlog(&self) -> Result<Backlog, StoreError>;

    /// Searches backwards, at most for about `budget`, and says how far it got.
    async fn search(&self, search: &Search, limit: usize, budget: Duration) -> Result<Found, StoreError>;

    /// One message, if it is still retained or waits.
    async fn show(&self, id: MessageId) -> Result<Option<Shown>, StoreError>;

    /// Why a key does not move.
    async fn why(&self, key: &str) -> Result<Why, StoreError>;

    /// The shards, in order.
    async fn shards(&self) -> Result<Vec<Shard>, StoreError>;

    /// Compares what was committed with what was settled.
    async fn verify(&self, range: Range) -> Result<Verified, StoreError>;

    /// How long settled messages are kept.
    async fn retention(&self) -> Result<Duration, StoreError>;

    /// Looks at the settings that the promises stand on; everything looked at is told, good or bad.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError>;
}

/// What people tell an outbox, bound to one destination.
#[async_trait]
pub trait Operate: Send + Sync {
    /// Adds the destination; says whether it is new.
    async fn add_destination(&self, shards: u16, start: Start) -> Result<bool, StoreError>;

    /// Forgets the destination and all that waits for it, so that it no longer holds retention back; says whether it was
    /// there.
    async fn remove_destination(&self) -> Result<bool, StoreError>;

    /// Switches the destination on or off; says whether it was there.
    async fn switch(&self, on: bool) -> Result<bool, StoreError>;

    /// Asks for another number of shards; the relays carry it out. Says whether it was there.
    async fn regroup(&self, shards: u16) -> Result<bool, StoreError>;
}
