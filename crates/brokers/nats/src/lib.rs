//! A Relevo broker for NATS `JetStream`.
//!
//! A confirmed message is stored: it counts as published when the stream has acknowledged it. The server's settings
//! decide when it reaches the disk; see `docs/reference/nats.md`.
//!
//! ```no_run
//! # async fn example(batch: &[relevo_core::Publication]) -> Result<(), Box<dyn std::error::Error>> {
//! use relevo_broker_nats::{Config, NatsBroker};
//! use relevo_core::Broker;
//! use relevo_core::broker::Reports;
//!
//! let config = Config { stream: Some("orders".to_owned()), ..Config::new("nats://localhost:4222") };
//! let broker = NatsBroker::open(config).await?;
//! let reports = Reports::default();
//! broker.publish(batch, &reports.confirms(1)).await;
//! for (_, index, outcome) in reports.take() {
//!     println!("{} {}", batch[index].message.id, if outcome.is_ok() { "is stored" } else { "is not confirmed" });
//! }
//! # Ok(())
//! # }
//! ```

mod administer;
mod broker;
mod classify;
mod config;
mod consumer;
mod examine;
mod group;
mod headers;
mod lanes;
mod link;
mod publish;
mod snapshot;
mod source;
mod subject;
mod tls;
mod topology;
mod vitals;

pub use administer::NatsAdmin;
pub use broker::NatsBroker;
pub use classify::Error;
pub use config::{Atomic, Auth, Config, Identity, Tls};
pub use consumer::{Membership, NatsConsumer, consumer, declare};
pub use group::Group;
pub use headers::decode_headers;
pub use source::NatsLog;
pub use topology::{Discard, Retention, Storage, Stream, Topology};
pub use vitals::NatsSampler;
