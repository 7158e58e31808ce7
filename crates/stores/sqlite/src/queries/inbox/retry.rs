//! Retry queues: failed messages wait in one or become dead letters. A member claims a queue, handles its first messages,
//! and releases it.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::retries::{
    ClaimedQueue, InboxFailure, InboxFailureAction, QueueClaim, QueuedMessage, RecordOutcome,
};
use relevo_core::inbox::{DedupId, InboxMessage, InboxState, LaneLease};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use uuid::Uuid;

use super::enter::holds_lane;
use super::{append, bind_dedup_id, inbox_message, state};
use crate::classify::Error;
use crate::queries::{clock, column, id, millis, number};

/// Appends a message from the broker to its retry queue, or makes it a dead letter.
pub(crate) async fn record_failure(
    connection: &mut SqliteConnection,
    consumer: &str,
    message: &InboxMessage,
    lane: Option<&LaneLease>,
    claim: Option<CallClaim>,
    failure: &InboxFailure,
) -> Result<RecordOutcome, Error> {
    if !holds_lane(connection, consumer, lane).await? {
        return Ok(RecordOutcome::Fenced);
    }
    let now = clock(connection).await?;
    let sql = "SELECT state, claim_token, entered_at_ms, claim_expires_at_ms, unfinished_starts FROM relevo_inbox \
               WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    let row = bind_dedup_id(sql, consumer, message.dedup_id).fetch_optional(&mut *connection).await?;
    let starts: i64 = row.as_ref().map_or(Ok(0), |row| column(row, 4))?;
    let arrived = match row {
        None if claim.is_none() => now,
        None => return Ok(RecordOutcome::Fenced),
        Some(row) => {
            let token: Option<Uuid> = column(&row, 1)?;
            let expires_at: Option<i64> = column(&row, 3)?;
            match (state(&row, 0)?, claim) {
                (InboxState::Started, None) => column(&row, 2)?,
                // The claim has expired, so its caller is dead.
                (InboxState::Calling, None) if expires_at.is_none_or(|expires_at| expires_at <= now) => {
                    column(&row, 2)?
                }
                (InboxState::Calling, None) => return Ok(RecordOutcome::Busy),
                (InboxState::Calling, Some(claim)) if token == Some(claim.token) => column(&row, 2)?,
                (InboxState::Started | InboxState::Calling, _) => return Ok(RecordOutcome::Fenced),
                (state, _) => return Ok(RecordOutcome::Duplicate(state)),
            }
        }
    };
    let sql = "INSERT INTO relevo_inbox (consumer, message_id, replay, state, entered_at_ms) VALUES (?1, ?2, ?3, \
               'waiting', ?4) \
               ON CONFLICT (consumer, message_id, replay) DO UPDATE \
               SET state = 'waiting', unfinished_starts = 0, claim_token = NULL, claim_expires_at_ms = NULL";
    bind_dedup_id(sql, consumer, message.dedup_id).bind(now).execute(&mut *connection).await?;
    let not_before = match failure.action {
        InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } => Some(now + millis(after)),
        InboxFailureAction::DeadLetter(_) => None,
    };
    if failure.action != InboxFailureAction::DeadLetter(AfterDead::Continue) {
        ensure_queue(connection, consumer, &message.queue, not_before.unwrap_or(now)).await?;
    }
    let ordinal = append(connection, consumer, message, arrived).await?;
    let sql = "UPDATE relevo_inbox_retry_message SET unfinished_starts = ?2 WHERE ordinal = ?1";
    sqlx::query(sql).bind(ordinal).bind(starts).execute(&mut *connection).await?;
    record_attempt(connection, ordinal, failure, not_before).await?;
    if let InboxFailureAction::DeadLetter(_) = failure.action {
        move_to_dead_letters(connection, consumer, ordinal, failure, now).await?;
    }
    if failure.action.holds_queue() {
        let sql =
            "UPDATE relevo_inbox_retry_queue SET next_at_ms = NULL, blocked = 1 WHERE consumer = ?1 AND queue = ?2";
        sqlx::query(sql).bind(consumer).bind(&*message.queue).execute(connection).await?;
    }
    Ok(RecordOutcome::Recorded)
}

