//! The tables, made when the file is opened.

use crate::classify::Error;
use crate::link::Write;

/// The version of the tables that this program reads and writes.
const VERSION: i64 = 2;

/// What makes the tables, one version after the other.
const MIGRATIONS: [&str; 2] =
    [include_str!("../migrations/0001_broker.sql"), include_str!("../migrations/0002_retries.sql")];

/// Makes the tables, or brings them to this program's version. Two processes may do it at once.
pub(crate) async fn prepare(mut write: Write) -> Result<(), Error> {
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'broker_meta')")
            .fetch_one(write.sql())
            .await?;
    let found: Option<i64> = if exists {
        sqlx::query_scalar("SELECT version FROM broker_meta").fetch_optional(write.sql()).await?
    } else {
        Some(0)
    };
    match found {
        Some(VERSION) => {
            // SQLite begins a write transaction even where it may not write; only a change tells, and now is the time.
            sqlx::query("UPDATE broker_meta SET version = version").execute(write.sql()).await?;
            write.commit().await
        }
        Some(older @ 0..VERSION) => {
            for migration in MIGRATIONS.into_iter().skip(usize::try_from(older).expect("it is not negative")) {
                sqlx::raw_sql(migration).execute(write.sql()).await?;
            }
            write.commit().await
        }
        Some(other) => Err(Error::Schema { what: format!("they are of version {other}, this program's is {VERSION}") }),
        None => Err(Error::Schema { what: "`broker_meta` is empty".to_owned() }),
    }
}
