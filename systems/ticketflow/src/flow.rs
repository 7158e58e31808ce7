//! How events get from the database to the worker: outbox, relay, broker.
//!
//! The API writes an event in the transaction of its change. The relay publishes it to `tickets/{topic}` at the configured
//! broker, and every queue with a matching binding receives it. The names are requirements.

mod broker;
mod outbox;
mod relay;
mod topology;

pub use broker::Broker;
pub use outbox::{DESTINATION, Outbox, open as open_outbox};
pub use relay::relay;
pub use topology::{EXCHANGE, METRICS, NOTIFICATIONS, dead_queue, topology};
