//! What a process tells of its relays and consumers: metrics in the `OpenMetrics` text format.
//!
//! An [`Exposition`] is everything that `/metrics` of a process shows. Whoever embeds a relay registers it there with
//! [`Exposition::relays`]; every number comes from memory, so that a scrape waits for nothing.

pub mod consumer;
mod exposition;
pub mod metrics;
pub mod relay;
mod slot;
pub mod traces;

pub use exposition::Exposition;
pub use slot::Slot;
