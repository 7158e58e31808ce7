//! The database of a ledger: the inbox, the rows, and the calls to the external service.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use relevo_core::inbox::ConsumerOperator;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Row as _, SqliteConnection};

const POSTGRES: &str = "
    CREATE TABLE IF NOT EXISTS ledger (
        place bigserial PRIMARY KEY, consumer text NOT NULL, message_id text NOT NULL, message_key text NOT NULL,
        change bigint NOT NULL, member text NOT NULL, lane text NOT NULL, broker_offset bigint,
        at timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE TABLE IF NOT EXISTS ledger_call (
        place bigserial PRIMARY KEY, consumer text NOT NULL, message_id text NOT NULL, idempotency_id text NOT NULL,
        member text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
    CREATE TABLE IF NOT EXISTS ledger_cure (consumer text PRIMARY KEY)";
const SQLITE: &str = "
    CREATE TABLE IF NOT EXISTS ledger (
        place INTEGER PRIMARY KEY AUTOINCREMENT, consumer TEXT NOT NULL, message_id TEXT NOT NULL,
        message_key TEXT NOT NULL, change INTEGER NOT NULL, member TEXT NOT NULL, lane TEXT NOT NULL, broker_offset INTEGER,
        at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')));
    CREATE TABLE IF NOT EXISTS ledger_call (
        place INTEGER PRIMARY KEY AUTOINCREMENT, consumer TEXT NOT NULL, message_id TEXT NOT NULL,
        idempotency_id TEXT NOT NULL, member TEXT NOT NULL, at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ')));
    CREATE TABLE IF NOT EXISTS ledger_cure (consumer TEXT PRIMARY KEY)";
const ROWS: &str =
    "SELECT place, consumer, message_id, message_key, change, member FROM ledger WHERE consumer = $1 ORDER BY place";
const CALLS: &str = "SELECT message_id, idempotency_id, member FROM ledger_call WHERE consumer = $1 ORDER BY place";
const CALL: &str = "INSERT INTO ledger_call (consumer, message_id, idempotency_id, member) VALUES ($1, $2, $3, $4)";
const CURE: &str = "INSERT INTO ledger_cure (consumer) VALUES ($1) ON CONFLICT DO NOTHING";

/// One effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Increases from one effect of a key to the next, because each is written after the previous one was committed.
    pub place: i64,
    /// The consumer that caused the effect.
    pub consumer: String,
    /// The id of the message.
    pub message_id: String,
    /// The key of the message.
    pub message_key: String,
    /// The number of the change in its payload.
    pub change: i64,
    /// The process that wrote it.
    pub member: String,
}

/// One call to the external service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceCall {
    /// The id of the message.
    pub message_id: String,
    /// The idempotency id of the call.
    pub idempotency_id: String,
    /// The process that made the call.
    pub member: String,
}

/// The location of a ledger.
#[derive(Clone, Debug)]
pub enum Store {
    /// A PostgreSQL database.
    Postgres(Box<PgConnectOptions>),
    /// A SQLite file.
    Sqlite(PathBuf),
}

impl FromStr for Store {
    type Err = anyhow::Error;

    /// `postgres://…` or `sqlite:PATH`.
    fn from_str(url: &str) -> Result<Self> {
        if let Some(path) = url.strip_prefix("sqlite:") {
            return Ok(Self::Sqlite(path.into()));
        }
        if !url.starts_with("postgres://") {
            bail!("unknown ledger store `{url}`; hint: `postgres://…` or `sqlite:PATH`");
        }
        Ok(Self::Postgres(Box::new(url.parse().context("the store's URL cannot be parsed")?)))
    }
}

impl Store {
    pub(super) async fn prepare(&self) -> Result<()> {
        match self {
            Self::Postgres(_) => {
                let mut connection = self.postgres().await?;
                let schema = relevo_store_postgres::Schema::default();
                relevo_store_postgres::migrate::migrate(&mut connection, &schema).await?;
                sqlx::raw_sql(POSTGRES).execute(&mut connection).await?;
            }
            Self::Sqlite(path) => {
                relevo_store_sqlite::migrate::migrate(path).await?;
                sqlx::raw_sql(SQLITE).execute(&mut self.sqlite().await?).await?;
            }
        }
        Ok(())
    }

    /// The effects of a consumer, in order.
    pub async fn rows(&self, consumer: &str) -> Result<Vec<Row>> {
        macro_rules! read {
            ($connection:expr) => {{
                let rows = sqlx::query(ROWS).bind(consumer).fetch_all(&mut $connection).await?;
                rows.iter()
                    .map(|row| Row {
                        place: row.get(0),
                        consumer: row.get(1),
                        message_id: row.get(2),
                        message_key: row.get(3),
                        change: row.get(4),
                        member: row.get(5),
                    })
                    .collect()
            }};
        }
        Ok(match self {
            Self::Postgres(_) => read!(self.postgres().await?),
            Self::Sqlite(_) => read!(self.sqlite().await?),
        })
    }

    /// The calls of a consumer to the external service, in order.
    pub async fn calls(&self, consumer: &str) -> Result<Vec<ServiceCall>> {
        macro_rules! read {
            ($connection:expr) => {{
                let rows = sqlx::query(CALLS).bind(consumer).fetch_all(&mut $connection).await?;
                rows.iter()
                    .map(|row| ServiceCall { message_id: row.get(0), idempotency_id: row.get(1), member: row.get(2) })
                    .collect()
            }};
        }
        Ok(match self {
            Self::Postgres(_) => read!(self.postgres().await?),
            Self::Sqlite(_) => read!(self.sqlite().await?),
        })
    }

    /// Calls the external service: a table in the same database, written outside the handler's transaction.
    pub(super) async fn call(&self, consumer: &str, call: &ServiceCall) -> Result<(), sqlx::Error> {
        let ServiceCall { message_id, idempotency_id, member } = call;
        macro_rules! write {
            ($connection:expr) => {{
                let call = sqlx::query(CALL).bind(consumer).bind(message_id).bind(idempotency_id).bind(member);
                call.execute(&mut $connection).await?;
            }};
        }
        match self {
            Self::Postgres(_) => write!(self.postgres().await?),
            Self::Sqlite(_) => write!(self.sqlite().await?),
        }
        Ok(())
    }

    /// From now on, no message is poison to this consumer.
    pub async fn cure(&self, consumer: &str) -> Result<()> {
        match self {
            Self::Postgres(_) => {
                sqlx::query(CURE).bind(consumer).execute(&mut self.postgres().await?).await?;
            }
            Self::Sqlite(_) => {
                sqlx::query(CURE).bind(consumer).execute(&mut self.sqlite().await?).await?;
            }
        }
        Ok(())
    }

    /// The operator interface for consumers.
    pub async fn operator(&self) -> Result<Box<dyn ConsumerOperator>> {
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

    async fn postgres(&self) -> Result<PgConnection, sqlx::Error> {
        let Self::Postgres(options) = self else { unreachable!("the caller checks the kind") };
        options.connect().await
    }

    async fn sqlite(&self) -> Result<SqliteConnection, sqlx::Error> {
        let Self::Sqlite(path) = self else { unreachable!("the caller checks the kind") };
        relevo_store_sqlite::connect_options(path).connect().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_the_store() {
        assert!(matches!("sqlite:/tmp/a.db".parse(), Ok(Store::Sqlite(path)) if path.ends_with("a.db")));
        assert!(matches!("postgres://localhost/shop".parse(), Ok(Store::Postgres(_))));
        assert!("mysql://localhost".parse::<Store>().is_err());
    }
}
