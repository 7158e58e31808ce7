//! The RabbitMQ adapter of Relevo: publishing with confirms, consuming, topology, and checks of the broker's settings.

mod address;
mod administer;
mod backoff;
mod broker;
mod classify;
mod config;
mod consumer;
mod deaths;
mod examine;
mod group;
mod keeper;
mod ladder;
mod link;
mod management;
mod publish;
mod topology;
mod vitals;

pub use administer::RabbitAdmin;
pub use broker::RabbitBroker;
pub use classify::Error;
pub use config::{Config, Identity, Tls};
pub use consumer::{Membership, RabbitConsumer, consumer, raw};
pub use deaths::Death;
pub use group::Group;
pub use topology::{Binding, Exchange, ExchangeKind, Policy, Queue, QueueKind, Target, Topology, Wrong};
pub use topology::{DEFAULT_RUNGS, Declared, DeclaredBinding, DeclaredExchange, DeclaredQueue};
pub use topology::{dead_queue, lane_key, lane_queue, retry_queue};
