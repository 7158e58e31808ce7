//! All tests that need a server, in one binary: it links once, and the tests share their helpers.

#[path = "rabbitmq/admin_errors.rs"]
mod admin_errors;
#[path = "rabbitmq/cluster.rs"]
mod cluster;
#[path = "rabbitmq/conformance.rs"]
mod conformance;
#[path = "rabbitmq/consume.rs"]
mod consume;
#[path = "rabbitmq/consume_bounds.rs"]
mod consume_bounds;
#[path = "rabbitmq/consume_faults.rs"]
mod consume_faults;
#[path = "rabbitmq/consumer_harness.rs"]
mod consumer_harness;
#[path = "rabbitmq/examine.rs"]
mod examine;
#[path = "rabbitmq/failure_classes.rs"]
mod failure_classes;
#[path = "rabbitmq/fault_harness.rs"]
mod fault_harness;
#[path = "rabbitmq/faults.rs"]
mod faults;
#[path = "rabbitmq/harness.rs"]
mod harness;
#[path = "rabbitmq/metrics.rs"]
mod metrics;
#[path = "rabbitmq/publish.rs"]
mod publish;
#[path = "rabbitmq/retry_queues.rs"]
mod retry_queues;
#[path = "rabbitmq/tls.rs"]
mod tls;
#[path = "rabbitmq/topology.rs"]
mod topology;
#[path = "rabbitmq/topology_harness.rs"]
mod topology_harness;
