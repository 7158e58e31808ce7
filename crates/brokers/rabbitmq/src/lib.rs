//! The RabbitMQ adapter of Relevo: publishing with confirms, consuming, topology, and checks of the broker's settings.

mod address;
mod classify;
mod config;
mod connection;
mod consume;
mod examine;
mod management;
mod metrics;
mod publish;
mod settle;
mod topology;

pub use classify::Error;
pub use config::{Config, Identity, Tls};
pub use consume::{GroupConsumer, Membership, raw_message};
pub use metrics::Monitor;
pub use publish::Publisher;
pub use topology::{Admin, Binding, BindingTarget, Exchange, ExchangeKind, Policy, Queue, QueueKind, Topology};
pub use topology::{BindingDeclaration, DEFAULT_RETRY_DELAYS, Declarations, ExchangeDeclaration, QueueDeclaration};
pub use topology::{dead_letter_queue_name, lane_queue_name, lane_routing_key, retry_queue_name};
