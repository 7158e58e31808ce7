//! Configured brokers in a process: the registry of adapters, and one open broker for all destinations that share it.
//!
//! `relevo run` and services use it. Only [`registry`] names concrete adapters.

mod open_brokers;
pub mod registry;

pub use open_brokers::OpenBrokers;
