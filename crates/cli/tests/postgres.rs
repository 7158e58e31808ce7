//! The commands on a real PostgreSQL, in one program: it links once.

#[path = "postgres/administration.rs"]
mod administration;
#[path = "consumers/cases.rs"]
mod cases;
#[path = "postgres/consumers.rs"]
mod consumers;
#[path = "postgres/dead.rs"]
mod dead;
#[path = "postgres/emit.rs"]
mod emit;
#[path = "consumers/fixture.rs"]
mod fixture;
#[path = "postgres/health.rs"]
mod health;
#[path = "postgres/messages.rs"]
mod messages;
#[path = "postgres/replay.rs"]
mod replay;
#[path = "replay/cases.rs"]
mod replays;
#[path = "postgres/setup.rs"]
mod setup;
#[path = "postgres/support.rs"]
mod support;
#[path = "postgres/tail.rs"]
mod tail;
