//! The RabbitMQ adapter of Relevo: publishing with confirms, consuming, topology, and checks of the broker's settings.

mod adapter;
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

pub use adapter::Adapter;
pub use classify::Error;
pub use config::{Config, Identity, Tls};
pub use consume::{GroupConsumer, raw_message};
pub use metrics::Monitor;
pub use publish::Publisher;
pub use relevo_core::ConsumerOptions;
pub use topology::{Admin, Binding, BindingTarget, Exchange, ExchangeKind, Policy, Queue, QueueKind, Topology};
pub use topology::{BindingDeclaration, DEFAULT_RETRY_DELAYS, Declarations, ExchangeDeclaration, QueueDeclaration};
pub use topology::{dead_letter_queue_name, lane_queue_name, lane_routing_key, retry_queue_name};
