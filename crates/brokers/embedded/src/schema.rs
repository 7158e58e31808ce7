//! The tables, made when the file is opened.

use crate::classify::Error;
use crate::link::Write;

/// The version of the tables that this program reads and writes.
const VERSION: i64 = 1;

/// Makes the tables, or checks that they are this program's. Two processes may do it at once.
pub(crate) async fn prepare(mut write: Write) -> Result<(), Error> {
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'broker_meta')")
            .fetch_one(write.sql())
            .await?;
    if !exists {
        sqlx::raw_sql(include_str!("../migrations/0001_broker.sql")).execute(write.sql()).await?;
        return write.commit().await;
    }
    let found: Option<i64> = sqlx::query_scalar("SELECT version FROM broker_meta").fetch_optional(write.sql()).await?;
    match found {
        Some(VERSION) => {
            // SQLite begins a write transaction even where it may not write; only a change tells, and now is the time.
            sqlx::query("UPDATE broker_meta SET version = version").execute(write.sql()).await?;
            write.commit().await
        }
        Some(other) => Err(Error::Schema { what: format!("they are of version {other}, this program's is {VERSION}") }),
        None => Err(Error::Schema { what: "`broker_meta` is empty".to_owned() }),
    }
}
