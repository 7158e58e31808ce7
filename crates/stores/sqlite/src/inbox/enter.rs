//! Inserting messages into the inbox: in a handler's transaction, and for calls to an external service.

use std::collections::BTreeSet;
use std::time::Duration;

use relevo_core::inbox::{Arrival, Claim, Claimed, Enter, Entered, Entry, Held, State};
use serde_json::Value;
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use super::rows::{Asking, append, clock, note, note_repeat, of_entry, state};
use crate::classify::Error;
use crate::queries::{column, millis, now, number};

/// Whether the owner still has the lane. No other member can acquire it before the transaction ends. True without a
/// lane.
pub(super) async fn holds(
    connection: &mut SqliteConnection,
    consumer: &str,
    held: Option<&Held>,
) -> Result<bool, Error> {
    let Some(held) = held else { return Ok(true) };
    let sql = "SELECT 1 FROM relevo_inbox_lane WHERE consumer = ?1 AND lane = ?2 AND epoch = ?3 AND owner = ?4";
    let select = sqlx::query(sql).bind(consumer).bind(held.lane.name()).bind(held.epoch).bind(held.owner);
    Ok(select.fetch_optional(connection).await?.is_some())
}

/// Inserts messages in the given order. Returns `None` if the lane is lost.
pub(super) async fn enter(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    enter: Enter<'_>,
) -> Result<Option<Vec<Entered>>, Error> {
    if !holds(connection, asking.consumer, enter.held).await? {
        return Ok(None);
    }
    let waiting = waiting_queues(connection, asking.consumer, enter.arrivals).await?;
    let mut entered = Vec::with_capacity(enter.arrivals.len());
    for arrival in enter.arrivals {
        // A duplicate in the same call finds the row of the first.
        entered.push(if !insert(connection, asking.consumer, arrival.entry).await? {
            let (state, _) = known(connection, asking.consumer, arrival.entry).await?;
            note_repeat(connection, asking, arrival, state).await?;
            Entered::Repeat(state)
        } else if waiting.contains(&*arrival.queue) {
            put_behind(connection, asking, arrival).await?;
            Entered::Behind
        } else {
            note(connection, asking, arrival, State::Done).await?;
            Entered::New
        });
    }
    Ok(Some(entered))
}

/// Returns those queues of the messages that are in the retry table.
async fn waiting_queues(
    connection: &mut SqliteConnection,
    consumer: &str,
    arrivals: &[Arrival],
) -> Result<BTreeSet<String>, Error> {
    let queues: Value = arrivals.iter().map(|arrival| &*arrival.queue).collect();
    let sql =
        "SELECT queue FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND queue IN (SELECT value FROM json_each(?2))";
    let rows = sqlx::query(sql).bind(consumer).bind(queues.to_string()).fetch_all(connection).await?;
    rows.iter().map(|row| column(row, 0)).collect()
}

/// Inserts a message as done. Returns false if it is known. A message that was only started, or whose call has expired,
/// counts as new.
async fn insert(connection: &mut SqliteConnection, consumer: &str, entry: Entry) -> Result<bool, Error> {
    let sql = concat!(
        "INSERT INTO relevo_inbox AS i (consumer, message_id, replay, entered_at_ms) VALUES (?1, ?2, ?3, ",
        now!(),
        ") ON CONFLICT (consumer, message_id, replay) DO UPDATE \
         SET state = 'done', claim_token = NULL, claim_expires_at_ms = NULL, entered_at_ms = excluded.entered_at_ms \
         WHERE i.state = 'started' OR (i.state = 'calling' AND i.claim_expires_at_ms <= excluded.entered_at_ms)"
    );
    Ok(of_entry(sql, consumer, entry).execute(connection).await?.rows_affected() > 0)
}

/// Returns the state of a known message, and the expiry of its call.
async fn known(connection: &mut SqliteConnection, consumer: &str, entry: Entry) -> Result<(State, Option<i64>), Error> {
    let sql =
        "SELECT state, claim_expires_at_ms FROM relevo_inbox WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    let row = of_entry(sql, consumer, entry).fetch_one(connection).await?;
    Ok((state(&row, 0)?, column(&row, 1)?))
}

/// Appends an inserted message to its retry queue instead.
async fn put_behind(connection: &mut SqliteConnection, asking: Asking<'_>, arrival: &Arrival) -> Result<(), Error> {
    let sql = "UPDATE relevo_inbox SET state = 'waiting', unfinished_starts = 0, claim_token = NULL, \
               claim_expires_at_ms = NULL \
               WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    of_entry(sql, asking.consumer, arrival.entry).execute(&mut *connection).await?;
    let now = clock(connection).await?;
    append(connection, asking.consumer, arrival, now).await?;
    note(connection, asking, arrival, State::Waiting).await
}

