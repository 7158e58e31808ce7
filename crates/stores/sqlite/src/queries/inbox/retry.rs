//! Retry queues: failed messages wait in one or become dead letters. A member claims a queue, handles its first messages,
//! and releases it.

use std::time::Duration;

use relevo_core::inbox::{
    CallClaim, ClaimedQueue, InboxFailure, InboxFailureAction, InboxMessage, InboxState, LaneLease, QueuedMessage,
    RecordOutcome,
};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use uuid::Uuid;

use super::enter::holds_lane;
use super::{Asking, append, bind_dedup_id, clock, inbox_message, note, note_repeat, state};
use crate::classify::Error;
use crate::queries::{column, millis, number};

/// Appends a live message to its retry queue, or makes it a dead letter.
pub(crate) async fn record_failure(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    arrival: &InboxMessage,
    held: Option<&LaneLease>,
    claim: Option<CallClaim>,
    setback: &InboxFailure,
) -> Result<RecordOutcome, Error> {
    let consumer = asking.consumer;
    if !holds_lane(connection, consumer, held).await? {
        return Ok(RecordOutcome::Fenced);
    }
    let now = clock(connection).await?;
    let sql = "SELECT state, claim_token, entered_at_ms, claim_expires_at_ms, unfinished_starts FROM relevo_inbox \
               WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    let row = bind_dedup_id(sql, consumer, arrival.dedup_id).fetch_optional(&mut *connection).await?;
    let started: i64 = row.as_ref().map_or(Ok(0), |row| column(row, 4))?;
    let arrived = match row {
        None if claim.is_none() => now,
        None => return Ok(RecordOutcome::Fenced),
        Some(row) => {
            let token: Option<Uuid> = column(&row, 1)?;
            let until: Option<i64> = column(&row, 3)?;
            match (state(&row, 0)?, claim) {
                (InboxState::Started, None) => column(&row, 2)?,
                // The claim has expired, so its caller is dead.
                (InboxState::Calling, None) if until.is_none_or(|until| until <= now) => column(&row, 2)?,
                (InboxState::Calling, None) => return Ok(RecordOutcome::Busy),
                (InboxState::Calling, Some(claim)) if token == Some(claim.token) => column(&row, 2)?,
                (InboxState::Started | InboxState::Calling, _) => return Ok(RecordOutcome::Fenced),
                (state, _) => {
                    note_repeat(connection, asking, arrival, state).await?;
                    return Ok(RecordOutcome::Duplicate(state));
                }
            }
        }
    };
    let sql = "INSERT INTO relevo_inbox (consumer, message_id, replay, state, entered_at_ms) VALUES (?1, ?2, ?3, \
               'waiting', ?4) \
               ON CONFLICT (consumer, message_id, replay) DO UPDATE \
               SET state = 'waiting', unfinished_starts = 0, claim_token = NULL, claim_expires_at_ms = NULL";
    bind_dedup_id(sql, consumer, arrival.dedup_id).bind(now).execute(&mut *connection).await?;
    let not_before = match setback.action {
        InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } => Some(now + millis(after)),
        InboxFailureAction::DeadHold | InboxFailureAction::DeadContinue => None,
    };
    if setback.action != InboxFailureAction::DeadContinue {
        ensure_queue(connection, consumer, &arrival.queue, not_before.unwrap_or(now)).await?;
    }
    let no = append(connection, consumer, arrival, arrived).await?;
    let sql = "UPDATE relevo_inbox_retry_message SET unfinished_starts = ?2 WHERE ordinal = ?1";
    sqlx::query(sql).bind(no).bind(started).execute(&mut *connection).await?;
    record_attempt(connection, no, setback, not_before).await?;
    if let InboxFailureAction::Retry { .. } | InboxFailureAction::Postpone { .. } = setback.action {
        note(connection, asking, arrival, InboxState::Waiting).await?;
    } else {
        move_to_dead_letters(connection, asking, no, setback, now).await?;
    }
    if setback.action == InboxFailureAction::DeadHold {
        let sql =
            "UPDATE relevo_inbox_retry_queue SET next_at_ms = NULL, blocked = 1 WHERE consumer = ?1 AND queue = ?2";
        sqlx::query(sql).bind(consumer).bind(&*arrival.queue).execute(connection).await?;
    }
    Ok(RecordOutcome::Recorded)
}

