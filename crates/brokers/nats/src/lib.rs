//! A Relevo broker for NATS `JetStream`.
//!
//! A confirmed message is stored: it counts as published when the stream has acknowledged it. The server's settings
//! decide when it reaches the disk; see `docs/reference/nats.md`.
//!
//! ```no_run
//! # async fn example(batch: &[relevo_core::Publication]) -> Result<(), Box<dyn std::error::Error>> {
//! use relevo_broker_nats::{Config, Publisher};
//! use relevo_core::Broker;
//! use relevo_core::broker::OutcomeReceiver;
//!
//! let config = Config { stream: Some("orders".to_owned()), ..Config::new("nats://localhost:4222") };
//! let publisher = Publisher::open(config).await?;
//! let outcomes = OutcomeReceiver::default();
//! publisher.publish(batch, &outcomes.sender(1)).await;
//! for (_, index, outcome) in outcomes.take() {
//!     println!("{} {}", batch[index].message.id, if outcome.is_ok() { "is stored" } else { "is not confirmed" });
//! }
//! # Ok(())
//! # }
//! ```

mod adapter;
mod address;
mod classify;
mod config;
mod connection;
mod consume;
mod examine;
mod headers;
mod metrics;
mod publish;
mod replay;
mod server_state;
mod settle;
mod topology;

pub use adapter::Adapter;
pub use classify::Error;
pub use config::{AtomicBatches, Auth, Config, Identity, Tls};
pub use consume::{GroupConsumer, consumer};
pub use headers::decode_headers;
pub use metrics::Monitor;
pub use publish::Publisher;
pub use relevo_core::ConsumerOptions;
pub use replay::ReplayLog;
pub use topology::apply::{Admin, declare_group};
pub use topology::{Discard, Group, Retention, Storage, Stream, Topology};
