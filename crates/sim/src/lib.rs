//! The production relay on virtual time, against a store and a broker that lose, repeat, delay, reorder and crash.
//!
//! A run is a seed: [`Scenario::of`] says who writes, who relays and what goes wrong; [`run`] lets it happen; oracles that
//! know only the [history](history::History) say which promise was broken. The same seed gives the same run, event by
//! event. [`Mutant`]s are relays that are broken on purpose, to know that the oracles see it.

pub mod broker;
pub mod history;
pub mod mutants;
pub mod operators;
pub mod oracles;
pub mod random;
pub mod relays;
pub mod scenario;
pub mod server;
pub mod store;
pub mod wire;
pub mod world;
pub mod writers;

pub use mutants::Mutant;
pub use oracles::Violation;
pub use scenario::Scenario;
pub use world::{Verdict, run};