/// Records a failure of the first message of a claimed queue.
pub(crate) async fn record_queued_failure(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    due: &ClaimedQueue,
    no: i64,
    setback: &InboxFailure,
) -> Result<RecordOutcome, Error> {
    let consumer = asking.consumer;
    if !is_claimed(connection, consumer, due, None).await?
        || first_ordinal(connection, consumer, &due.queue).await? != Some(no)
    {
        return Ok(RecordOutcome::Fenced);
    }
    let now = clock(connection).await?;
    let not_before = match setback.action {
        InboxFailureAction::Retry { after } => Some(now + millis(after)),
        InboxFailureAction::Postpone { .. } | InboxFailureAction::DeadHold | InboxFailureAction::DeadContinue => None,
    };
    record_attempt(connection, no, setback, not_before).await?;
    let next = match setback.action {
        InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } => {
            if asking.traced {
                let waiting = load_message(connection, no).await?;
                note(connection, asking, &waiting, InboxState::Waiting).await?;
            }
            Some(now + millis(after))
        }
        InboxFailureAction::DeadHold | InboxFailureAction::DeadContinue => {
            move_to_dead_letters(connection, asking, no, setback, now).await?;
            None
        }
    };
    if setback.action != InboxFailureAction::DeadContinue {
        // A queue that a dead letter blocks is never due, whatever else changes.
        let sql = "UPDATE relevo_inbox_retry_queue SET claim_token = NULL, claim_expires_at_ms = NULL, blocked = \
                   blocked OR ?3 IS NULL, \
                   next_at_ms = CASE WHEN NOT blocked THEN ?3 END WHERE consumer = ?1 AND queue = ?2";
        sqlx::query(sql).bind(consumer).bind(&*due.queue).bind(next).execute(connection).await?;
    }
    Ok(RecordOutcome::Recorded)
}

/// Records a failure in the row of the message. If `not_before` is `None`, the stored time is kept.
async fn record_attempt(
    connection: &mut SqliteConnection,
    no: i64,
    setback: &InboxFailure,
    not_before: Option<i64>,
) -> Result<(), Error> {
    // `Wait` defers a message that was not tried: the start of its claim is not counted, and the last error is kept.
    let sql = "UPDATE relevo_inbox_retry_message SET attempts = ?2, \
               class = CASE WHEN ?5 AND attempts > 0 THEN class ELSE ?3 END, \
               error = CASE WHEN ?5 AND attempts > 0 THEN error ELSE ?4 END, \
               unfinished_starts = CASE WHEN ?5 THEN max(unfinished_starts - 1, 0) ELSE 0 END, not_before_ms = coalesce(?6, not_before_ms) \
               WHERE ordinal = ?1";
    let update = sqlx::query(sql).bind(no).bind(i64::from(setback.attempts)).bind(setback.class);
    let update = update
        .bind(&setback.error)
        .bind(matches!(setback.action, InboxFailureAction::Postpone { .. }))
        .bind(not_before);
    update.execute(connection).await?;
    Ok(())
}

async fn load_message(connection: &mut SqliteConnection, no: i64) -> Result<InboxMessage, Error> {
    let sql = "SELECT id, replay, headers, payload, address, lane, broker_offset, correlation, queue \
               FROM relevo_inbox_retry_message WHERE ordinal = ?1";
    inbox_message(&sqlx::query(sql).bind(no).fetch_one(connection).await?, 0)
}

/// Moves a message of a retry queue to the dead letters. An existing dead letter of it becomes pending again.
async fn move_to_dead_letters(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    no: i64,
    setback: &InboxFailure,
    now: i64,
) -> Result<(), Error> {
    let dead = load_message(connection, no).await?;
    let sql = "INSERT INTO relevo_inbox_dead_letter (consumer, id, replay, queue, ordinal, headers, payload, \
               address, lane, broker_offset, \
               correlation, class, error, attempts, arrived_at_ms, backtrace, dead_at_ms, blocks_queue) \
               SELECT consumer, id, replay, queue, ordinal, headers, payload, address, lane, broker_offset, \
               correlation, class, error, \
               attempts, arrived_at_ms, ?2, ?3, ?4 FROM relevo_inbox_retry_message WHERE ordinal = ?1 \
               ON CONFLICT (consumer, id, replay) DO UPDATE SET state = 'dead', class = excluded.class, \
               error = excluded.error, backtrace = excluded.backtrace, attempts = excluded.attempts, \
               dead_at_ms = excluded.dead_at_ms, blocks_queue = excluded.blocks_queue";
    let insert = sqlx::query(sql).bind(no).bind(setback.backtrace.as_deref()).bind(now);
    insert.bind(setback.action == InboxFailureAction::DeadHold).execute(&mut *connection).await?;
    let delete = sqlx::query("DELETE FROM relevo_inbox_retry_message WHERE ordinal = ?1");
    delete.bind(no).execute(&mut *connection).await?;
    let sql = "UPDATE relevo_inbox SET state = 'dead' WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    bind_dedup_id(sql, asking.consumer, dead.dedup_id).execute(&mut *connection).await?;
    note(connection, asking, &dead, InboxState::Dead).await
}

/// Creates a queue that is due at this time, unless it exists.
pub(crate) async fn ensure_queue(
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
pub(crate) async fn is_claimed(
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
