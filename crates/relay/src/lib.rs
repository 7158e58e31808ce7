//! The outbox engine: reads committed messages, publishes them in parallel but in order per key, and settles confirmed
//! ones.
//!
//! [`Relay::run`] repeats [`Relay::step`] until it is stopped. The relay spawns no task and owns all work in flight. A
//! dropped relay therefore does nothing more, and a simulation can replay it.

mod clerk;
mod config;
mod deliver;
mod health;
mod keys;
mod latency;
mod pages;
mod parked;
mod quiet;
mod relay;
mod routes;
mod runs;
mod spans;
mod stats;
mod watched;

pub use config::Config;
pub use latency::Latencies;
pub use relay::{Relay, RelayError};
pub use routes::RoutesHandle;
pub use stats::Stats;
pub use watched::Watched;
