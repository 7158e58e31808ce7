//! Simulates the production consumer runtime between a broker and an inbox.

pub mod behaviour;
pub mod broker;
pub mod connection;
pub mod event;
pub mod handlers;
pub mod members;
pub mod message_names;
pub mod mutants;
pub mod operator_port;
pub mod operators;
pub mod oracles;
pub mod pause;
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
