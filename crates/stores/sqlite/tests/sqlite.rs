//! Everything that needs a real file, in one program: it links once, and what tests share stands once.

#[path = "sqlite/conformance.rs"]
mod conformance;
#[path = "sqlite/emit.rs"]
mod emit;
#[path = "sqlite/faults.rs"]
mod faults;
#[path = "sqlite/harness.rs"]
mod harness;
#[path = "sqlite/inspect.rs"]
mod inspect;
#[path = "sqlite/migrations.rs"]
mod migrations;
#[path = "sqlite/processes.rs"]
mod processes;
#[path = "sqlite/relay.rs"]
mod relay;
#[path = "sqlite/scratch.rs"]
mod scratch;
