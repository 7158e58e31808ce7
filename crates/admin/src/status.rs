//! The response body of `/status`: rates and latencies of the last seconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The relays and consumers of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The name of the service, from the configuration.
    pub service: String,
    /// Its relays.
    pub relays: Vec<RelayRates>,
    /// Its consumers, each with all its members in this process.
    pub consumers: Vec<ConsumerRates>,
}

/// A relay over the last ten seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RelayRates {
    /// The outbox.
    pub outbox: String,
    /// Host, port and name of its database, or its file, without credentials. Empty if it is unknown.
    pub database: String,
    /// The destination.
    pub destination: String,
    /// Whether the broker was reachable at the last attempt. `null` while it is unknown.
    pub broker_up: Option<bool>,
    /// Confirmed messages per second.
    pub published_per_second: f64,
    /// The median time from emit to the broker's confirmation. `null` without a message.
    pub latency_p50_seconds: Option<f64>,
    /// The 99th percentile of the same time.
    pub latency_p99_seconds: Option<f64>,
}

/// A consumer over the last ten seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConsumerRates {
    /// Its name.
    pub consumer: String,
    /// Messages per second with the outcome `done`.
    pub handled_per_second: f64,
    /// The median duration of a handler attempt. `null` without one.
    pub handler_p50_seconds: Option<f64>,
    /// The 99th percentile of the same duration.
    pub handler_p99_seconds: Option<f64>,
    /// Messages that wait at the broker, by lane. Lanes that the broker does not report are missing.
    pub lag: BTreeMap<String, u64>,
}
