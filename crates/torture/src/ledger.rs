//! A consumer whose effects can be counted: each message that it handles is a row of a table, and nothing in that table
//! keeps a message from having two.
//!
//! The binary `ledger` is one member of such a consumer as a process of its own; tests also run members in theirs. Payloads
//! are JSON with the number of the change, `{"change": 7}`, and whatever else their writers like.

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

/// Makes the schema with outbox and inbox, and the ledger's own tables; what is there already stays.
pub async fn prepare(store: &Store) -> anyhow::Result<()> {
    store.prepare().await
}
