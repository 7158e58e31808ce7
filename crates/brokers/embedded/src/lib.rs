//! A durable broker in a SQLite file: for a single machine, for tests, and for trying Relevo.
//!
//! A confirmed message is durable: a batch is one transaction with `synchronous = FULL`. Each group reads the log with
//! cursors. Within a group, keys are hashed into lanes, and each lane is leased to one consumer. Order per key
//! therefore holds with any number of consumers and processes.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use relevo_broker_embedded::{BrokerFile, Config, Group, ConsumerOptions};
//! use relevo_core::BrokerConsumer;
//!
//! let broker = BrokerFile::open(Config::new("relevo.db")).await?;
//! broker.declare_group(&Group::new("billing", ["orders.**"])).await?;
//! let consumer = broker.consumer("billing", ConsumerOptions::default()).await?;
//! for delivery in consumer.receive(100).await? {
//!     let received = delivery.raw.decode()?;
//!     println!("{} {}", received.message.key, received.message.id);
//!     consumer.acknowledge(&[delivery.tag]).await;
//! }
//! consumer.close().await?;
//! # Ok(())
//! # }
//! ```

mod adapter;
mod address;
mod classify;
mod config;
mod connection;
mod consume;
mod migrations;
mod publish;
mod replay;
mod retention;
mod settle;
mod topology;

pub use adapter::Adapter;
pub use classify::Error;
pub use config::Config;
pub use consume::GroupConsumer;
pub use consume::lag::LAG_COUNT_MAX;
pub use publish::BrokerFile;
pub use relevo_core::ConsumerOptions;
pub use replay::ReplayLog;
pub use retention::Pruned;
pub use topology::{Group, GroupStatus};
