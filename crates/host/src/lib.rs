//! Runs relays in a process, with everything around them: waiting for servers, topology checks, sampling, health,
//! metrics, traces, logging, signals and shutdown.
//!
//! `relevo run` and services use it: read a [`HostConfig`], [start](Host::start) a [`Host`] and [run](Host::run) it. Only
//! [`registry`] names concrete adapters.

mod broker_check;
mod config;
mod error_report;
mod host;
mod instance_name;
pub mod logging;
mod open_brokers;
pub mod registry;
mod reload_metrics;
mod run_relay;
mod sampler;
mod signals;
mod systemd;
mod trace_export;
mod waiting;

pub use config::{AdminConfig, DestinationConfig, HostConfig, OutboxConfig};
pub use error_report::ErrorReport;
pub use host::Host;
pub use instance_name::{instance_name, machine_name};
pub use open_brokers::OpenBrokers;
pub use run_relay::ConfigurationError;
pub use signals::{EXIT_INTERRUPTED, ProcessSignal, Signals};
