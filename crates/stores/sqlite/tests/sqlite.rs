//! All tests that need a real file, in one program: it links once, and tests share their support code.

#[path = "sqlite/conformance.rs"]
mod conformance;
#[path = "sqlite/emit.rs"]
mod emit;
#[path = "sqlite/faults.rs"]
mod faults;
#[path = "sqlite/harness.rs"]
mod harness;
#[path = "sqlite/inbox_conformance.rs"]
mod inbox_conformance;
#[path = "sqlite/inbox_faults.rs"]
mod inbox_faults;
#[path = "sqlite/inbox_harness.rs"]
mod inbox_harness;
#[path = "sqlite/inbox_processes.rs"]
mod inbox_processes;
#[path = "sqlite/inbox_support.rs"]
mod inbox_support;
#[path = "sqlite/inspect.rs"]
mod inspect;
#[path = "sqlite/migrations.rs"]
mod migrations;
#[path = "sqlite/processes.rs"]
mod processes;
#[path = "sqlite/relay.rs"]
mod relay;
#[path = "sqlite/replay.rs"]
mod replay;
#[path = "sqlite/scratch.rs"]
mod scratch;
#[path = "sqlite/tail.rs"]
mod tail;
