//! The sample consumer: it applies each change of an order once, even if the broker delivers a message again.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use relevo_core::AfterDead;
use relevo_core::broker_consumer::BrokerConsumer;
use relevo_core::random::SplitMix64;
use relevo_inbox::{Config, ConsumerRuntime, HandlerResult, Handlers, Incoming, MessageOrder, Tx};
use relevo_store_sqlite::inbox::{Inbox, Transaction};
use serde::Deserialize;
use sqlx::{Row as _, SqliteConnection};

use super::lossy_consumer::LossyConsumer;
use super::state::DemoState;
use super::{LEASE, OUTAGE_BACKOFF_MAX};

/// Messages that may share a transaction.
const BATCH: usize = 200;

/// In the database of the inbox, so that effects and inbox commit together.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS shipment (
    number INTEGER PRIMARY KEY, change INTEGER NOT NULL, effects INTEGER NOT NULL, out_of_order INTEGER NOT NULL) STRICT";
/// Counts a change as out of order if it does not follow the one before.
const EFFECT: &str = "INSERT INTO shipment VALUES (?1, ?2, 1, ?2 <> 1) ON CONFLICT DO UPDATE SET effects = effects + 1, \
    out_of_order = out_of_order + (?2 <> change + 1), change = max(change, ?2)";

/// The effects on one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shipment {
    /// The highest change that was applied.
    pub(crate) change: u64,
    /// The number of applied changes.
    pub(crate) effects: u64,
    /// The number of applied changes that did not follow the one before.
    pub(crate) out_of_order: u64,
}

/// Creates the table of the consumer if it is missing.
pub(crate) async fn open(connection: &mut SqliteConnection) -> Result<()> {
    sqlx::query(TABLE).execute(connection).await?;
    Ok(())
}

/// The effects so far, by order.
pub(crate) async fn shipments(connection: &mut SqliteConnection) -> Result<BTreeMap<u32, Shipment>> {
    let rows = sqlx::query("SELECT number, change, effects, out_of_order FROM shipment").fetch_all(connection).await?;
    let count = |row: &sqlx::sqlite::SqliteRow, column: usize| -> Result<u64> {
        u64::try_from(row.try_get::<i64, _>(column)?).context("a count is not negative")
    };
    rows.iter()
        .map(|row| {
            let shipment = Shipment { change: count(row, 1)?, effects: count(row, 2)?, out_of_order: count(row, 3)? };
            Ok((row.try_get(0)?, shipment))
        })
        .collect()
}

/// The only process of the consumer.
pub(crate) fn runtime(
    inbox: Inbox,
    consumer: impl BrokerConsumer + 'static,
    state: &Arc<DemoState>,
) -> ConsumerRuntime<Inbox> {
    let config = Config {
        member_name: format!("dev:{}", std::process::id()),
        // Only one connection can write to the file, so messages share transactions instead of running in parallel.
        order: MessageOrder::ByKey { concurrency: 1 },
        batch_max: BATCH,
        // A message that is not an order is dead-lettered, and its key continues.
        after_dead: AfterDead::Continue,
        // A restarted demo soon takes over from one that was killed.
        heartbeat_interval: LEASE / 3,
        heartbeat_ttl: LEASE,
        outage_backoff_max: OUTAGE_BACKOFF_MAX,
        ..Config::default()
    };
    let handlers = Handlers::new().on("*", |mut tx: Tx<Transaction>, change: Incoming<Change>| async move {
        sqlx::query(EFFECT).bind(change.order).bind(change.change).execute(&mut **tx).await?;
        HandlerResult::Ok(())
    });
    let consumer = LossyConsumer::new(consumer, Arc::clone(state), SplitMix64::new(11));
    ConsumerRuntime::new(Arc::new(inbox), Arc::new(consumer), handlers, config)
}

/// The payload of a message about an order.
#[derive(Deserialize)]
struct Change {
    order: i64,
    change: i64,
}
