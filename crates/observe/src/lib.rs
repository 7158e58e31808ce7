//! Metrics of the relays and consumers of a process, in the `OpenMetrics` text format.
//!
//! An [`Exposition`] contains everything that `/metrics` of a process shows. An application that embeds a relay
//! registers it there with [`Exposition::relays`]. All numbers come from memory, so that a scrape never waits.

pub mod consumer;
mod exposition;
pub mod metrics;
pub mod relay;
mod slot;
pub mod traces;

pub use exposition::Exposition;
pub use slot::Slot;
