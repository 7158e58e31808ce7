//! Relevo's adapter for RabbitMQ: publishing with confirms, consuming, topology, and what the broker's settings promise.

mod classify;
mod config;
#[allow(dead_code, reason = "the broker and the consumer come next")]
mod link;
mod topology;

pub use classify::Error;
pub use config::{Config, Identity, Tls};
pub use topology::{Binding, Exchange, ExchangeKind, Policy, Queue, QueueKind, Target, Topology, Wrong};
pub use topology::{DEFAULT_RUNGS, Declared, DeclaredBinding, DeclaredExchange, DeclaredQueue};
pub use topology::{dead_queue, lane_key, lane_queue, retry_queue};