/// Records a failure of the first message of a claimed queue.
pub(crate) async fn record_queued_failure(
    connection: &mut SqliteConnection,
    consumer: &str,
    claim: &QueueClaim,
    ordinal: i64,
    failure: &InboxFailure,
) -> Result<RecordOutcome, Error> {
    if !is_claimed(connection, consumer, claim, None).await?
        || first_ordinal(connection, consumer, &claim.queue).await? != Some(ordinal)
    {
        return Ok(RecordOutcome::Fenced);
    }
    let now = clock(connection).await?;
    let not_before = match failure.action {
        InboxFailureAction::Retry { after } => Some(now + millis(after)),
        InboxFailureAction::Postpone { .. } | InboxFailureAction::DeadLetter(_) => None,
    };
    record_attempt(connection, ordinal, failure, not_before).await?;
    let next = match failure.action {
        InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } => Some(now + millis(after)),
        InboxFailureAction::DeadLetter(_) => {
            move_to_dead_letters(connection, consumer, ordinal, failure, now).await?;
            None
        }
    };
    if failure.action != InboxFailureAction::DeadLetter(AfterDead::Continue) {
        // A queue that a dead letter blocks is never due, whatever else changes.
        let sql = "UPDATE relevo_inbox_retry_queue SET claim_token = NULL, claim_expires_at_ms = NULL, blocked = \
                   blocked OR ?3 IS NULL, \
                   next_at_ms = CASE WHEN NOT blocked THEN ?3 END WHERE consumer = ?1 AND queue = ?2";
        sqlx::query(sql).bind(consumer).bind(&*claim.queue).bind(next).execute(connection).await?;
    }
    Ok(RecordOutcome::Recorded)
}

/// Records a failure in the row of the message. If `not_before` is `None`, the stored time is kept.
async fn record_attempt(
    connection: &mut SqliteConnection,
    ordinal: i64,
    failure: &InboxFailure,
    not_before: Option<i64>,
) -> Result<(), Error> {
    // `Postpone` defers a message that was not tried: the start of its claim is not counted, and the last error is kept.
    let sql = "UPDATE relevo_inbox_retry_message SET attempts = ?2, \
               class = CASE WHEN ?5 AND class <> '' THEN class ELSE ?3 END, \
               error = CASE WHEN ?5 AND class <> '' THEN error ELSE ?4 END, \
               unfinished_starts = CASE WHEN ?5 THEN max(unfinished_starts - 1, 0) ELSE 0 END, not_before_ms = coalesce(?6, not_before_ms) \
               WHERE ordinal = ?1";
    let update = sqlx::query(sql).bind(ordinal).bind(i64::from(failure.attempts)).bind(failure.class);
    let update = update
        .bind(&failure.error)
        .bind(matches!(failure.action, InboxFailureAction::Postpone { .. }))
        .bind(not_before);
    update.execute(connection).await?;
    Ok(())
}

/// Moves a message of a retry queue to the dead letters. An existing dead letter of it is dead again.
async fn move_to_dead_letters(
    connection: &mut SqliteConnection,
    consumer: &str,
    ordinal: i64,
    failure: &InboxFailure,
    now: i64,
) -> Result<(), Error> {
    let sql = "INSERT INTO relevo_inbox_dead_letter (consumer, id, replay, queue, ordinal, headers, payload, \
               address, lane, broker_offset, \
               class, error, attempts, arrived_at_ms, backtrace, dead_at_ms, blocks_queue) \
               SELECT consumer, id, replay, queue, ordinal, headers, payload, address, lane, broker_offset, \
               class, error, attempts, arrived_at_ms, ?2, ?3, ?4 FROM relevo_inbox_retry_message WHERE ordinal = ?1 \
               ON CONFLICT (consumer, id, replay) DO UPDATE SET state = 'dead', class = excluded.class, \
               error = excluded.error, backtrace = excluded.backtrace, attempts = excluded.attempts, \
               dead_at_ms = excluded.dead_at_ms, blocks_queue = excluded.blocks_queue";
    let insert = sqlx::query(sql).bind(ordinal).bind(failure.backtrace.as_deref()).bind(now);
    insert.bind(failure.action.holds_queue()).execute(&mut *connection).await?;
    let id = delete_message(connection, ordinal).await?;
    let sql = "UPDATE relevo_inbox SET state = 'dead' WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    bind_dedup_id(sql, consumer, id).execute(connection).await?;
    Ok(())
}

