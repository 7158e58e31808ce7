//! An in-memory outbox that behaves like the PostgreSQL store: transactions with late commits, ticks and windows,
//! leases with epochs, parked keys and dead letters. It also has an inbox: rows, lanes, the retry table, redrive and
//! replay.
//!
//! The other stores are compared with this model, and the simulator runs on it. All data is ordered, ids come from a
//! seed, and time is tokio's. A paused clock can drive it, and a run can be repeated exactly.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use relevo_store_memory::{Config, Database, Draft};
//!
//! let outbox = Database::new(Config::default());
//! let mut transaction = outbox.begin();
//! transaction.emit(Draft::json("orders", "o-1", "OrderPlaced", "{}")).unwrap();
//! transaction.commit().unwrap();
//! assert_eq!(outbox.committed().len(), 1);
//! # });
//! ```

mod config;
mod database;
mod dead_letters;
mod emit;
mod inbox;
mod leases;
mod log;
mod maintenance;
mod operator;
mod parked;
mod settle;
mod state;
mod store;

#[cfg(test)]
mod tests;

pub use config::{Config, MAIN};
pub use database::Database;
pub use emit::{Savepoint, Transaction};
pub use inbox::Inbox;
pub use inbox::source::OutboxReplaySource;
pub use operator::{Operator, ParkedKeyView, ParkedStateView};
pub use relevo_core::{Draft, EmitError, OnDuplicate};
pub use store::Store;
