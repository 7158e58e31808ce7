//! The daemon as a process: the real binary, a real PostgreSQL, the embedded broker, RabbitMQ and NATS.

#[path = "run/admin.rs"]
mod admin;
#[path = "run/broker_messages.rs"]
mod broker_messages;
#[path = "run/check.rs"]
mod check;
#[path = "run/command.rs"]
mod command;
#[path = "run/consumers.rs"]
mod consumers;
#[path = "run/daemon.rs"]
mod daemon;
#[path = "run/defaults.rs"]
mod defaults;
#[path = "run/failure.rs"]
mod failure;
#[path = "run/failure_broker_full.rs"]
mod failure_broker_full;
#[path = "run/failure_restored_database.rs"]
mod failure_restored_database;
#[path = "run/failure_retention.rs"]
mod failure_retention;
#[path = "run/flow.rs"]
mod flow;
#[path = "run/metrics.rs"]
mod metrics;
#[path = "run/nats.rs"]
mod nats;
#[path = "run/outages.rs"]
mod outages;
#[path = "run/rabbitmq.rs"]
mod rabbitmq;
#[path = "run/reload.rs"]
mod reload;
#[path = "run/status.rs"]
mod status;
#[path = "run/systemd.rs"]
mod systemd;
#[path = "run/test_outbox.rs"]
mod test_outbox;
#[path = "run/topology.rs"]
mod topology;
#[path = "run/traces.rs"]
mod traces;
#[path = "run/two_brokers.rs"]
mod two_brokers;