/// Deletes a message from its queue.
async fn delete_message(connection: &mut SqliteConnection, ordinal: i64) -> Result<DedupId, Error> {
    let delete = sqlx::query("DELETE FROM relevo_inbox_retry_message WHERE ordinal = ?1 RETURNING id, replay");
    let row = delete.bind(ordinal).fetch_one(connection).await?;
    Ok(DedupId { id: id(&row, 0)?, replay: number(&row, 1)? })
}

/// Creates a queue that is due at this time, unless it exists.
pub(crate) async fn ensure_queue(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
    due_at: i64,
) -> Result<(), Error> {
    let sql = "INSERT OR IGNORE INTO relevo_inbox_retry_queue (consumer, queue, next_at_ms) VALUES (?1, ?2, ?3)";
    sqlx::query(sql).bind(consumer).bind(queue).bind(due_at).execute(connection).await?;
    Ok(())
}

/// Deletes a queue that is empty and not blocked. Returns whether it did.
pub(crate) async fn delete_empty_queue(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
) -> Result<bool, Error> {
    let sql = "DELETE FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND queue = ?2 AND NOT blocked \
               AND NOT EXISTS (SELECT 1 FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2)";
    Ok(sqlx::query(sql).bind(consumer).bind(queue).execute(connection).await?.rows_affected() > 0)
}

/// Claims due queues, longest waiting first, each with its first messages.
pub(crate) async fn claim_due_queues(
    connection: &mut SqliteConnection,
    consumer: &str,
    queues: usize,
    messages: usize,
    duration: Duration,
) -> Result<Vec<ClaimedQueue>, Error> {
    let now = clock(connection).await?;
    let sql = "SELECT queue FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND next_at_ms <= ?2 \
               AND (claim_expires_at_ms IS NULL OR claim_expires_at_ms <= ?2) ORDER BY next_at_ms, queue LIMIT ?3";
    let limit = i64::try_from(queues).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql).bind(consumer).bind(now).bind(limit).fetch_all(&mut *connection).await?;
    let mut claimed = Vec::with_capacity(rows.len());
    for row in &rows {
        claimed.push(claim_queue(connection, consumer, column(row, 0)?, messages, now, now + millis(duration)).await?);
    }
    Ok(claimed)
}

/// Claims one queue. Its messages end before the first that is not due.
async fn claim_queue(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
    messages: usize,
    now: i64,
    expires_at: i64,
) -> Result<ClaimedQueue, Error> {
    let token = Uuid::new_v4();
    let sql = "UPDATE relevo_inbox_retry_queue SET claim_token = ?3, claim_expires_at_ms = ?4 WHERE consumer = ?1 AND queue = ?2";
    sqlx::query(sql).bind(consumer).bind(queue).bind(token).bind(expires_at).execute(&mut *connection).await?;
    let sql = "UPDATE relevo_inbox_retry_message SET unfinished_starts = unfinished_starts + 1 WHERE ordinal = ( \
               SELECT min(ordinal) FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2) \
               AND coalesce(not_before_ms, 0) <= ?3";
    sqlx::query(sql).bind(consumer).bind(queue).bind(now).execute(&mut *connection).await?;
    let sql = "SELECT ordinal, unfinished_starts, id, replay, headers, payload, address, lane, \
               broker_offset, queue, attempts, not_before_ms FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2 ORDER BY ordinal LIMIT ?3";
    let limit = i64::try_from(messages.max(1)).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql).bind(consumer).bind(queue).bind(limit).fetch_all(connection).await?;
    let mut messages = Vec::with_capacity(rows.len());
    for row in &rows {
        let not_before: Option<i64> = column(row, 11)?;
        if not_before.is_some_and(|time| time > now) {
            break;
        }
        messages.push(queued_message(row)?);
    }
    Ok(ClaimedQueue { claim: QueueClaim { queue: queue.to_owned().into(), token }, messages })
}

