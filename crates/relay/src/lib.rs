//! The outbox engine: reads committed messages, publishes them in parallel but in order per key, and settles confirmed
//! ones.
//!
//! [`Relay::run`] repeats [`Relay::step`] until it is stopped. The relay spawns no task and owns all work in flight. A
//! dropped relay therefore does nothing more, and a simulation can replay it.
//!
//! By file, in the order of a message: `leases` (which shards) → `read` (the next page) → `buffer` (one queue per key)
//! → `publish` (batches and outcomes; `publish/health`: outages of the broker) → `settle` (progress) → `parked` (failed
//! keys). `store_calls` makes one store call at a time and repeats it when the store is busy.

mod buffer;
mod config;
mod leases;
mod log_throttle;
mod parked;
mod publish;
mod read;
mod relay;
mod route_section;
mod routes;
mod settle;
mod status;
mod store_calls;

pub use config::{Advanced, Config};
pub use relay::{Relay, RelayError};
pub use route_section::{RetrySection, RouteSection};
pub use routes::RoutesHandle;
pub use status::RelayStatus;
