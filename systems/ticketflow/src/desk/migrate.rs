//! The schema's versions: the engine's first, then ours, each once and in order, by one process at a time.

use std::collections::BTreeSet;

use relevo::stores::{postgres, sqlite};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};

use super::DeskError;
use crate::config::Database;

/// One version, for either database.
struct Migration {
    version: i64,
    name: &'static str,
    postgres: &'static str,
    sqlite: &'static str,
}

/// Declares a version by its number and the name of its two files.
macro_rules! migration {
    ($version:literal, $name:literal, $file:literal) => {
        Migration {
            version: $version,
            name: $name,
            postgres: include_str!(concat!("../../migrations/postgres/", $file)),
            sqlite: include_str!(concat!("../../migrations/sqlite/", $file)),
        }
    };
}

const MIGRATIONS: [Migration; 3] = [
    migration!(1, "tickets", "0001_tickets.sql"),
    migration!(2, "worker", "0002_worker.sql"),
    migration!(3, "disabled", "0003_disabled.sql"),
];

/// The version that this program needs.
pub const VERSION: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// Makes the schema before its first version, under a lock that other processes wait for until the transaction ends.
const POSTGRES: &str = "SELECT pg_advisory_xact_lock(hashtextextended('ticketflow/migrate', 0));
CREATE SCHEMA IF NOT EXISTS ticketflow;
CREATE TABLE IF NOT EXISTS ticketflow.migration (version bigint PRIMARY KEY, name text NOT NULL);";
/// The same in a file, whose one writer we are by then.
const SQLITE: &str = "CREATE TABLE IF NOT EXISTS migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;";

/// Brings the database up to [`VERSION`]; returns the versions that were applied now. A second process waits for the first,
/// then finds nothing to do.
pub async fn migrate(database: &Database) -> Result<Vec<i64>, DeskError> {
    match database {
        Database::Postgres(url) => {
            let options: PgConnectOptions = url.expose().parse()?;
            let mut connection = options.connect().await?;
            postgres::migrate::migrate(&mut connection, &postgres::Schema::default()).await?;
            let mut tx = connection.begin().await?;
            sqlx::raw_sql(POSTGRES).execute(&mut *tx).await?;
            let rows = sqlx::raw_sql("SELECT version FROM ticketflow.migration").fetch_all(&mut *tx).await?;
            let known = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            let steps = missing(&known);
            for step in &steps {
                sqlx::raw_sql(step.postgres).execute(&mut *tx).await?;
                sqlx::raw_sql(step.note("ticketflow.migration")).execute(&mut *tx).await?;
            }
            tx.commit().await?;
            Ok(steps.iter().map(|step| step.version).collect())
        }
        Database::Sqlite(file) => {
            sqlite::migrate::migrate(file).await.map_err(|error| DeskError::Broken(error.into()))?;
            let mut connection = sqlite::connect_options(file).connect().await?;
            let mut tx = sqlite::begin(&mut connection).await?;
            sqlx::raw_sql(SQLITE).execute(&mut *tx).await?;
            let rows = sqlx::query("SELECT version FROM migration").fetch_all(&mut *tx).await?;
            let known = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
            let steps = missing(&known);
            for step in &steps {
                sqlx::raw_sql(step.sqlite).execute(&mut *tx).await?;
                sqlx::raw_sql(step.note("migration")).execute(&mut *tx).await?;
            }
            tx.commit().await?;
            Ok(steps.iter().map(|step| step.version).collect())
        }
    }
}

fn missing(known: &BTreeSet<i64>) -> Vec<&'static Migration> {
    MIGRATIONS.iter().filter(|migration| !known.contains(&migration.version)).collect()
}

impl Migration {
    fn note(&self, table: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(format!("INSERT INTO {table} (version, name) VALUES ({}, '{}')", self.version, self.name))
    }
}
