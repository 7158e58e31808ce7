//! All tests that need a server, in one binary: it links once, and the tests share their helpers.

#[path = "nats/atomic_batches.rs"]
mod atomic_batches;
#[path = "nats/conformance.rs"]
mod conformance;
#[path = "nats/consume.rs"]
mod consume;
#[path = "nats/consumer_harness.rs"]
mod consumer_harness;
#[path = "nats/examine.rs"]
mod examine;
#[path = "nats/failure_classes.rs"]
mod failure_classes;
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
#[path = "nats/metrics.rs"]
mod metrics;
#[path = "nats/publish.rs"]
mod publish;
#[path = "nats/replay.rs"]
mod replay;
#[path = "nats/rights.rs"]
mod rights;
#[path = "nats/settings.rs"]
mod settings;
#[path = "nats/settle.rs"]
mod settle;
#[path = "nats/tls.rs"]
mod tls;
#[path = "nats/topology.rs"]
mod topology;
#[path = "nats/topology_harness.rs"]
mod topology_harness;
