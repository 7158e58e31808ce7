//! Messages whose handling failed: they wait in a retry queue, or become dead letters.

use relevo_core::inbox::{Arrival, Claim, Due, Held, Kept, Setback, State, Stop};
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use super::enter::holds;
use super::queues::{ensure, first, is_claimed};
use super::rows::{Asking, append, arrival, clock, note, note_repeat, of_entry, state};
use crate::classify::Error;
use crate::queries::{column, millis};

/// Appends a live message to its retry queue, or makes it a dead letter.
pub(super) async fn set_back(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    arrival: &Arrival,
    held: Option<&Held>,
    claim: Option<Claim>,
    setback: &Setback,
) -> Result<Kept, Error> {
    let consumer = asking.consumer;
    if !holds(connection, consumer, held).await? {
        return Ok(Kept::Lost);
    }
    let now = clock(connection).await?;
    let sql = "SELECT state, claim_token, entered_at_ms, claim_expires_at_ms, unfinished_starts FROM relevo_inbox \
               WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    let row = of_entry(sql, consumer, arrival.entry).fetch_optional(&mut *connection).await?;
    let started: i64 = row.as_ref().map_or(Ok(0), |row| column(row, 4))?;
    let arrived = match row {
        None if claim.is_none() => now,
        None => return Ok(Kept::Lost),
        Some(row) => {
            let token: Option<Uuid> = column(&row, 1)?;
            let until: Option<i64> = column(&row, 3)?;
            match (state(&row, 0)?, claim) {
                (State::Open, None) => column(&row, 2)?,
                // The claim has expired, so its caller is dead.
                (State::Calling, None) if until.is_none_or(|until| until <= now) => column(&row, 2)?,
                (State::Calling, None) => return Ok(Kept::Busy),
                (State::Calling, Some(claim)) if token == Some(claim.token) => column(&row, 2)?,
                (State::Open | State::Calling, _) => return Ok(Kept::Lost),
                (state, _) => {
                    note_repeat(connection, asking, arrival, state).await?;
                    return Ok(Kept::Repeat(state));
                }
            }
        }
    };
    let sql = "INSERT INTO relevo_inbox (consumer, message_id, replay, state, entered_at_ms) VALUES (?1, ?2, ?3, \
               'waiting', ?4) \
               ON CONFLICT (consumer, message_id, replay) DO UPDATE \
               SET state = 'waiting', unfinished_starts = 0, claim_token = NULL, claim_expires_at_ms = NULL";
    of_entry(sql, consumer, arrival.entry).bind(now).execute(&mut *connection).await?;
    let not_before = match setback.stop {
        Stop::Retry { after } | Stop::Wait { after } => Some(now + millis(after)),
        Stop::DeadHold | Stop::DeadContinue => None,
    };
    if setback.stop != Stop::DeadContinue {
        ensure(connection, consumer, &arrival.queue, not_before.unwrap_or(now)).await?;
    }
    let no = append(connection, consumer, arrival, arrived).await?;
    let sql = "UPDATE relevo_inbox_retry_message SET unfinished_starts = ?2 WHERE ordinal = ?1";
    sqlx::query(sql).bind(no).bind(started).execute(&mut *connection).await?;
    count(connection, no, setback, not_before).await?;
    if let Stop::Retry { .. } | Stop::Wait { .. } = setback.stop {
        note(connection, asking, arrival, State::Waiting).await?;
    } else {
        bury(connection, asking, no, setback, now).await?;
    }
    if setback.stop == Stop::DeadHold {
        let sql =
            "UPDATE relevo_inbox_retry_queue SET next_at_ms = NULL, blocked = 1 WHERE consumer = ?1 AND queue = ?2";
        sqlx::query(sql).bind(consumer).bind(&*arrival.queue).execute(connection).await?;
    }
    Ok(Kept::Kept)
}

