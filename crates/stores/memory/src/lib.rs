//! An in-memory outbox that behaves like the PostgreSQL store: transactions with late commits, ticks and windows,
//! leases with epochs, parked keys and dead letters. It also has an inbox: rows, lanes, the retry table, redrive and
//! replay.
//!
//! The other stores are compared with this model, and the simulator runs on it. All data is ordered, ids come from a
//! seed, and time is tokio's. A paused clock can drive it, and a run can be repeated exactly.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! use relevo_store_memory::{Draft, Outbox, Settings};
//!
//! let outbox = Outbox::new(Settings::default());
//! let mut transaction = outbox.begin();
//! transaction.emit(Draft::new("orders", "o-1", "OrderPlaced", "{}")).unwrap();
//! transaction.commit().unwrap();
//! assert_eq!(outbox.committed().len(), 1);
//! # });
//! ```

mod config;
mod dead;
mod inbox;
mod inspect;
mod leases;
mod log;
mod outbox;
mod parking;
mod regroup;
mod runs;
mod state;
mod store;
mod transaction;
mod upkeep;

#[cfg(test)]
mod tests;

pub use config::{MAIN, Settings, Start};
pub use inbox::Inbox;
pub use inbox::operate::Operator;
pub use inbox::source::OutboxLog;
pub use inspect::{KeyState, Parked};
pub use outbox::Outbox;
pub use store::Destination;
pub use transaction::{Draft, OnRepeat, Savepoint, Transaction, TransactionError};
