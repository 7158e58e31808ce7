//! The tables, created when the file is opened.

use crate::classify::Error;
use crate::connection::WriteTransaction;

/// The statements that create the tables. A later version is `migrations/0004_*.sql`.
const BASELINE: &str = include_str!("../migrations/0003_baseline.sql");

/// The version of the tables that this program reads and writes. Versions 1 and 2 had other tables, before the baseline.
const VERSION: i64 = 3;

/// Changes with every start of the machine.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Creates the tables if they are missing. Two processes may call it at the same time.
///
/// Returns the highest sequence number that may have been delivered without a trace in the file. A power failure can
/// undo the transaction that records a delivery, so the first open after a start of the machine raises this number to
/// the newest stored message.
pub(crate) async fn migrate(mut write: WriteTransaction) -> Result<i64, Error> {
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'broker_meta')")
            .fetch_one(write.connection())
            .await?;
    if !exists {
        sqlx::raw_sql(BASELINE).execute(write.connection()).await?;
    }
    let found: Option<i64> =
        sqlx::query_scalar("SELECT version FROM broker_meta").fetch_optional(write.connection()).await?;
    match found {
        Some(VERSION) => {}
        Some(older) if older < VERSION => {
            return Err(Error::Schema {
                detail: format!(
                    "they have version {older}, which this program cannot migrate to {VERSION}; hint: consume the \
                     remaining messages with the program that wrote them, then start with a new file"
                ),
            });
        }
        Some(newer) => {
            return Err(Error::Schema {
                detail: format!("they have version {newer}, this program has version {VERSION}"),
            });
        }
        None => return Err(Error::Schema { detail: "`broker_meta` is empty".to_owned() }),
    }
    // SQLite begins a write transaction even on a read-only file. This change fails now, not at the first message.
    let redelivered_through = sqlx::query_scalar(
        "UPDATE broker_meta SET boot_id = ?1, redelivered_through = CASE WHEN boot_id = ?1 THEN redelivered_through
             ELSE max(redelivered_through, (SELECT coalesce(max(seq), 0) FROM broker_message)) END
         RETURNING redelivered_through",
    )
    .bind(boot_id())
    .fetch_one(write.connection())
    .await?;
    write.commit().await?;
    Ok(redelivered_through)
}

/// `None` if the system has no such file. Every open then counts as a start of the machine.
fn boot_id() -> Option<String> {
    Some(std::fs::read_to_string(BOOT_ID_FILE).ok()?.trim().to_owned())
}
