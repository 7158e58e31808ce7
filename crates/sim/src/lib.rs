//! Production code on virtual time, against stores and brokers that lose, repeat, delay, reorder and crash.
//!
//! A run is a seed: a scenario says who works and what goes wrong; `run` lets it happen; oracles that know only the
//! [history](history::History) say which promise was broken. The same seed gives the same run, event by event. Mutants are
//! broken on purpose, to know that the oracles see it.
//!
//! There are two worlds. In [`outbox`] writers emit, relays carry, and a far side takes. In [`inbox`] a broker delivers, and
//! the members of consumers handle.

pub mod history;
pub mod inbox;
pub mod line;
pub mod outbox;
pub mod span;
pub mod verdict;
pub mod wire;

pub use verdict::{Verdict, Violation};
