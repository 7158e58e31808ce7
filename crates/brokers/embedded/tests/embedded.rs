//! All tests that need a file, in one binary: it links once, and the tests share their helpers.

#[path = "embedded/conformance.rs"]
mod conformance;
#[path = "embedded/crashes.rs"]
mod crashes;
#[path = "embedded/directory.rs"]
mod directory;
#[path = "embedded/faults.rs"]
mod faults;
#[path = "embedded/groups.rs"]
mod groups;
#[path = "embedded/harness.rs"]
mod harness;
#[path = "embedded/lag.rs"]
mod lag;
#[path = "embedded/replay.rs"]
mod replay;
#[path = "embedded/retention.rs"]
mod retention;
