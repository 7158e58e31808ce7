//! The RabbitMQ adapter of Relevo: publishing with confirms, consuming, topology, and checks of the broker's settings.

mod address;
mod administer;
mod backoff;
mod broker;
mod classify;
mod config;
mod connection;
mod consume;
mod deaths;
mod examine;
mod group;
mod keeper;
mod ladder;
mod management;
mod metrics;
mod publish;
mod topology;

pub use administer::Admin;
pub use broker::Publisher;
pub use classify::Error;
pub use config::{Config, Identity, Tls};
pub use consume::{GroupConsumer, Membership, consumer, raw_message};
pub use deaths::Death;
pub use group::Group;
pub use topology::{Binding, BindingTarget, Exchange, ExchangeKind, Policy, Queue, QueueKind, Topology, Wrong};
pub use topology::{BindingDeclaration, DEFAULT_RETRY_DELAYS, Declarations, ExchangeDeclaration, QueueDeclaration};
pub use topology::{dead_letter_queue_name, lane_queue_name, lane_routing_key, retry_queue_name};
