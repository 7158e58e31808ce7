//! The daemon as a process: the real binary, a real PostgreSQL, the embedded broker, RabbitMQ and NATS.

#[path = "run/admin.rs"]
mod admin;
#[path = "run/both.rs"]
mod both;
#[path = "run/command.rs"]
mod command;
#[path = "run/consumers.rs"]
mod consumers;
#[path = "run/daemon.rs"]
mod daemon;
#[path = "run/defaults.rs"]
mod defaults;
#[path = "run/elsewhere.rs"]
mod elsewhere;
#[path = "run/failure.rs"]
mod failure;
#[path = "run/far.rs"]
mod far;
#[path = "run/flow.rs"]
mod flow;
#[path = "run/full.rs"]
mod full;
#[path = "run/kept.rs"]
mod kept;
#[path = "run/metrics.rs"]
mod metrics;
#[path = "run/nats.rs"]
mod nats;
#[path = "run/rabbitmq.rs"]
mod rabbitmq;
#[path = "run/reload.rs"]
mod reload;
#[path = "run/status.rs"]
mod status;
#[path = "run/systemd.rs"]
mod systemd;
#[path = "run/topology.rs"]
mod topology;
#[path = "run/traces.rs"]
mod traces;
#[path = "run/trouble.rs"]
mod trouble;
#[path = "run/world.rs"]
mod world;
