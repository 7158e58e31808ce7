//! The database under test, as its applications and the oracle see it.

use std::path::PathBuf;

use anyhow::Result;
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::admin::StartFrom;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};

use crate::ledger::Store;
use crate::oracle::Change;

/// The number of keys.
pub(crate) const KEYS: u32 = 50;

const TABLES: [&str; 2] = [
    "CREATE TABLE torture_key (key text PRIMARY KEY, changes bigint NOT NULL)",
    "CREATE TABLE torture_change (key text NOT NULL, number bigint NOT NULL, token text PRIMARY KEY, id text NOT NULL)",
];

/// The database that all processes use.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    /// A real server.
    Postgres(Box<PgConnectOptions>),
    /// A file.
    Sqlite(PathBuf),
}

impl Database {
    /// Creates the outbox and its only destination.
    pub(crate) async fn create_outbox(&self, destination: &str, shards: u16) -> Result<()> {
        match self {
            Self::Postgres(options) => {
                let schema = relevo_store_postgres::Schema::default();
                relevo_store_postgres::migrate::migrate(&mut options.connect().await?, &schema).await?;
            }
            Self::Sqlite(path) => {
                relevo_store_sqlite::migrate::migrate(path).await?;
            }
        }
        let added = self.operator().await?.add_destination(destination, shards, StartFrom::Now).await?;
        anyhow::ensure!(added, "the destination exists already");
        Ok(())
    }

    /// Opens the outbox for an operator.
    pub(crate) async fn operator(&self) -> Result<Box<dyn OutboxOperator>> {
        Ok(match self {
            Self::Postgres(options) => {
                let config = relevo_store_postgres::OperatorConfig::new((**options).clone());
                Box::new(relevo_store_postgres::Operator::open(config).await?)
            }
            Self::Sqlite(path) => {
                let config = relevo_store_sqlite::OperatorConfig::new(path);
                Box::new(relevo_store_sqlite::Operator::open(config).await?)
            }
        })
    }

    /// Creates the producers' own tables, and the keys.
    pub(crate) async fn prepare(&self) -> Result<()> {
        match self.connect().await? {
            Link::Postgres(mut connection) => {
                for table in TABLES {
                    sqlx::raw_sql(table).execute(&mut connection).await?;
                }
                for key in keys() {
                    sqlx::query("INSERT INTO torture_key VALUES ($1, 0)").bind(key).execute(&mut connection).await?;
                }
                Ok(connection.close().await?)
            }
            Link::Sqlite(mut connection) => {
                for table in TABLES {
                    sqlx::raw_sql(table).execute(&mut connection).await?;
                }
                for key in keys() {
                    sqlx::query("INSERT INTO torture_key VALUES ($1, 0)").bind(key).execute(&mut connection).await?;
                }
                Ok(connection.close().await?)
            }
        }
    }

    /// The changes that really committed: the transaction that emits also writes the record.
    pub(crate) async fn changes(&self) -> Result<Vec<Change>> {
        let sql = "SELECT key, number, token, id FROM torture_change";
        macro_rules! read {
            ($connection:expr) => {{
                let rows = sqlx::query(sql).fetch_all(&mut $connection).await?;
                let changes = rows.iter().map(|row| {
                    let (key, number, token, id) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
                    Ok(Change { key, number, token, id })
                });
                changes.collect()
            }};
        }
        match self.connect().await? {
            Link::Postgres(mut connection) => read!(connection),
            Link::Sqlite(mut connection) => read!(connection),
        }
    }

    /// The same database, as the ledger of the consumers.
    pub(crate) fn ledger(&self) -> Store {
        match self {
            Self::Postgres(options) => Store::Postgres(options.clone()),
            Self::Sqlite(path) => Store::Sqlite(path.clone()),
        }
    }

    /// Reverts a cure: poison messages of the consumer are poison again.
    pub(crate) async fn revert_cure(&self, consumer: &str) -> Result<()> {
        let delete = "DELETE FROM ledger_cure WHERE consumer = $1";
        match self.connect().await? {
            Link::Postgres(mut connection) => {
                sqlx::query(delete).bind(consumer).execute(&mut connection).await?;
            }
            Link::Sqlite(mut connection) => {
                sqlx::query(delete).bind(consumer).execute(&mut connection).await?;
            }
        }
        Ok(())
    }

    /// Deletes the inbox entries of all messages that a consumer has handled: the worst possible failure of an inbox.
    pub(crate) async fn forget(&self, consumer: &str) -> Result<()> {
        match self.connect().await? {
            Link::Postgres(mut connection) => {
                let delete = "DELETE FROM relevo.inbox WHERE consumer = $1 AND state = 'done'";
                sqlx::query(delete).bind(consumer).execute(&mut connection).await?;
            }
            Link::Sqlite(mut connection) => {
                let delete = "DELETE FROM relevo_inbox WHERE consumer = $1 AND state = 'done'";
                sqlx::query(delete).bind(consumer).execute(&mut connection).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn connect(&self) -> Result<Link> {
        Ok(match self {
            Self::Postgres(options) => Link::Postgres(options.connect().await?),
            Self::Sqlite(path) => {
                Link::Sqlite(relevo_store_sqlite::connect_options(path).disable_statement_logging().connect().await?)
            }
        })
    }
}

fn keys() -> impl Iterator<Item = String> {
    (0..KEYS).map(|number| format!("key-{number}"))
}

/// A connection to the database.
pub(crate) enum Link {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}
