//! Everything that needs a real file, in one program: it links once, and what tests share stands once.

#[path = "sqlite/conformance.rs"]
mod conformance;
#[path = "sqlite/harness.rs"]
mod harness;
#[path = "sqlite/scratch.rs"]
mod scratch;
