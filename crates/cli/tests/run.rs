//! The daemon as a process: the real binary, a real PostgreSQL, the embedded broker.

#[path = "run/admin.rs"]
mod admin;
#[path = "run/daemon.rs"]
mod daemon;
#[path = "run/flow.rs"]
mod flow;
#[path = "run/reload.rs"]
mod reload;
#[path = "run/systemd.rs"]
mod systemd;
#[path = "run/trouble.rs"]
mod trouble;
#[path = "run/world.rs"]
mod world;
