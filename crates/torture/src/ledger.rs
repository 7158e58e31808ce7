//! A consumer with countable effects: each handled message is a row of a table. No constraint of that table prevents
//! a second row for the same message.
//!
//! The binary `ledger` runs one member of such a consumer as a separate process. Tests also run members in their own
//! process. Payloads are JSON with the number of the change, `{"change": 7}`, and any other fields.

mod conduct;
mod early;
mod feed;
mod handler;
mod member;
mod moods;
mod store;
mod watched;

pub use conduct::{Conduct, Deed, Fate, Point, Reached, Steady};
pub use feed::{EXCHANGE, Feed, Kind};
pub use handler::{Book, Page, change_of};
pub use member::{Member, Running};
pub use moods::Moods;
pub use store::{Called, Row, Store};

/// Creates the schema with outbox and inbox, and the ledger's own tables. Existing tables are not changed.
pub async fn prepare(store: &Store) -> anyhow::Result<()> {
    store.prepare().await
}
