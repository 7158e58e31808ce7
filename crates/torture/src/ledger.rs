//! A consumer with countable effects: each handled message is a row of a table. No constraint of that table prevents
//! a second row for the same message.
//!
//! The binary `ledger` runs one member of such a consumer as a separate process. Tests also run members in their own
//! process. Payloads are JSON with the number of the change, `{"change": 7}`, and any other fields.

mod behaviour;
mod broken_ack;
mod failure_rates;
mod feed;
mod handler;
mod member;
mod observed_consumer;
mod store;

pub use behaviour::{Behaviour, FaultAction, NoFault, OneTimeFault, Point, PointReached};
pub use broken_ack::AckMistake;
pub use failure_rates::FailureRates;
pub use feed::{EXCHANGE, Feed, Kind};
pub use handler::{LedgerConnection, LedgerHandler, change_of};
pub use member::{Member, RunningMember};
pub use store::{Row, ServiceCall, Store};

/// Creates the schema with outbox and inbox, and the ledger's own tables. Existing tables are not changed.
pub async fn prepare(store: &Store) -> anyhow::Result<()> {
    store.prepare().await
}
