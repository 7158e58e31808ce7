//! Runs production code on virtual time, against stores and brokers that lose, repeat, delay, reorder and crash.
//!
//! A seed defines a run. The scenario defines the processes and the faults, `run` executes it, and oracles that know
//! only the [history](history::History) report broken promises. The same seed gives the same run, event by event.
//! Mutants are broken on purpose, to prove that the oracles detect the fault.
//!
//! There are two worlds. In [`outbox`], writers emit, relays publish, and a broker receives. In [`inbox`], a broker
//! delivers, and the members of consumers handle messages.

pub mod history;
pub mod inbox;
pub mod line;
pub mod outbox;
pub mod span;
pub mod verdict;
pub mod wire;

pub use verdict::{Verdict, Violation};
