//! Retention: deletes rows of handled messages. It never deletes messages in retry queues, or dead letters that no
//! operator has marked.

use std::time::Duration;

use relevo_core::inbox::InboxRetention;
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::{clock, millis};

/// How long a dead member stays listed.
const EXPIRED_MEMBER_RETENTION: Duration = Duration::from_hours(24);

/// Deletes rows that are older than their retention, at most `limit` of each kind. Returns whether there may be more.
pub(crate) async fn prune(
    connection: &mut SqliteConnection,
    consumer: &str,
    retention: InboxRetention,
    limit: usize,
) -> Result<bool, Error> {
    let now = clock(connection).await?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    record_retention(connection, consumer, retention).await?;
    let statements = [
        (
            "DELETE FROM relevo_inbox WHERE (consumer, message_id, replay) IN ( \
             SELECT consumer, message_id, replay FROM relevo_inbox \
             WHERE consumer = ?1 AND entered_at_ms < ?2 AND state IN ('done', 'skipped') ORDER BY entered_at_ms LIMIT ?3)",
            retention.done,
        ),
        (
            "DELETE FROM relevo_inbox_dead_letter WHERE rowid IN ( \
             SELECT rowid FROM relevo_inbox_dead_letter \
             WHERE consumer = ?1 AND marked_at_ms < ?2 AND state <> 'dead' ORDER BY marked_at_ms LIMIT ?3)",
            retention.dead_letters,
        ),
        (
            "DELETE FROM relevo_inbox_member WHERE (consumer, owner) IN ( \
             SELECT consumer, owner FROM relevo_inbox_member WHERE consumer = ?1 AND expires_at_ms < ?2 LIMIT ?3)",
            EXPIRED_MEMBER_RETENTION,
        ),
    ];
    let mut largest = 0;
    for (sql, retention) in statements {
        let delete = sqlx::query(sql).bind(consumer).bind(now - millis(retention)).bind(limit);
        largest = largest.max(delete.execute(&mut *connection).await?.rows_affected());
    }
    Ok(largest >= limit.cast_unsigned())
}

/// Records the retention of the inbox, which `relevo consumer` shows.
async fn record_retention(
    connection: &mut SqliteConnection,
    consumer: &str,
    retention: InboxRetention,
) -> Result<(), Error> {
    let sql = "INSERT INTO relevo_inbox_consumer AS c (name, done_retention_ms) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET done_retention_ms = ?2 WHERE c.done_retention_ms IS NOT ?2";
    sqlx::query(sql).bind(consumer).bind(millis(retention.done)).execute(connection).await?;
    Ok(())
}
