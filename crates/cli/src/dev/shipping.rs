//! The sample consumer: it ships what orders tell it, each message once, whatever is delivered again.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use relevo_core::AfterDead;
use relevo_core::broker_consumer::BrokerConsumer;
use relevo_inbox::{Config, ConsumerRuntime, HandlerResult, Handlers, Incoming, MessageOrder, Tx};
use relevo_store_sqlite::inbox::{Inbox, Transaction};
use serde::Deserialize;
use sqlx::{Row as _, SqliteConnection};

use super::LEASE;
use super::flow::Flow;
use super::forgetful::Forgetful;
use relevo_core::random::SplitMix64;

/// Messages that may share a transaction.
const BATCH: usize = 200;

/// In the database of the inbox, so that effects and inbox commit together.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS shipment (
    number INTEGER PRIMARY KEY, change INTEGER NOT NULL, effects INTEGER NOT NULL, surprises INTEGER NOT NULL) STRICT";
/// A change that does not follow the last one is a surprise: something was lost, repeated or overtaken.
const EFFECT: &str = "INSERT INTO shipment VALUES (?1, ?2, 1, ?2 <> 1) ON CONFLICT DO UPDATE SET effects = effects + 1, \
    surprises = surprises + (?2 <> change + 1), change = ?2";

/// What the consumer made of one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shipment {
    /// The last change that was applied.
    pub(crate) change: u64,
    /// How many were.
    pub(crate) effects: u64,
    /// How many of them did not follow the one before.
    pub(crate) surprises: u64,
}

/// Makes the consumer's table if it is not there.
pub(crate) async fn open(connection: &mut SqliteConnection) -> Result<()> {
    sqlx::query(TABLE).execute(connection).await?;
    Ok(())
}

/// What the consumer has done so far, by order.
pub(crate) async fn shipments(connection: &mut SqliteConnection) -> Result<BTreeMap<u32, Shipment>> {
    let rows = sqlx::query("SELECT number, change, effects, surprises FROM shipment").fetch_all(connection).await?;
    let count = |row: &sqlx::sqlite::SqliteRow, column: usize| -> Result<u64> {
        u64::try_from(row.try_get::<i64, _>(column)?).context("a count is not negative")
    };
    rows.iter()
        .map(|row| {
            let shipment = Shipment { change: count(row, 1)?, effects: count(row, 2)?, surprises: count(row, 3)? };
            Ok((row.try_get(0)?, shipment))
        })
        .collect()
}

/// The consumer's one process.
pub(crate) fn runtime(
    inbox: Inbox,
    consumer: impl BrokerConsumer + 'static,
    flow: &Arc<Flow>,
) -> ConsumerRuntime<Inbox> {
    let config = Config {
        member_name: format!("dev:{}", std::process::id()),
        // A file has one writer: messages share a transaction instead.
        order: MessageOrder::ByKey { concurrency: 1 },
        batch_max: BATCH,
        // What is no order's is put aside, and its key goes on.
        after_dead: AfterDead::Continue,
        // A demo that was killed is soon carried on by the next.
        heartbeat_interval: LEASE / 3,
        heartbeat_ttl: LEASE,
        ..Config::default()
    };
    let flow = Arc::clone(flow);
    let handlers = Handlers::new().on("*", move |mut tx: Tx<Transaction>, change: Incoming<Change>| {
        let flow = Arc::clone(&flow);
        async move {
            sqlx::query(EFFECT).bind(change.order).bind(change.change).execute(&mut **tx).await?;
            flow.arrived(change.id());
            HandlerResult::Ok(())
        }
    });
    let consumer = Forgetful::new(consumer, SplitMix64::new(11));
    ConsumerRuntime::new(Arc::new(inbox), Arc::new(consumer), handlers, config)
}

/// What an order's message says.
#[derive(Deserialize)]
struct Change {
    order: i64,
    change: i64,
}
