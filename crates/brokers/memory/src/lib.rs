//! An in-memory broker that confirms at once, records received messages, and fails on request.
//!
//! ```
//! use relevo_broker_memory::{Config, FailureRule, MemoryBroker, RuleTarget};
//! use relevo_core::Class;
//!
//! let broker = MemoryBroker::new(Config::default());
//! broker.add_failure(FailureRule::new(RuleTarget::Key("o-1".into()), Class::Transient).times(3));
//! assert_eq!(broker.received(), 0);
//! ```

mod broker;
mod config;
mod failure_rule;

pub use broker::{MemoryBroker, ReceivedMessage};
pub use config::Config;
pub use failure_rule::{FailureRule, RuleTarget};

#[cfg(test)]
mod tests;
