//! The outbox in the database, for the relay and for monitoring.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo::core::outbox::RelayStore;
use relevo::core::outbox::admin::{OutboxAdmin, StartFrom};
use relevo::core::outbox::sample::OutboxMonitor;
use relevo::stores::{postgres, sqlite};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use crate::config::{self, Database};
use crate::desk::DeskError;

/// The destination of the outbox.
pub const DESTINATION: &str = "broker";
/// The number of shards, and the maximum number of relays that can share the work.
const SHARDS: u16 = 8;

/// An outbox in either database.
pub trait Outbox: RelayStore + OutboxAdmin + OutboxMonitor {}

impl<T: RelayStore + OutboxAdmin + OutboxMonitor> Outbox for T {}

/// Opens the outbox of a migrated database, with its destination and its retention.
pub async fn open(database: &Database, config: &config::Outbox) -> Result<Arc<dyn Outbox>> {
    let outbox: Arc<dyn Outbox> = match database {
        Database::Postgres(url) => {
            let options: PgConnectOptions = url.expose().parse().context("the URL of the database is wrong")?;
            keep_in_postgres(&options, config.retention).await?;
            Arc::new(postgres::Store::open(postgres::Config::new(options, DESTINATION)).await?)
        }
        Database::Sqlite(path) => {
            keep_in_sqlite(path, config.retention).await?;
            Arc::new(sqlite::Store::open(sqlite::Config::new(path, DESTINATION)).await?)
        }
    };
    outbox.add_destination(SHARDS, StartFrom::Oldest).await?;
    Ok(outbox)
}

/// The class of the error decides whether a start waits for the database.
async fn keep_in_postgres(options: &PgConnectOptions, retention: Duration) -> Result<(), DeskError> {
    let mut connection = options.clone().disable_statement_logging().connect().await?;
    // A row with this value is not updated, because every process runs this at startup. The value is part of the text, so that the
    // statement works behind a pooler.
    let retention = format!("make_interval(secs => {})", retention.as_secs());
    let sql = format!("UPDATE relevo.settings SET retention = {retention} WHERE retention <> {retention}");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
    Ok(())
}

async fn keep_in_sqlite(path: &Path, retention: Duration) -> Result<(), DeskError> {
    let mut connection = sqlite::connect_options(path).disable_statement_logging().connect().await?;
    sqlx::query("UPDATE relevo_settings SET retention_ms = ?1 WHERE retention_ms <> ?1")
        .bind(i64::try_from(retention.as_millis()).unwrap_or(i64::MAX))
        .execute(&mut connection)
        .await?;
    Ok(())
}
