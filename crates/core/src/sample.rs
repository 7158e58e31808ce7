//! What is sampled of an outbox and of a broker for those who watch, at a fixed pace and a fixed cost.

use std::time::Duration;

use async_trait::async_trait;

use crate::failure::Failure;
use crate::operate::Backlog;
use crate::store::StoreError;

/// How an outbox is doing for one destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vitals {
    /// How much waits.
    pub backlog: Backlog,
    /// Keys that are parked, counted up to the limit.
    pub parked_keys: i64,
    /// Addresses that nothing can pass to.
    pub held_addresses: i64,
    /// The age since `emit` of the oldest message that is not settled, or is parked and not dead; zero without one.
    pub oldest_pending: Duration,
    /// For how long messages have been kept beyond their retention because this destination has not taken them.
    pub holdback: Duration,
}

/// What the destinations of an outbox share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// How far the database is held back from forgetting old rows; `None` where there is no such thing.
    pub horizon: Option<Horizon>,
    /// Consumers whose inbox is in the same database, by name.
    pub consumers: Vec<ConsumerVitals>,
    /// All destinations of the outbox by name, also those that nobody carries to, and for how long each has kept messages
    /// beyond their retention.
    pub holdbacks: Vec<(String, Duration)>,
}

/// What keeps a database from forgetting old rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Horizon {
    /// Transactions that began after the oldest that is still looked at, by a snapshot, a prepared transaction or a slot.
    pub transactions: u64,
    /// For how long a session or a prepared transaction has held it; a slot does not tell.
    pub held: Duration,
}

/// How a consumer is doing, as far as its inbox knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerVitals {
    /// Its name.
    pub name: String,
    /// Members that are alive.
    pub members: u64,
    /// Since the newest sign of life of any member; `None` if none ever gave one, or all said goodbye.
    pub heartbeat: Option<Duration>,
    /// Since any member last took a message.
    pub last_message: Option<Duration>,
    /// Messages in its retry table, counted up to the limit.
    pub waiting: u64,
    /// Dead letters that nobody looked at, counted up to the limit.
    pub dead: u64,
    /// Its lanes, and whether the breaker of each is open.
    pub breakers: Vec<(String, bool)>,
}

/// What is sampled of an outbox, bound to one destination. It costs the same whether the outbox holds ten messages or ten
/// million: whatever is counted is counted up to 10 000, and everything else is found by index.
#[async_trait]
pub trait Sample: Send + Sync {
    /// How the outbox is doing for the destination.
    async fn vitals(&self) -> Result<Vitals, StoreError>;

    /// What all its destinations share.
    async fn surroundings(&self) -> Result<Surroundings, StoreError>;
}

/// How a broker is doing, as far as it tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerVitals {
    /// The nodes of its cluster; `None` if it does not tell.
    pub nodes: Option<Nodes>,
    /// Its dead-letter queues, by name, and how many messages wait in each.
    pub dead: Vec<(String, u64)>,
}

/// The nodes of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nodes {
    /// Those that run.
    pub running: u64,
    /// Those that are known.
    pub known: u64,
}

/// What is sampled of a broker. Nothing of it is needed to publish.
#[async_trait]
pub trait SampleBroker: Send + Sync {
    /// How the broker is doing; what it does not tell is left out.
    async fn vitals(&self) -> Result<BrokerVitals, Failure>;
}