fn queued_message(row: &SqliteRow) -> Result<QueuedMessage, Error> {
    Ok(QueuedMessage { ordinal: column(row, 0)?, unfinished_starts: number(row, 1)?, message: inbox_message(row, 2)? })
}

/// Whether the claim is still valid. With `at`, the claim must also not have expired by then.
pub(crate) async fn is_claimed(
    connection: &mut SqliteConnection,
    consumer: &str,
    claim: &QueueClaim,
    at: Option<i64>,
) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND queue = ?2 AND claim_token = ?3 \
               AND (?4 IS NULL OR claim_expires_at_ms > ?4)";
    let select = sqlx::query(sql).bind(consumer).bind(&*claim.queue).bind(claim.token).bind(at);
    Ok(select.fetch_optional(connection).await?.is_some())
}

/// Returns the number of the first remaining message.
pub(crate) async fn first_ordinal(
    connection: &mut SqliteConnection,
    consumer: &str,
    queue: &str,
) -> Result<Option<i64>, Error> {
    let sql = "SELECT min(ordinal) FROM relevo_inbox_retry_message WHERE consumer = ?1 AND queue = ?2";
    column(&sqlx::query(sql).bind(consumer).bind(queue).fetch_one(connection).await?, 0)
}

/// Removes the first message of a claimed queue and inserts it as done. Returns false if the claim is lost or has
/// expired, or if another message is the first.
pub(crate) async fn complete_first(
    connection: &mut SqliteConnection,
    consumer: &str,
    claim: &QueueClaim,
    ordinal: i64,
) -> Result<bool, Error> {
    let now = clock(connection).await?;
    if !is_claimed(connection, consumer, claim, Some(now)).await?
        || first_ordinal(connection, consumer, &claim.queue).await? != Some(ordinal)
    {
        return Ok(false);
    }
    let id = delete_message(connection, ordinal).await?;
    let sql = "UPDATE relevo_inbox SET state = 'done', entered_at_ms = ?4 WHERE consumer = ?1 AND message_id = ?2 \
               AND replay = ?3 \
               AND state IN ('waiting', 'redriven')";
    let update = bind_dedup_id(sql, consumer, id).bind(now).execute(connection).await?;
    Ok(update.rows_affected() > 0)
}

/// Returns when a queue that is neither claimed nor blocked is due: when its first message is.
pub(crate) async fn queue_due_at(
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
pub(crate) async fn release_queue(
    connection: &mut SqliteConnection,
    consumer: &str,
    claim: &QueueClaim,
) -> Result<(), Error> {
    if !is_claimed(connection, consumer, claim, None).await?
        || delete_empty_queue(connection, consumer, &claim.queue).await?
    {
        return Ok(());
    }
    let now = clock(connection).await?;
    let next = queue_due_at(connection, consumer, &claim.queue, now).await?;
    let sql = "UPDATE relevo_inbox_retry_queue SET claim_token = NULL, claim_expires_at_ms = NULL, next_at_ms = \
               CASE WHEN NOT blocked THEN ?3 END \
               WHERE consumer = ?1 AND queue = ?2";
    sqlx::query(sql).bind(consumer).bind(&*claim.queue).bind(next).execute(&mut *connection).await?;
    // The worker released the queue properly, so unfinished starts do not count.
    let sql = "UPDATE relevo_inbox_retry_message SET unfinished_starts = 0 WHERE consumer = ?1 AND queue = ?2 AND unfinished_starts > 0";
    sqlx::query(sql).bind(consumer).bind(&*claim.queue).execute(connection).await?;
    Ok(())
}
