//! Called by monitoring: figures of an outbox, at a fixed interval and a fixed cost.

use std::time::Duration;

use async_trait::async_trait;

use crate::outbox::inspect::Backlog;
use crate::store::StoreError;

/// The state of an outbox for one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationSample {
    /// The number of messages that wait.
    pub backlog: Backlog,
    /// Parked keys, counted up to the limit.
    pub parked_keys: i64,
    /// Addresses that reject every message.
    pub held_addresses: i64,
    /// The age, since `emit`, of the oldest message that is unsettled, or parked and not dead. Zero if there is none.
    pub oldest_pending: Duration,
    /// How long messages have been kept beyond their retention because this destination has not settled them.
    pub holdback: Duration,
}

/// The state that all destinations of an outbox share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxSample {
    /// The oldest transaction that prevents the database from removing old rows. `None` if the database has no such
    /// concept.
    pub horizon: Option<VacuumHorizon>,
    /// Consumers whose inbox is in the same database, by name.
    pub consumers: Vec<ConsumerSample>,
    /// All destinations of the outbox by name, including those without a relay. The duration is how long each one has
    /// kept messages beyond their retention.
    pub retention_overdue: Vec<(String, Duration)>,
}

/// The oldest transaction that prevents a database from removing old rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VacuumHorizon {
    /// The number of transactions that began after the oldest one still visible to a snapshot, a prepared transaction
    /// or a slot.
    pub transactions: u64,
    /// How long a session or a prepared transaction has held it. A slot does not report this.
    pub held_for: Duration,
}

/// The state of a consumer, as its inbox records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerSample {
    /// Its name.
    pub name: String,
    /// Members that are alive.
    pub members: u64,
    /// The time since the newest heartbeat of any member. `None` if no member ever sent one, or if all members left.
    pub heartbeat_age: Option<Duration>,
    /// The time since any member last received a message.
    pub last_message_age: Option<Duration>,
    /// Messages in its retry table, counted up to the limit.
    pub waiting: u64,
    /// Dead letters that wait for an operator, counted up to the limit.
    pub dead: u64,
    /// Its lanes, and whether each lane's breaker is open.
    pub breakers: Vec<(String, bool)>,
}

/// Samples an outbox.
///
/// The cost does not depend on the size of the outbox: counts stop at 10 000, and all other values come from an index.
#[async_trait]
pub trait OutboxMonitor: Send + Sync {
    /// Samples one destination.
    async fn sample_destination(&self, destination: &str) -> Result<DestinationSample, StoreError>;

    /// Samples the state that all destinations share.
    async fn sample_outbox(&self) -> Result<OutboxSample, StoreError>;
}
