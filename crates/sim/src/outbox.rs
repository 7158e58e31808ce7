//! Simulates the production relay between writers and a broker.

pub mod broker;
pub mod event;
pub mod mutants;
pub mod operators;
pub mod oracles;
pub mod relay_host;
pub mod scenario;
pub mod server;
pub mod store;
pub mod world;
pub mod writers;

pub use event::Event;
pub use mutants::Mutant;
pub use scenario::Scenario;
pub use world::run;
