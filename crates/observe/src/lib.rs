//! Metrics, health and traces of the relays and consumers of a process.
//!
//! A [`ProcessMonitor`] serves everything that the admin port of a process shows: metrics in the `OpenMetrics` text
//! format, probes, and rates. A process with its own HTTP server uses an [`Exposition`] for its metrics. All numbers come
//! from memory, so that a scrape or a probe never waits.

mod consumer_health;
mod consumer_metrics;
mod exposition;
pub mod metrics;
mod process_monitor;
mod rates;
mod relay_health;
mod relay_metrics;
mod relay_monitor;
mod sample;
pub mod traces;

pub use consumer_metrics::ConsumerMetrics;
pub use exposition::Exposition;
pub use process_monitor::{ProcessMonitor, ServeError};
pub use relay_monitor::{Dependency, RelayLabels, RelayMonitor, RelayPhase, RelaySamples, STALL_TIMEOUT_MIN};
pub use sample::LastSample;
