//! Retry queues: a member claims a queue, handles its first messages, and releases it.

use std::time::Duration;

use relevo_core::inbox::InboxState;
use relevo_core::inbox::retries::{ClaimedQueue, QueuedMessage};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use uuid::Uuid;

use super::rows::{Asking, bind_dedup_id, clock, inbox_message, note};
use crate::classify::Error;
use crate::queries::{column, millis, number};

/// Creates a queue that is due at this time, unless it exists.
pub(super) async fn ensure_queue(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
    at: i64,
) -> Result<(), Error> {
    let sql = "INSERT OR IGNORE INTO relevo_inbox_retry_queue (consumer, queue, next_at_ms) VALUES (?1, ?2, ?3)";
    sqlx::query(sql).bind(consumer).bind(queue).bind(at).execute(connection).await?;
    Ok(())
}

/// Deletes a queue that is empty and not blocked. Returns whether it did.
pub(super) async fn delete_empty_queue(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
) -> Result<bool, Error> {
    let sql = "DELETE FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND queue = ?2 AND NOT blocked \
               AND NOT EXISTS (SELECT 1 FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2)";
    Ok(sqlx::query(sql).bind(consumer).bind(queue).execute(connection).await?.rows_affected() > 0)
}

/// Claims due queues, longest waiting first, each with its first messages.
pub(super) async fn claim_due_queues(
    connection: &mut SqliteConnection,
    consumer: &str,
    queues: usize,
    messages: usize,
    lasts: Duration,
) -> Result<Vec<ClaimedQueue>, Error> {
    let now = clock(connection).await?;
    let sql = "SELECT queue FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND next_at_ms <= ?2 \
               AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= ?2) ORDER BY next_at_ms, queue LIMIT ?3";
    let limit = i64::try_from(queues).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql).bind(consumer).bind(now).bind(limit).fetch_all(&mut *connection).await?;
    let mut dues = Vec::with_capacity(rows.len());
    for row in &rows {
        dues.push(claim_queue(connection, consumer, column(row, 0)?, messages, now, now + millis(lasts)).await?);
    }
    Ok(dues)
}

/// Claims one queue. Its messages end before the first that is not due.
async fn claim_queue(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
    messages: usize,
    now: i64,
    until: i64,
) -> Result<ClaimedQueue, Error> {
    let token = Uuid::new_v4();
    let sql = "UPDATE relevo_inbox_retry_queue SET claim_token = ?3, claim_expires_at_ms = ?4 WHERE consumer = ?1 AND queue = ?2";
    sqlx::query(sql).bind(consumer).bind(queue).bind(token).bind(until).execute(&mut *connection).await?;
    let sql = "UPDATE relevo_inbox_retry_message SET unfinished_starts = unfinished_starts + 1 WHERE ordinal = ( \
               SELECT min(ordinal) FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2) \
               AND coalesce(not_before_ms, 0) <= ?3";
    sqlx::query(sql).bind(consumer).bind(queue).bind(now).execute(&mut *connection).await?;
    let sql = "SELECT ordinal, attempts, unfinished_starts, redriven, id, replay, headers, payload, address, lane, \
               broker_offset, correlation, queue, \
               not_before_ms FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2 ORDER BY ordinal LIMIT ?3";
    let limit = i64::try_from(messages.max(1)).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql).bind(consumer).bind(queue).bind(limit).fetch_all(connection).await?;
    let mut messages = Vec::with_capacity(rows.len());
    for row in &rows {
        let not_before: Option<i64> = column(row, 13)?;
        if not_before.is_some_and(|time| time > now) {
            break;
        }
        messages.push(queued_message(row)?);
    }
    Ok(ClaimedQueue { queue: queue.to_owned().into(), token, messages })
}

fn queued_message(row: &SqliteRow) -> Result<QueuedMessage, Error> {
    Ok(QueuedMessage {
        ordinal: column(row, 0)?,
        attempts: number(row, 1)?,
        unfinished_starts: number(row, 2)?,
        reopened: column(row, 3)?,
        message: inbox_message(row, 4)?,
    })
}

