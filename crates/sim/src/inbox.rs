//! Simulates the production consumer runtime between a broker and an inbox.

pub mod broker;
pub mod connection;
pub mod directory;
pub mod event;
pub mod gate;
pub mod handlers;
pub mod kind;
pub mod members;
pub mod mutants;
pub mod office;
pub mod oracles;
pub mod people;
pub mod publisher;
pub mod replays;
pub mod scenario;
pub mod server;
pub mod store;
pub mod world;

mod config;

pub use event::Event;
pub use mutants::Mutant;
pub use scenario::Scenario;
pub use world::run;
