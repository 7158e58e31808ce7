//! A transactional outbox and inbox in PostgreSQL 13 to 18.
//!
//! Writers call [`emit()`] (or the SQL functions of the same name) in their own transaction. A relay reads through
//! [`Store`], and operators use [`Operator`]. Every call of a relay is one statement and one round trip in the simple protocol. It therefore works
//! behind a pooler in transaction mode.

mod adapter;
mod binary_copy;
mod classify;
mod config;
mod connection;
mod emit;
pub mod inbox;
mod literal;
pub mod migrate;
mod operator;
mod pool;
mod queries;
mod store;
mod tick;

pub use adapter::STORE;
pub use config::{Config, OperatorConfig, Schema};
pub use emit::{Emitter, Transaction, emit};
pub use operator::{Operator, OutboxReplaySource};
pub use relevo_core::outbox::admin::StartFrom;
pub use relevo_core::outbox::inspect::Backlog;
pub use relevo_core::{Draft, EmitError, OnDuplicate};
pub use store::Store;
