//! Applications: they change keys and emit that they did, commit, roll back, or vanish.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::Draft;
use relevo_core::operate::{Inspect, Operate as _, Start};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _, SqliteConnection};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::oracle::Change;
use crate::random::Random;

/// How many keys are changed.
pub(crate) const KEYS: u32 = 50;
/// One transaction in so many rolls back, and as many connections vanish in mid-transaction.
const ENDS: u32 = 10;
/// One transaction in so many takes its time before it ends.
const SLOW: u32 = 20;
/// How long a producer waits when the database is away.
const AWAY: Duration = Duration::from_millis(50);

const TABLES: [&str; 2] = [
    "CREATE TABLE torture_key (key text PRIMARY KEY, changes bigint NOT NULL)",
    "CREATE TABLE torture_change (key text NOT NULL, number bigint NOT NULL, token text PRIMARY KEY)",
];
const CHANGE: &str = "UPDATE torture_key SET changes = changes + $2 WHERE key = $1 RETURNING changes - $2";
const RECORD: &str = "INSERT INTO torture_change VALUES ($1, $2, $3)";

/// Where producers write.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    /// A real server.
    Postgres(Box<PgConnectOptions>),
    /// A file.
    Sqlite(PathBuf),
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    /// The connection is dropped in the middle, as by a process that dies.
    Vanish,
}

/// What the producers did, as far as they know.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) committed: AtomicU64,
    pub(crate) rolled_back: AtomicU64,
    pub(crate) vanished: AtomicU64,
    /// The database was away, or answered nothing: it may have happened.
    pub(crate) unknown: AtomicU64,
}

impl Database {
    /// Makes the outbox and its one destination.
    pub(crate) async fn make_outbox(&self, destination: &str, shards: u16) -> Result<()> {
        match self {
            Self::Postgres(options) => {
                let schema = relevo_store_postgres::Schema::default();
                relevo_store_postgres::migrate::migrate(&mut options.connect().await?, &schema).await?;
            }
            Self::Sqlite(path) => {
                relevo_store_sqlite::migrate::migrate(path).await?;
            }
        }
        let added = match self {
            Self::Postgres(options) => {
                let config = relevo_store_postgres::Config::new((**options).clone(), destination);
                relevo_store_postgres::Store::open(config).await?.add_destination(shards, Start::Now).await?
            }
            Self::Sqlite(path) => {
                let config = relevo_store_sqlite::Config::new(path, destination);
                relevo_store_sqlite::Store::open(config).await?.add_destination(shards, Start::Now).await?
            }
        };
        anyhow::ensure!(added, "the outbox is not new");
        Ok(())
    }

    /// A look at the outbox.
    pub(crate) async fn inspect(&self, destination: &str) -> Result<Box<dyn Inspect>> {
        Ok(match self {
            Self::Postgres(options) => {
                let config = relevo_store_postgres::Config::new((**options).clone(), destination);
                Box::new(relevo_store_postgres::Store::open(config).await?)
            }
            Self::Sqlite(path) => {
                let config = relevo_store_sqlite::Config::new(path, destination);
                Box::new(relevo_store_sqlite::Store::open(config).await?)
            }
        })
    }

    /// Makes the producers' own tables, and the keys.
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

