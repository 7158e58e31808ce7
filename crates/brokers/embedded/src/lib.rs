//! A durable broker in a SQLite file: for a single machine, for tests, and for trying Relevo.
//!
//! A confirmed message is durable: a batch is one transaction with `synchronous = FULL`. Each group reads the log with
//! cursors. Within a group, keys are hashed into lanes, and each lane is leased to one consumer. Order per key
//! therefore holds with any number of consumers and processes.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use relevo_broker_embedded::{Config, EmbeddedBroker, Group, Membership};
//! use relevo_core::BrokerConsumer;
//!
//! let broker = EmbeddedBroker::open(Config::new("relevo.db")).await?;
//! broker.declare(&Group::new("billing", ["orders.**"])).await?;
//! let consumer = broker.consumer("billing", Membership::default()).await?;
//! for delivery in consumer.receive(100).await? {
//!     let received = delivery.raw.decode()?;
//!     println!("{} {}", received.message.key, received.message.id);
//!     consumer.acknowledge(&[delivery.tag]).await;
//! }
//! consumer.close().await?;
//! # Ok(())
//! # }
//! ```

mod address;
mod broker;
mod classify;
mod config;
mod connection;
mod consume;
mod fetch;
mod inspect;
mod lag;
mod lanes;
mod migrations;
mod publish;
mod replay;
mod retention;
mod settle;
mod topology;
mod wake;

pub use broker::BrokerFile;
pub use classify::Error;
pub use config::Config;
pub use consume::{GroupConsumer, Membership};
pub use inspect::{GroupStatus, LAG_COUNT_MAX, StoredMessage};
pub use replay::ReplayLog;
pub use retention::Pruned;
pub use topology::{Group, Start};
