//! All tests that need a server, in one binary: it links once, and the tests share their helpers.

#[path = "rabbitmq/classes.rs"]
mod classes;
#[path = "rabbitmq/cluster.rs"]
mod cluster;
#[path = "rabbitmq/conformance.rs"]
mod conformance;
#[path = "rabbitmq/consumer_harness.rs"]
mod consumer_harness;
#[path = "rabbitmq/consuming.rs"]
mod consuming;
#[path = "rabbitmq/consuming_bounds.rs"]
mod consuming_bounds;
#[path = "rabbitmq/consuming_faults.rs"]
mod consuming_faults;
#[path = "rabbitmq/examine.rs"]
mod examine;
#[path = "rabbitmq/fault_harness.rs"]
mod fault_harness;
#[path = "rabbitmq/faults.rs"]
mod faults;
#[path = "rabbitmq/harness.rs"]
mod harness;
#[path = "rabbitmq/ladder.rs"]
mod ladder;
#[path = "rabbitmq/looking.rs"]
mod looking;
#[path = "rabbitmq/publish.rs"]
mod publish;
#[path = "rabbitmq/stage.rs"]
mod stage;
#[path = "rabbitmq/tls.rs"]
mod tls;
#[path = "rabbitmq/topology.rs"]
mod topology;
#[path = "rabbitmq/vitals.rs"]
mod vitals;
