//! Messages whose handling failed: they wait in a retry queue, or become dead letters.

use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::{InboxMessage, InboxState, LaneLease};
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use super::enter::holds_lane;
use super::queues::{ensure_queue, first_ordinal, is_claimed};
use super::rows::{Asking, append, bind_dedup_id, clock, inbox_message, note, note_repeat, state};
use crate::classify::Error;
use crate::queries::{column, millis};

/// Appends a live message to its retry queue, or makes it a dead letter.
pub(super) async fn record_failure(
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
pub(super) async fn record_queued_failure(
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