    /// What really committed: the record is written in the transaction that emits.
    pub(crate) async fn changes(&self) -> Result<Vec<Change>> {
        let sql = "SELECT key, number, token FROM torture_change";
        let triples: Vec<(String, i64, String)> = match self.connect().await? {
            Link::Postgres(mut connection) => {
                let rows = sqlx::query(sql).fetch_all(&mut connection).await?;
                rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect::<Result<_>>()?
            }
            Link::Sqlite(mut connection) => {
                let rows = sqlx::query(sql).fetch_all(&mut connection).await?;
                rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).collect::<Result<_>>()?
            }
        };
        Ok(triples.into_iter().map(|(key, number, token)| Change { key, number, token }).collect())
    }

    async fn connect(&self) -> Result<Link> {
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

enum Link {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

/// One application process's worth of writing.
pub(crate) struct Producer {
    pub(crate) name: String,
    pub(crate) database: Database,
    pub(crate) done: Arc<Done>,
    pub(crate) random: Random,
    /// The longest pause between two transactions.
    pub(crate) pause_ms: u32,
    /// How often one transaction changes its key at most.
    pub(crate) burst_max: u32,
}

impl Producer {
    /// Writes until it is told to stop. What goes wrong with the database goes wrong on purpose: it tries again.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let mut link = None;
        let mut number = 0_u64;
        while !stop.is_cancelled() {
            let Some(open) = &mut link else {
                match self.database.connect().await {
                    Ok(open) => link = Some(open),
                    Err(_) => sleep(AWAY).await,
                }
                continue;
            };
            number += 1;
            let end = match self.random.below(ENDS * 3) {
                0..=2 => End::Rollback,
                3 => End::Vanish,
                _ => End::Commit,
            };
            let key = format!("key-{}", self.random.below(KEYS));
            let burst = 1 + self.random.below(self.burst_max);
            let tokens: Vec<_> = (0..burst).map(|change| format!("{}-{number}-{change}", self.name)).collect();
            let slow = self.random.one_in(SLOW).then(|| Duration::from_millis(self.random.below(40).into()));
            let changed = change(open, &key, &tokens, slow, end).await;
            let counter = match (&changed, end) {
                (Err(_), _) => &self.done.unknown,
                (Ok(()), End::Commit) => &self.done.committed,
                (Ok(()), End::Rollback) => &self.done.rolled_back,
                (Ok(()), End::Vanish) => &self.done.vanished,
            };
            counter.fetch_add(burst.into(), Ordering::Relaxed);
            if changed.is_err() || end == End::Vanish {
                link = None;
            }
            sleep(Duration::from_millis(self.random.below(self.pause_ms + 1).into())).await;
        }
        Ok(())
    }
}

/// One transaction: the key's row is locked by an earlier statement than the first that emits.
async fn change(link: &mut Link, key: &str, tokens: &[String], slow: Option<Duration>, end: End) -> Result<()> {
    let draft = |token: &str| Draft::bytes("torture", key, "Changed", token.to_owned(), "text/plain");
    let count = i64::try_from(tokens.len())?;
    match link {
        Link::Postgres(connection) => {
            let mut tx = connection.begin().await?;
            let before: i64 = sqlx::query(CHANGE).bind(key).bind(count).fetch_one(&mut *tx).await?.try_get(0)?;
            for (number, token) in (before + 1..).zip(tokens) {
                sqlx::query(RECORD).bind(key).bind(number).bind(token).execute(&mut *tx).await?;
                relevo_store_postgres::emit(&mut tx, draft(token)).await?;
            }
            sleep(slow.unwrap_or_default()).await;
            match end {
                End::Commit => tx.commit().await.context("it may have committed")?,
                End::Rollback => tx.rollback().await?,
                End::Vanish => std::mem::forget(tx),
            }
        }
        Link::Sqlite(connection) => {
            let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
            let before: i64 = sqlx::query(CHANGE).bind(key).bind(count).fetch_one(&mut *tx).await?.try_get(0)?;
            for (number, token) in (before + 1..).zip(tokens) {
                sqlx::query(RECORD).bind(key).bind(number).bind(token).execute(&mut *tx).await?;
                relevo_store_sqlite::emit(&mut tx, draft(token)).await?;
            }
            sleep(slow.unwrap_or_default()).await;
            match end {
                End::Commit => tx.commit().await.context("it may have committed")?,
                End::Rollback => tx.rollback().await?,
                End::Vanish => std::mem::forget(tx),
            }
        }
    }
    Ok(())
}
