//! The tables, created when the file is opened.

use crate::classify::Error;
use crate::connection::WriteTransaction;

/// The statements that create the tables, in version order. A later version is `migrations/0002_*.sql`.
const MIGRATIONS: [&str; 1] = [include_str!("../migrations/0001_baseline.sql")];

/// The version of the tables that this program reads and writes.
const VERSION: i64 = 1;

/// Creates the tables, or migrates them to this program's version. Two processes may call it at the same time.
pub(crate) async fn migrate(mut write: WriteTransaction) -> Result<(), Error> {
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'broker_meta')")
            .fetch_one(write.connection())
            .await?;
    let found: Option<i64> = if exists {
        sqlx::query_scalar("SELECT version FROM broker_meta").fetch_optional(write.connection()).await?
    } else {
        Some(0)
    };
    match found {
        Some(VERSION) => {
            // SQLite begins a write transaction even on a read-only file; only a change fails. Fail now, not at the
            // first message.
            sqlx::query("UPDATE broker_meta SET version = version").execute(write.connection()).await?;
            write.commit().await
        }
        Some(older @ 0..VERSION) => {
            for migration in MIGRATIONS.into_iter().skip(usize::try_from(older).expect("it is not negative")) {
                sqlx::raw_sql(migration).execute(write.connection()).await?;
            }
            write.commit().await
        }
        Some(other) => Err(Error::Schema { detail: format!("they have version {other}, this program's is {VERSION}") }),
        None => Err(Error::Schema { detail: "`broker_meta` is empty".to_owned() }),
    }
}
