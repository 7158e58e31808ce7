//! How events get from the database to the worker: outbox, relay, broker.
//!
//! The API writes an event in the transaction of what it tells. The relay carries it to `tickets/{topic}` at the broker, whatever
//! that is, and every queue that wants it has it. The names are the owners'.

mod broker;
mod outbox;
mod relay;
mod topology;

pub use broker::Broker;
pub use outbox::{DESTINATION, Outbox, open as open_outbox};
pub use relay::relay;
pub use topology::{EXCHANGE, METRICS, NOTIFICATIONS, dead_queue, topology};
