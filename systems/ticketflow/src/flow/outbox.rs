//! The outbox in the database, for the relay and for monitoring.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use relevo::core::outbox::admin::{OutboxSettings, StartFrom};
use relevo::core::outbox::{OutboxOperator, RelayStore};
use relevo::stores::{postgres, sqlite};
use sqlx::postgres::PgConnectOptions;

use crate::config::{self, Database};

/// The destination of the outbox.
pub const DESTINATION: &str = "broker";
/// The number of shards, and the maximum number of relays that can share the work.
const SHARDS: u16 = 8;

/// An outbox in either database.
#[derive(Clone)]
pub struct Outbox {
    /// For the relay.
    pub store: Arc<dyn RelayStore>,
    /// For start-up and monitoring.
    pub operator: Arc<dyn OutboxOperator>,
}

/// Opens the outbox of a migrated database, with its destination and its retention.
pub async fn open(database: &Database, config: &config::Outbox) -> Result<Outbox> {
    let outbox = match database {
        Database::Postgres(url) => {
            let options: PgConnectOptions = url.expose().parse().context("the URL of the database is wrong")?;
            let operator = postgres::OperatorConfig::new(options.clone());
            Outbox {
                operator: Arc::new(postgres::Operator::open(operator).await?),
                store: Arc::new(postgres::Store::open(postgres::Config::new(options, DESTINATION)).await?),
            }
        }
        Database::Sqlite(path) => Outbox {
            operator: Arc::new(sqlite::Operator::open(sqlite::OperatorConfig::new(path)).await?),
            store: Arc::new(sqlite::Store::open(sqlite::Config::new(path, DESTINATION)).await?),
        },
    };
    let settings = outbox.operator.settings().await?;
    outbox.operator.set_settings(&OutboxSettings { retention: config.retention, ..settings }).await?;
    outbox.operator.add_destination(DESTINATION, SHARDS, StartFrom::Oldest).await?;
    Ok(outbox)
}
