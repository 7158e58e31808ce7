//! Runs production code on virtual time, against stores and brokers that lose, repeat, delay, reorder and crash.
//!
//! A seed defines a run. The scenario defines the processes and the faults, `run` executes it, and oracles that know
//! only the [history](history::History) report broken promises. The same seed gives the same run, event by event.
//! Mutants are broken on purpose, to prove that the oracles detect the fault.
//!
//! There are two worlds. In [`outbox`], writers emit, relays publish, and a broker receives. In [`inbox`], a broker
//! delivers, and the members of consumers handle messages.
//!
//! A run that fails prints its world, its seed, the broken promises and the last events of the key. To reproduce it, run
//! `cargo xtask sim --seed N`. `cargo run --release -p relevo-sim -- --seed N --world inbox --events` prints every event.

pub mod history;
pub mod inbox;
pub mod link;
pub mod network;
pub mod outbox;
pub mod process_faults;
pub mod run_result;
pub mod time_range;

pub use run_result::{RunResult, Violation};
