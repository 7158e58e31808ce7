//! The engine: reads what was committed, publishes keys in parallel and each key in order, settles what was confirmed.
//!
//! [`Relay::run`] repeats [`Relay::step`] until it is told to stop. Everything in flight belongs to the relay itself
//! and no task is spawned, so that a relay that is dropped does nothing more, and a simulation can replay it.

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
