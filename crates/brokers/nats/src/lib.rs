//! NATS `JetStream` as a broker of Relevo.
//!
//! Confirmed means kept: a message counts as published when the stream has acknowledged it. What the server then does
//! with its disk is the server's setting; see `docs/reference/nats.md`.

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
mod subject;
mod tls;
mod topology;

pub use administer::NatsAdmin;
pub use broker::NatsBroker;
pub use classify::Error;
pub use config::{Atomic, Auth, Config, Identity, Tls};
pub use consumer::{Membership, NatsConsumer, consumer, declare};
pub use group::Group;
pub use headers::decode_headers;
pub use topology::{Discard, Retention, Storage, Stream, Topology};
