//! The sample consumer: it ships what orders tell it, each message once, whatever is delivered again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::consume::{Answer, Consumer, Delivery, Tag};
use relevo_core::{Message, MessageId};
use serde_json::Value;
use sqlx::{Connection as _, Row as _, Sqlite, SqliteConnection, Transaction};
use tokio_util::sync::CancellationToken;

use super::flow::Flow;
use super::random::Random;

/// Deliveries handled in one transaction.
const BATCH: usize = 200;
/// One message in so many is answered as by a worker that died after its commit: it comes again.
const FORGETS: u32 = 100;

/// The inbox and the effects are in one database, so that they commit together.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS inbox (id BLOB PRIMARY KEY, handled_at INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS inbox_age ON inbox (handled_at);
    CREATE TABLE IF NOT EXISTS shipment (
        number INTEGER PRIMARY KEY, change INTEGER NOT NULL, effects INTEGER NOT NULL, surprises INTEGER NOT NULL
    ) STRICT;";
/// A change that does not follow the last one is a surprise: something was lost, repeated or overtaken.
const EFFECT: &str = "INSERT INTO shipment VALUES (?1, ?2, 1, ?2 <> 1) ON CONFLICT DO UPDATE SET effects = effects + 1, \
    surprises = surprises + (?2 <> change + 1), change = ?2";
/// The inbox remembers longer than a message can be on its way here.
const PRUNE: &str =
    "DELETE FROM inbox WHERE id IN (SELECT id FROM inbox WHERE handled_at < unixepoch() - 86400 LIMIT 2000)";

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

/// Makes the consumer's tables if they are not there.
pub(crate) async fn open(connection: &mut SqliteConnection) -> Result<()> {
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::raw_sql(TABLES).execute(&mut *tx).await?;
    tx.commit().await?;
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
pub(crate) struct Shipping<C> {
    pub(crate) consumer: Arc<C>,
    pub(crate) connection: SqliteConnection,
    pub(crate) flow: Arc<Flow>,
    pub(crate) random: Random,
}

impl<C: Consumer> Shipping<C> {
    /// Handles deliveries until it is told to stop.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        loop {
            let deliveries = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                deliveries = self.consumer.receive(BATCH) => deliveries.context("nothing can be received")?,
            };
            let answers = self.handle(&deliveries).await.context("effects cannot be written")?;
            // Answers that come too late are no harm: the inbox recognises what comes again.
            self.consumer.settle(&answers).await.context("deliveries cannot be acknowledged")?;
        }
        self.consumer.close().await.context("the consumer cannot be closed")?;
        self.connection.close().await?;
        Ok(())
    }

    /// One transaction: what the inbox has not seen has its effect, and both commit together.
    async fn handle(&mut self, deliveries: &[Delivery]) -> Result<Vec<(Tag, Answer)>> {
        let mut answers = Vec::with_capacity(deliveries.len());
        let mut applied: Vec<MessageId> = Vec::with_capacity(deliveries.len());
        let mut tx = self.connection.begin_with("BEGIN IMMEDIATE").await?;
        for delivery in deliveries {
            let read = delivery.raw.decode().map_err(|error| error.to_string());
            let answer = match read.and_then(|received| Ok((Change::of(&received.message)?, received.message))) {
                // Somebody else's message, such as one from the command line: it goes to the group's dead letters.
                Err(reason) => {
                    self.flow.event(format!("shipping rejects a message that is no order's: {reason}"));
                    Answer::Reject { reason }
                }
                Ok((change, message)) => {
                    if apply(&mut tx, &message, change).await? {
                        applied.push(message.id);
                    } else {
                        self.flow.repeated();
                    }
                    if delivery.count == 1 && self.random.one_in(FORGETS) {
                        Answer::RetryLater { after: Duration::ZERO }
                    } else {
                        Answer::Acknowledge
                    }
                }
            };
            answers.push((delivery.tag, answer));
        }
        sqlx::query(PRUNE).execute(&mut *tx).await?;
        tx.commit().await?;
        for id in applied {
            self.flow.applied(id);
        }
        Ok(answers)
    }
}

/// What an order's message says.
#[derive(Clone, Copy, Debug)]
struct Change {
    order: i64,
    number: i64,
}

impl Change {
    fn of(message: &Message) -> Result<Self, String> {
        let payload: Value = serde_json::from_slice(&message.payload).map_err(|error| error.to_string())?;
        let field = |name: &str| payload[name].as_i64().ok_or_else(|| format!("`{name}` is missing"));
        Ok(Self { order: field("order")?, number: field("change")? })
    }
}

/// Applies a message unless the inbox knows it; says whether it did.
async fn apply(tx: &mut Transaction<'_, Sqlite>, message: &Message, change: Change) -> Result<bool> {
    let id = message.id.as_uuid().as_bytes().as_slice();
    let inbox = sqlx::query("INSERT INTO inbox VALUES (?, unixepoch()) ON CONFLICT DO NOTHING").bind(id);
    if inbox.execute(&mut **tx).await?.rows_affected() == 0 {
        return Ok(false);
    }
    sqlx::query(EFFECT).bind(change.order).bind(change.number).execute(&mut **tx).await?;
    Ok(true)
}
