//! The effect of a message: one row.

use std::time::Instant;

use relevo_inbox::{HandlerResult, Incoming, Tx};
use relevo_store_postgres::inbox::Transaction;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::fill::{KEYS, PAYLOAD_BYTES};

pub(super) const TABLE: &str = "DROP TABLE IF EXISTS effect; CREATE TABLE effect (no bigint GENERATED ALWAYS AS \
    IDENTITY PRIMARY KEY, message uuid NOT NULL, key text NOT NULL, body bytea NOT NULL)";
const INSERT: &str = "INSERT INTO effect (message, key, body) VALUES ($1, $2, $3)";

/// Writes the row.
pub(super) async fn write(mut tx: Tx<Transaction>, incoming: Incoming) -> HandlerResult<()> {
    let message = incoming.message();
    insert(&mut tx, *message.id.as_uuid(), &message.key, &message.payload).await?;
    Ok(())
}

async fn insert(connection: &mut PgConnection, id: Uuid, key: &str, body: &[u8]) -> Result<(), sqlx::Error> {
    sqlx::query(INSERT).bind(id).bind(key).bind(body).execute(connection).await?;
    Ok(())
}

/// Rows per second without Relevo, written by `clients` clients.
pub(super) async fn rate(options: &PgConnectOptions, clients: u32, count: u32) -> anyhow::Result<f64> {
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(options.connect().await?);
    }
    let start = Instant::now();
    let mut writers = JoinSet::new();
    for mut connection in connections {
        writers.spawn(async move {
            let body = vec![b'x'; PAYLOAD_BYTES];
            for number in 0..count / clients {
                let (id, key) = (Uuid::now_v7(), format!("k-{}", number % KEYS));
                let mut tx = connection.begin().await?;
                insert(&mut tx, id, &key, &body).await?;
                tx.commit().await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(result) = writers.join_next().await {
        result??;
    }
    Ok(f64::from(count) / start.elapsed().as_secs_f64())
}
