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

mod broker;
mod classify;
mod config;
mod consumer;
mod fetch;
mod group;
mod inspect;
mod lag;
mod lanes;
mod link;
mod pattern;
mod publish;
mod retain;
mod schema;
mod settle;
mod source;
mod wake;

pub use broker::EmbeddedBroker;
pub use classify::Error;
pub use config::Config;
pub use consumer::{EmbeddedConsumer, Membership};
pub use group::{Group, Start};
pub use inspect::{GroupStatus, Kept, LAG_EXACT_MAX};
pub use retain::Swept;
pub use source::EmbeddedLog;
