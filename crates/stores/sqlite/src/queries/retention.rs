//! Retention: deletes old messages that every destination has settled, in small batches.

use std::time::Duration;

use relevo_core::outbox::admin::OutboxSettings;
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::{COUNT_MAX, column, millis, now};

/// The number of rows that one transaction deletes. It is small because applications wait for it.
const BATCH: i64 = 2000;

/// Deletes one batch of old messages and of old history. Returns whether there may be more.
pub(crate) async fn delete_batch(connection: &mut SqliteConnection) -> Result<bool, Error> {
    let messages = drop_messages(connection).await?;
    let history = prune_history(connection).await?;
    Ok(messages.max(history) >= BATCH.unsigned_abs())
}

/// Reads the settings.
pub(crate) async fn settings(connection: &mut SqliteConnection) -> Result<OutboxSettings, Error> {
    let sql = "SELECT retention_ms, id_retention_ms, dead_letter_retention_ms FROM relevo_settings";
    let row = sqlx::query(sql).fetch_one(connection).await?;
    let duration =
        |index| Ok::<_, Error>(Duration::from_millis(u64::try_from(column::<i64>(&row, index)?).unwrap_or(0)));
    Ok(OutboxSettings { retention: duration(0)?, id_retention: duration(1)?, dead_letter_retention: duration(2)? })
}

/// Replaces the settings.
pub(crate) async fn set_settings(connection: &mut SqliteConnection, settings: &OutboxSettings) -> Result<(), Error> {
    let sql = "UPDATE relevo_settings SET retention_ms = ?1, id_retention_ms = ?2, dead_letter_retention_ms = ?3";
    let update = sqlx::query(sql).bind(millis(settings.retention)).bind(millis(settings.id_retention));
    update.bind(millis(settings.dead_letter_retention)).execute(connection).await?;
    Ok(())
}

/// Deletes from the lowest `seq` up to the first message that is too young or not settled by every destination. No
/// retained row is scanned. A message with a time in the future comes from a wrong clock and does not stop the
/// deletion.
async fn drop_messages(connection: &mut SqliteConnection) -> Result<u64, Error> {
    let sql = concat!(
        "DELETE FROM relevo_message WHERE seq < coalesce(( \
             SELECT min(o.seq) FROM (SELECT seq, created_at_ms FROM relevo_message ORDER BY seq LIMIT ?1) AS o \
             WHERE o.created_at_ms > (SELECT ",
        now!(),
        " - retention_ms FROM relevo_settings) AND o.created_at_ms <= ",
        now!(),
        " + 86400000), 9223372036854775807) \
         AND seq <= coalesce((SELECT min(from_seq) FROM relevo_progress), 9223372036854775807) \
         AND seq IN (SELECT seq FROM relevo_message ORDER BY seq LIMIT ?1)"
    );
    Ok(sqlx::query(sql).bind(BATCH).execute(connection).await?.rows_affected())
}

/// Returns the largest number of rows that one statement deleted.
async fn prune_history(connection: &mut SqliteConnection) -> Result<u64, Error> {
    let statements = [
        concat!(
            "DELETE FROM relevo_settle_history WHERE history_id < coalesce(( \
                 SELECT min(o.history_id) FROM (SELECT history_id, settled_at_ms FROM relevo_settle_history ORDER \
                 BY history_id LIMIT ?1) AS o \
                 WHERE o.settled_at_ms >= ",
            now!(),
            " - (SELECT retention_ms FROM relevo_settings)), 9223372036854775807) \
             AND history_id IN (SELECT history_id FROM relevo_settle_history ORDER BY history_id LIMIT ?1)"
        ),
        concat!(
            "DELETE FROM relevo_parked_published WHERE (destination, seq) IN ( \
             SELECT destination, seq FROM relevo_parked_published WHERE published_at_ms < ",
            now!(),
            " - (SELECT retention_ms FROM relevo_settings) LIMIT ?1)"
        ),
        concat!(
            "DELETE FROM relevo_dedup_id WHERE id IN (SELECT id FROM relevo_dedup_id WHERE claimed_at_ms < ",
            now!(),
            " - (SELECT id_retention_ms FROM relevo_settings) \
             AND NOT EXISTS (SELECT 1 FROM relevo_scheduled AS s WHERE s.id = relevo_dedup_id.id) LIMIT ?1)"
        ),
        concat!(
            "DELETE FROM relevo_dead_letter WHERE (destination, id) IN ( \
             SELECT destination, id FROM relevo_dead_letter \
             WHERE state IN ('redriven', 'discarded') AND marked_at_ms < ",
            now!(),
            " - (SELECT dead_letter_retention_ms FROM relevo_settings) LIMIT ?1)"
        ),
    ];
    let mut largest = 0;
    for sql in statements {
        largest = largest.max(sqlx::query(sql).bind(BATCH).execute(&mut *connection).await?.rows_affected());
    }
    Ok(largest)
}

/// Returns a warning for each destination with undelivered messages older than the retention.
pub(crate) async fn warnings(connection: &mut SqliteConnection) -> Result<Vec<String>, Error> {
    let sql = concat!(
        "SELECT p.destination, (SELECT count(*) FROM ( \
             SELECT created_at_ms FROM relevo_message WHERE seq > p.settled ORDER BY seq LIMIT ?1) \
             WHERE created_at_ms <= ",
        now!(),
        " - (SELECT retention_ms FROM relevo_settings)) AS held \
         FROM (SELECT destination, min(from_seq) AS settled FROM relevo_progress GROUP BY destination) AS p \
         WHERE held > 0 ORDER BY p.destination"
    );
    let rows = sqlx::query(sql).bind(COUNT_MAX).fetch_all(connection).await?;
    let warning = |row| -> Result<String, Error> {
        let (name, count): (&str, i64) = (column(row, 0)?, column(row, 1)?);
        let least = if count >= COUNT_MAX { "at least " } else { "" };
        Ok(format!(
            "destination `{name}` has {least}{count} undelivered messages older than the retention; they are kept"
        ))
    };
    rows.iter().map(warning).collect()
}
