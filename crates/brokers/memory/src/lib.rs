//! An in-memory broker that confirms at once, records received messages, and fails on request.
//!
//! ```
//! use relevo_broker_memory::{Match, MemoryBroker, Rule, Settings};
//! use relevo_core::Class;
//!
//! let broker = MemoryBroker::new(Settings::default());
//! broker.fail(Rule::new(Match::Key("o-1".into()), Class::Transient).times(3));
//! assert_eq!(broker.received(), 0);
//! ```

mod broker;
mod config;
mod rule;

pub use broker::{MemoryBroker, Receipt};
pub use config::Settings;
pub use rule::{Match, Rule};

#[cfg(test)]
mod tests;