/// Records a failure of the first message of a claimed queue.
pub(super) async fn set_back_due(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    due: &Due,
    no: i64,
    setback: &Setback,
) -> Result<Kept, Error> {
    let consumer = asking.consumer;
    if !is_claimed(connection, consumer, due, None).await? || first(connection, consumer, &due.queue).await? != Some(no)
    {
        return Ok(Kept::Lost);
    }
    let now = clock(connection).await?;
    let not_before = match setback.stop {
        Stop::Retry { after } => Some(now + millis(after)),
        Stop::Wait { .. } | Stop::DeadHold | Stop::DeadContinue => None,
    };
    count(connection, no, setback, not_before).await?;
    let next = match setback.stop {
        Stop::Retry { after } | Stop::Wait { after } => {
            if asking.traced {
                let waiting = message(connection, no).await?;
                note(connection, asking, &waiting, State::Waiting).await?;
            }
            Some(now + millis(after))
        }
        Stop::DeadHold | Stop::DeadContinue => {
            bury(connection, asking, no, setback, now).await?;
            None
        }
    };
    if setback.stop != Stop::DeadContinue {
        // A queue that a dead letter blocks is never due, whatever else changes.
        let sql = "UPDATE relevo_inbox_retry_queue SET claim_token = NULL, claim_expires_at_ms = NULL, blocked = \
                   blocked OR ?3 IS NULL, \
                   next_at_ms = CASE WHEN NOT blocked THEN ?3 END WHERE consumer = ?1 AND queue = ?2";
        sqlx::query(sql).bind(consumer).bind(&*due.queue).bind(next).execute(connection).await?;
    }
    Ok(Kept::Kept)
}

/// Records a failure in the row of the message. If `not_before` is `None`, the stored time is kept.
async fn count(
    connection: &mut SqliteConnection,
    no: i64,
    setback: &Setback,
    not_before: Option<i64>,
) -> Result<(), Error> {
    // `Wait` defers a message that was not tried: the start of its claim is not counted, and the last error is kept.
    let sql = "UPDATE relevo_inbox_retry_message SET attempts = ?2, \
               class = CASE WHEN ?5 AND attempts > 0 THEN class ELSE ?3 END, \
               error = CASE WHEN ?5 AND attempts > 0 THEN error ELSE ?4 END, \
               unfinished_starts = CASE WHEN ?5 THEN max(unfinished_starts - 1, 0) ELSE 0 END, not_before_ms = coalesce(?6, not_before_ms) \
               WHERE ordinal = ?1";
    let update = sqlx::query(sql).bind(no).bind(i64::from(setback.attempts)).bind(setback.class);
    let update = update.bind(&setback.error).bind(matches!(setback.stop, Stop::Wait { .. })).bind(not_before);
    update.execute(connection).await?;
    Ok(())
}

async fn message(connection: &mut SqliteConnection, no: i64) -> Result<Arrival, Error> {
    let sql = "SELECT id, replay, headers, payload, address, lane, broker_offset, correlation, queue \
               FROM relevo_inbox_retry_message WHERE ordinal = ?1";
    arrival(&sqlx::query(sql).bind(no).fetch_one(connection).await?, 0)
}

/// Moves a message of a retry queue to the dead letters. An existing dead letter of it becomes pending again.
async fn bury(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    no: i64,
    setback: &Setback,
    now: i64,
) -> Result<(), Error> {
    let dead = message(connection, no).await?;
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
    insert.bind(setback.stop == Stop::DeadHold).execute(&mut *connection).await?;
    let delete = sqlx::query("DELETE FROM relevo_inbox_retry_message WHERE ordinal = ?1");
    delete.bind(no).execute(&mut *connection).await?;
    let sql = "UPDATE relevo_inbox SET state = 'dead' WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    of_entry(sql, asking.consumer, dead.entry).execute(&mut *connection).await?;
    note(connection, asking, &dead, State::Dead).await
}
