//! The sample service: it changes orders, and each transaction that changes one also emits a message.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::Draft;
use relevo_core::random::SplitMix64;
use serde_json::json;
use sqlx::{Connection as _, Row as _, SqliteConnection};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::faulty_broker::{FAULT_HEADER, POISON, TRANSIENT};
use super::state::DemoState;

/// The number of orders. The first is `order-1`.
pub(crate) const ORDERS: u32 = 40;
/// One in this number of transactions rolls back.
pub(crate) const ROLLBACK_ONE_IN: u32 = 20;
/// When the demo rejects a message for the first time.
const FIRST_FAULT: Duration = Duration::from_millis(500);
/// The interval between two such messages.
const FAULT_INTERVAL: Duration = Duration::from_secs(4);
/// One in this number of rejected messages is dead-lettered.
const POISON_ONE_IN: u32 = 3;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS shop_order (number INTEGER PRIMARY KEY, state TEXT NOT NULL, changes \
    INTEGER NOT NULL) STRICT";
/// An earlier statement than the one that emits. This also locks the row in databases with several writers.
const CHANGE: &str = "UPDATE shop_order SET changes = changes + 1, state = CASE state WHEN 'placed' THEN 'paid' WHEN \
    'paid' THEN 'shipped' ELSE 'placed' END WHERE number = ? RETURNING state, changes";

/// An order's key.
pub(crate) fn key(number: u32) -> String {
    format!("order-{number}")
}

/// Creates the table of the service and its orders if they are missing.
pub(crate) async fn open(connection: &mut SqliteConnection) -> Result<()> {
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::raw_sql(TABLE).execute(&mut *tx).await?;
    for number in 1..=ORDERS {
        sqlx::query("INSERT INTO shop_order VALUES (?, 'shipped', 0) ON CONFLICT DO NOTHING")
            .bind(number)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    Ok(())
}

/// The number of changes of each order.
pub(crate) async fn changes(connection: &mut SqliteConnection) -> Result<BTreeMap<u32, u64>> {
    let rows = sqlx::query("SELECT number, changes FROM shop_order").fetch_all(connection).await?;
    rows.iter()
        .map(|row| Ok((row.try_get(0)?, u64::try_from(row.try_get::<i64, _>(1)?).context("a count is not negative")?)))
        .collect()
}

/// The only process of the service.
#[derive(Debug)]
pub(crate) struct OrderService {
    pub(crate) connection: SqliteConnection,
    pub(crate) state: Arc<DemoState>,
    pub(crate) random: SplitMix64,
    /// The interval between two transactions.
    pub(crate) period: Duration,
}

impl OrderService {
    /// Changes orders until `stop` is cancelled. It always finishes the current transaction.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let mut ticks = interval(self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut fault_at = Instant::now() + FIRST_FAULT;
        let mut faults = 0;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            let mut fault = self.state.take_rejection().then_some(POISON);
            if fault.is_none() && self.state.is_automatic() && Instant::now() >= fault_at {
                fault_at = Instant::now() + FAULT_INTERVAL;
                faults += 1;
                fault = Some(if faults % POISON_ONE_IN == 2 { POISON } else { TRANSIENT });
            }
            self.change_an_order(fault).await?;
        }
    }

    /// Changes an order and emits a message about it, in one transaction. Rolls back some of the transactions. `fault` is
    /// how the broker rejects the message.
    async fn change_an_order(&mut self, fault: Option<&str>) -> Result<()> {
        let number = 1 + self.random.below(ORDERS);
        let mut tx = self.connection.begin_with("BEGIN IMMEDIATE").await.context("an order cannot be changed")?;
        let row = sqlx::query(CHANGE).bind(number).fetch_one(&mut *tx).await.context("an order cannot be changed")?;
        let (state, changes): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
        let changes = u64::try_from(changes).context("a count is not negative")?;
        let payload = json!({ "order": number, "state": state, "change": changes }).to_string();
        let mut draft = Draft::json("orders", &key(number), kind(&state), payload);
        if let Some(fault) = fault {
            draft.headers.insert(FAULT_HEADER.to_owned(), fault.to_owned());
        }
        let id = relevo_store_sqlite::emit(&mut tx, draft).await?;
        if fault.is_none() && self.random.one_in(ROLLBACK_ONE_IN) {
            tx.rollback().await?;
            self.state.rolled_back();
            return Ok(());
        }
        self.state.commits(id);
        tx.commit().await.context("an order cannot be changed")?;
        self.state.committed(number, changes);
        Ok(())
    }
}

fn kind(state: &str) -> &'static str {
    match state {
        "placed" => "OrderPlaced",
        "paid" => "OrderPaid",
        _ => "OrderShipped",
    }
}
