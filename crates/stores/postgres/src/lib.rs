//! A transactional outbox and inbox in PostgreSQL 13 to 18.
//!
//! Writers call [`emit`] (or the SQL functions of the same name) in their own transaction. A relay reads through
//! [`Store`]. Every call of a relay is one statement and one round trip in the simple protocol. It therefore works
//! behind a pooler in transaction mode.

mod classify;
mod config;
mod copy;
mod emit;
pub mod inbox;
mod inspect;
mod link;
pub mod migrate;
mod operate;
mod queries;
mod snapshot;
mod store;

pub use config::{Config, Schema};
pub use emit::{EmitError, Outbox, Transaction, emit};
pub use inspect::OutboxLog;
pub use relevo_core::operate::{Backlog, Start};
pub use relevo_core::{Draft, OnRepeat};
pub use store::Store;