/// Changes an inserted message from done to skipped.
pub(super) async fn skip(connection: &mut SqliteConnection, consumer: &str, entry: Entry) -> Result<(), Error> {
    for sql in [
        "UPDATE relevo_inbox SET state = 'skipped' \
         WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3 AND state = 'done'",
        "UPDATE relevo_inbox_trace SET state = 'skipped' \
         WHERE consumer = ?1 AND id = ?2 AND replay = ?3 AND state = 'done'",
    ] {
        of_entry(sql, consumer, entry).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Records that handling starts. Returns how often it has started. A message that is settled, waiting or in a call is
/// not changed.
pub(super) async fn start(connection: &mut SqliteConnection, consumer: &str, entry: Entry) -> Result<u32, Error> {
    let sql = concat!(
        "INSERT INTO relevo_inbox AS i (consumer, message_id, replay, state, unfinished_starts, entered_at_ms) \
         VALUES (?1, ?2, ?3, 'started', 1, ",
        now!(),
        ") ON CONFLICT (consumer, message_id, replay) DO UPDATE SET unfinished_starts = i.unfinished_starts + 1 WHERE i.state = 'started'"
    );
    of_entry(sql, consumer, entry).execute(&mut *connection).await?;
    let sql = "SELECT unfinished_starts FROM relevo_inbox WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    number(&of_entry(sql, consumer, entry).fetch_one(connection).await?, 0)
}

/// Handling ended without a result: resets the number of starts, and releases the claim of this token.
pub(super) async fn ended(
    connection: &mut SqliteConnection,
    consumer: &str,
    entry: Entry,
    claim: Option<Claim>,
) -> Result<(), Error> {
    let sql = "UPDATE relevo_inbox SET state = 'started', unfinished_starts = 0, claim_token = NULL, \
               claim_expires_at_ms = NULL \
               WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3 \
               AND CASE WHEN ?4 IS NULL THEN state = 'started' ELSE state = 'calling' AND claim_token = ?4 END";
    of_entry(sql, consumer, entry).bind(claim.map(|claim| claim.token)).execute(connection).await?;
    Ok(())
}

/// Claims a message for a call to an external service.
pub(super) async fn claim(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    arrival: &Arrival,
    held: Option<&Held>,
    lasts: Duration,
) -> Result<Claimed, Error> {
    let consumer = asking.consumer;
    if !holds(connection, consumer, held).await? {
        return Ok(Claimed::Lost);
    }
    let now = clock(connection).await?;
    let token = Uuid::new_v4();
    let sql = "INSERT INTO relevo_inbox AS i (consumer, message_id, replay, state, unfinished_starts, claim_token, \
               claim_expires_at_ms, entered_at_ms) \
               VALUES (?1, ?2, ?3, 'calling', 1, ?4, ?5, ?6) ON CONFLICT (consumer, message_id, replay) DO UPDATE \
               SET state = 'calling', unfinished_starts = i.unfinished_starts + 1, claim_token = \
               excluded.claim_token, claim_expires_at_ms = excluded.claim_expires_at_ms \
               WHERE i.state = 'started' OR (i.state = 'calling' AND i.claim_expires_at_ms <= ?6) RETURNING unfinished_starts";
    let upsert = of_entry(sql, consumer, arrival.entry).bind(token).bind(now + millis(lasts)).bind(now);
    let Some(row) = upsert.fetch_optional(&mut *connection).await? else {
        let (state, until) = known(connection, consumer, arrival.entry).await?;
        if state == State::Calling {
            let rest = until.map_or(0, |until| until - now).max(1);
            return Ok(Claimed::Busy(Duration::from_millis(rest.cast_unsigned())));
        }
        note_repeat(connection, asking, arrival, state).await?;
        return Ok(Claimed::Repeat(state));
    };
    if !waiting_queues(connection, consumer, std::slice::from_ref(arrival)).await?.is_empty() {
        put_behind(connection, asking, arrival).await?;
        return Ok(Claimed::Behind);
    }
    Ok(Claimed::Mine(Claim { token, started: number(&row, 0)? }))
}

/// Inserts the result of a call. Returns false if the lane or the claim is lost.
pub(super) async fn enter_claimed(
    connection: &mut SqliteConnection,
    asking: Asking<'_>,
    arrival: &Arrival,
    held: Option<&Held>,
    claim: Claim,
) -> Result<bool, Error> {
    if !holds(connection, asking.consumer, held).await? {
        return Ok(false);
    }
    let sql = concat!(
        "UPDATE relevo_inbox SET state = 'done', claim_token = NULL, claim_expires_at_ms = NULL, entered_at_ms = ",
        now!(),
        " WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3 AND state = 'calling' AND claim_token = ?4"
    );
    let update = of_entry(sql, asking.consumer, arrival.entry).bind(claim.token).execute(&mut *connection).await?;
    if update.rows_affected() == 0 {
        return Ok(false);
    }
    note(connection, asking, arrival, State::Done).await?;
    Ok(true)
}
