//! The loop of a typical outbox: claim, publish, update.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use relevo_broker_memory::MemoryBroker;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::message::Headers;
use relevo_core::{Broker as _, Message, MessageId, Publication};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection as _, Row as _};

use crate::fill::{KEYS, PAYLOAD_BYTES, run};

/// Creates the table of a typical outbox, with `count` messages.
pub(crate) async fn fill(connection: &mut PgConnection, count: u32) -> anyhow::Result<()> {
    run(connection, "DROP TABLE IF EXISTS plain_outbox").await?;
    run(
        connection,
        "CREATE TABLE plain_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id uuid NOT NULL, \
         topic text NOT NULL, key text NOT NULL, type text NOT NULL, content_type text NOT NULL, headers jsonb, \
         payload bytea NOT NULL, created_at timestamptz NOT NULL, published_at timestamptz)",
    )
    .await?;
    run(
        connection,
        &format!(
            "INSERT INTO plain_outbox (message_id, topic, key, type, content_type, payload, created_at) \
             SELECT gen_random_uuid(), 'orders', 'k-' || (random() * {KEYS})::int, 'OrderPlaced', 'application/json', \
             convert_to(rpad('', {PAYLOAD_BYTES}, 'x'), 'UTF8'), clock_timestamp() FROM generate_series(1, {count})"
        ),
    )
    .await?;
    run(connection, "CREATE INDEX ON plain_outbox (id) WHERE published_at IS NULL").await?;
    run(connection, "VACUUM ANALYZE plain_outbox").await?;
    run(connection, "CHECKPOINT").await
}

/// Runs the loop for `time`, or until the table is drained. Returns messages per second.
pub(crate) async fn drain(
    options: &PgConnectOptions,
    broker: Arc<MemoryBroker>,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut connection = options.connect().await?;
    let start = Instant::now();
    let mut count = 0_u32;
    let reports = OutcomeReceiver::default();
    while start.elapsed() < time {
        let mut tx = connection.begin().await?;
        let rows = sqlx::query(
            "SELECT id, message_id, topic, key, type, content_type, payload FROM plain_outbox \
             WHERE published_at IS NULL ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED",
        )
        .fetch_all(&mut *tx)
        .await?;
        if rows.is_empty() {
            break;
        }
        let mut ids: Vec<i64> = Vec::with_capacity(rows.len());
        let mut batch = Vec::with_capacity(rows.len());
        for row in &rows {
            ids.push(row.try_get(0)?);
            let message = Message {
                id: MessageId::from_uuid(row.try_get(1)?),
                topic: row.try_get::<&str, _>(2)?.into(),
                key: row.try_get::<&str, _>(3)?.into(),
                kind: row.try_get::<&str, _>(4)?.into(),
                content_type: row.try_get::<&str, _>(5)?.into(),
                payload: Bytes::copy_from_slice(row.try_get(6)?),
                headers: Headers::new(),
                created_at: jiff::Timestamp::UNIX_EPOCH,
            };
            batch.push(Publication {
                address: "orders".into(),
                message: Arc::new(message),
                headers: Arc::default(),
                seq: 0,
                epoch: 0,
            });
        }
        broker.publish(&batch, &reports.sender(0)).await;
        drop(reports.take());
        sqlx::query("UPDATE plain_outbox SET published_at = clock_timestamp() WHERE id = ANY ($1)")
            .bind(&ids)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        count += u32::try_from(ids.len())?;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}
