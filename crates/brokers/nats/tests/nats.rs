//! All tests that need a server, in one binary: it links once, and the tests share their helpers.

#[path = "nats/batches.rs"]
mod batches;
#[path = "nats/classes.rs"]
mod classes;
#[path = "nats/conformance.rs"]
mod conformance;
#[path = "nats/consumer_harness.rs"]
mod consumer_harness;
#[path = "nats/consuming.rs"]
mod consuming;
#[path = "nats/examine.rs"]
mod examine;
#[path = "nats/fault_harness.rs"]
mod fault_harness;
#[path = "nats/faults.rs"]
mod faults;
#[path = "nats/gaps.rs"]
mod gaps;
#[path = "nats/harness.rs"]
mod harness;
#[path = "nats/lanes.rs"]
mod lanes;
#[path = "nats/publish.rs"]
mod publish;
#[path = "nats/replay.rs"]
mod replay;
#[path = "nats/rights.rs"]
mod rights;
#[path = "nats/settings.rs"]
mod settings;
#[path = "nats/settling.rs"]
mod settling;
#[path = "nats/stage.rs"]
mod stage;
#[path = "nats/tls.rs"]
mod tls;
#[path = "nats/topology.rs"]
mod topology;
#[path = "nats/vitals.rs"]
mod vitals;
