//! Everything that needs a file, in one program: it links once, and what tests share stands once.

#[path = "embedded/conformance.rs"]
mod conformance;
#[path = "embedded/directory.rs"]
mod directory;
#[path = "embedded/faults.rs"]
mod faults;
#[path = "embedded/groups.rs"]
mod groups;
#[path = "embedded/harness.rs"]
mod harness;
#[path = "embedded/killing.rs"]
mod killing;
#[path = "embedded/lag.rs"]
mod lag;
#[path = "embedded/replay.rs"]
mod replay;
#[path = "embedded/retention.rs"]
mod retention;
