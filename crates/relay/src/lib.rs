//! The outbox engine: reads committed messages, publishes them in parallel but in order per key, and settles confirmed
//! ones.
//!
//! [`Relay::run`] repeats [`Relay::step`] until it is stopped. The relay spawns no task and owns all work in flight. A
//! dropped relay therefore does nothing more, and a simulation can replay it.

mod buffer;
mod config;
mod log_throttle;
mod parked;
mod publish;
mod relay;
mod routes;
mod settle;
mod status;
mod store_calls;

pub use config::Config;
pub use relay::{Relay, RelayError};
pub use routes::RoutesHandle;
pub use status::RelayStatus;