/// Whether the claim is still valid. With `at`, the claim must also not have expired by then.
pub(super) async fn is_claimed(
    connection: &mut SqliteConnection,
    consumer: &str,
    due: &ClaimedQueue,
    at: Option<i64>,
) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND queue = ?2 AND claim_token = ?3 \
               AND (?4 IS NULL OR claim_expires_at_ms > ?4)";
    let select = sqlx::query(sql).bind(consumer).bind(&*due.queue).bind(due.token).bind(at);
    Ok(select.fetch_optional(connection).await?.is_some())
}

/// Returns the number of the first remaining message.
pub(super) async fn first_ordinal(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
) -> Result<Option<i64>, Error> {
    let sql = "SELECT min(ordinal) FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2";
    column(&sqlx::query(sql).bind(consumer).bind(queue).fetch_one(connection).await?, 0)
}

/// Removes the first message of a claimed queue and inserts it as done. Returns false if the claim is lost or has
/// expired, or if another message is the first.
pub(super) async fn complete_first(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    due: &ClaimedQueue,
    no: i64,
) -> Result<bool, Error> {
    let consumer = asking.consumer;
    let now = clock(connection).await?;
    if !is_claimed(connection, consumer, due, Some(now)).await?
        || first_ordinal(connection, consumer, &due.queue).await? != Some(no)
    {
        return Ok(false);
    }
    let sql = "DELETE FROM relevo_inbox_retry_message WHERE ordinal = ?1 \
               RETURNING id, replay, headers, payload, address, lane, broker_offset, correlation, queue";
    let arrival = inbox_message(&sqlx::query(sql).bind(no).fetch_one(&mut *connection).await?, 0)?;
    let sql = "UPDATE relevo_inbox SET state = 'done', entered_at_ms = ?4 WHERE consumer = ?1 AND message_id = ?2 \
               AND replay = ?3 \
               AND state IN ('waiting', 'redriven')";
    let update = bind_dedup_id(sql, consumer, arrival.dedup_id).bind(now).execute(&mut *connection).await?;
    if update.rows_affected() == 0 {
        return Ok(false);
    }
    note(connection, asking, &arrival, InboxState::Done).await?;
    Ok(true)
}

/// Returns when a queue that is neither claimed nor blocked is due: when its first message is.
pub(super) async fn queue_due_at(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
    now: i64,
) -> Result<i64, Error> {
    let sql = "SELECT not_before_ms FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2 ORDER BY ordinal LIMIT 1";
    let first = sqlx::query(sql).bind(consumer).bind(queue).fetch_optional(connection).await?;
    let not_before: Option<i64> = first.as_ref().map_or(Ok(None), |row| column(row, 0))?;
    Ok(not_before.map_or(now, |not_before| not_before.max(now)))
}

/// Releases a claim. Deletes an empty queue. Any other queue is due when its first message is.
pub(super) async fn release_queue(
    connection: &mut SqliteConnection,
    consumer: &str,
    due: &ClaimedQueue,
) -> Result<(), Error> {
    if !is_claimed(connection, consumer, due, None).await?
        || delete_empty_queue(connection, consumer, &due.queue).await?
    {
        return Ok(());
    }
    let now = clock(connection).await?;
    let next = queue_due_at(connection, consumer, &due.queue, now).await?;
    let sql = "UPDATE relevo_inbox_retry_queue SET claim_token = NULL, claim_expires_at_ms = NULL, next_at_ms = \
               CASE WHEN NOT blocked THEN ?3 END \
               WHERE consumer = ?1 AND queue = ?2";
    sqlx::query(sql).bind(consumer).bind(&*due.queue).bind(next).execute(&mut *connection).await?;
    // The worker released the queue properly, so unfinished starts do not count.
    let sql = "UPDATE relevo_inbox_retry_message SET unfinished_starts = 0 WHERE consumer = ?1 AND queue = ?2 AND unfinished_starts > 0";
    sqlx::query(sql).bind(consumer).bind(&*due.queue).execute(connection).await?;
    Ok(())
}
