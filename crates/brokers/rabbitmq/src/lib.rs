//! Relevo's adapter for RabbitMQ.

mod topology;

pub use topology::{Binding, Exchange, ExchangeKind, Policy, Queue, QueueKind, Target, Topology, Wrong};
pub use topology::{DEFAULT_RUNGS, Declared, DeclaredBinding, DeclaredExchange, DeclaredQueue};
pub use topology::{dead_queue, lane_key, lane_queue, retry_queue};
