//! Called by operators: the state of destinations, shards, keys and messages. Nothing here changes anything.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::finding::Finding;
use crate::message::{Message, MessageId};
use crate::outbox::why::KeyFacts;
use crate::store::StoreError;

/// A destination and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationInfo {
    /// Its name.
    pub name: String,
    /// The number of its shards.
    pub shards: u16,
    /// The requested number of shards, while resharding is not finished.
    pub resharding_to: Option<u16>,
    /// Whether its relays may run.
    pub enabled: bool,
}

/// The number of messages that wait for a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// Unsettled messages of the log.
    pub pending: i64,
    /// Whether `pending` is exact. Otherwise it is an estimate.
    pub exact: bool,
    /// Parked messages, counted up to the limit.
    pub parked: i64,
    /// Dead letters without an operator's mark, counted up to the limit.
    pub dead: i64,
}

crate::text_enum! {
    /// The status of a message at one destination.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum MessageStatus {
        /// It is not due yet.
        Scheduled = "scheduled",
        /// In the log, not settled.
        Pending = "pending",
        /// It failed and will be retried.
        Retrying = "retrying",
        /// Its address is held.
        Held = "held",
        /// It broke connections and is retried alone.
        Quarantined = "quarantined",
        /// Parked behind another message of its key.
        Waiting = "waiting",
        /// Dead-lettered.
        Dead = "dead",
        /// Dead-lettered, then discarded by an operator.
        Discarded = "discarded",
        /// Confirmed by the broker, or not matched by any route.
        Published = "published",
    }
}

/// A message in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSummary {
    /// Its number in the log. A scheduled message has none yet.
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
    /// Its status.
    pub status: MessageStatus,
    /// Counted attempts.
    pub attempts: u32,
    /// The time of its next attempt.
    pub next_attempt_at: Option<Timestamp>,
    /// Its last error.
    pub last_error: Option<String>,
    /// When it was settled as published.
    pub published_at: Option<Timestamp>,
}

/// One message with its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageDetails {
    /// Its summary.
    pub summary: MessageSummary,
    /// The message, with its original bytes.
    pub message: Message,
}

/// A shard and its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    /// Which shard.
    pub shard: u16,
    /// The name of the relay that holds the lease. `None` if the shard is free.
    pub owner: Option<String>,
    /// Increases with every change of owner.
    pub epoch: i64,
    /// The remaining time of the lease. Zero if it has expired.
    pub lease_remaining: Duration,
    /// When a message of the shard was last settled.
    pub settled_at: Option<Timestamp>,
    /// The number of parked keys in the shard.
    pub parked_keys: u64,
}

/// Read-only operator access to an outbox. A call for an unknown destination returns an error.
#[async_trait]
pub trait OutboxInspector: Send + Sync {
    /// Every destination of the outbox, by name.
    async fn destinations(&self) -> Result<Vec<DestinationInfo>, StoreError>;

    /// The shards of a destination, in ascending order.
    async fn shards(&self, destination: &str) -> Result<Vec<ShardInfo>, StoreError>;

    /// Returns one message, if it is retained or still waits.
    async fn message(&self, destination: &str, id: MessageId) -> Result<Option<MessageDetails>, StoreError>;

    /// What the store knows about a waiting key. [`explain`](crate::outbox::why::explain) chooses the cause.
    async fn key_facts(&self, destination: &str, key: &str) -> Result<KeyFacts, StoreError>;

    /// Checks the settings that the guarantees depend on. Returns every check, passed or failed.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError>;
}
