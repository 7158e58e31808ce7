//! `TicketFlow` from outside: its binary, page, READMEs, alerts and what it makes at the broker, as people meet them.

#[path = "outside/alerts.rs"]
mod alerts;
#[path = "outside/page.rs"]
mod page;
#[path = "outside/readme.rs"]
mod readme;
#[path = "outside/roles.rs"]
mod roles;
#[path = "outside/running.rs"]
mod running;
#[path = "outside/sample.rs"]
mod sample;
#[path = "outside/topology.rs"]
mod topology;
