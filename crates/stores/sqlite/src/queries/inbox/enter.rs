//! Inserting messages into the inbox: in a handler's transaction, and for calls to an external service.

use std::collections::BTreeSet;
use std::time::Duration;

use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::transactions::{Enter, EnterOutcome};
use relevo_core::inbox::{DedupId, InboxMessage, InboxState, LaneLease};
use serde_json::Value;
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use super::{append, bind_dedup_id, state};
use crate::classify::Error;
use crate::queries::{clock, column, millis, now, number};

/// Whether the owner still has the lane. No other member can acquire it before the transaction ends. True without a
/// lane.
pub(crate) async fn holds_lane(
    connection: &mut SqliteConnection,
    consumer: &str,
    lane: Option<&LaneLease>,
) -> Result<bool, Error> {
    let Some(lane) = lane else { return Ok(true) };
    let sql = "SELECT 1 FROM relevo_inbox_lane WHERE consumer = ?1 AND lane = ?2 AND epoch = ?3 AND owner = ?4";
    let select = sqlx::query(sql).bind(consumer).bind(lane.lane.name()).bind(lane.epoch).bind(lane.owner);
    Ok(select.fetch_optional(connection).await?.is_some())
}

/// Inserts messages in the given order. Returns `None` if the lane is lost.
pub(crate) async fn insert_messages(
    connection: &mut SqliteConnection,
    consumer: &str,
    request: Enter<'_>,
) -> Result<Option<Vec<EnterOutcome>>, Error> {
    if !holds_lane(connection, consumer, request.held).await? {
        return Ok(None);
    }
    let waiting = waiting_queues(connection, consumer, request.arrivals).await?;
    let mut outcomes = Vec::with_capacity(request.arrivals.len());
    for message in request.arrivals {
        // A duplicate in the same call finds the row of the first.
        outcomes.push(if !insert(connection, consumer, message.dedup_id).await? {
            let (state, _) = known_state(connection, consumer, message.dedup_id).await?;
            EnterOutcome::Duplicate(state)
        } else if waiting.contains(&*message.queue) {
            queue_behind(connection, consumer, message).await?;
            EnterOutcome::QueuedBehind
        } else {
            EnterOutcome::New
        });
    }
    Ok(Some(outcomes))
}

/// Returns those queues of the messages that are in the retry table.
async fn waiting_queues(
    connection: &mut SqliteConnection,
    consumer: &str,
    arrivals: &[InboxMessage],
) -> Result<BTreeSet<String>, Error> {
    let queues: Value = arrivals.iter().map(|message| &*message.queue).collect();
    let sql =
        "SELECT queue FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND queue IN (SELECT value FROM json_each(?2))";
    let rows = sqlx::query(sql).bind(consumer).bind(queues.to_string()).fetch_all(connection).await?;
    rows.iter().map(|row| column(row, 0)).collect()
}

/// Inserts a message as done. Returns false if it is known. A message that was only started, or whose call has expired,
/// counts as new.
async fn insert(connection: &mut SqliteConnection, consumer: &str, id: DedupId) -> Result<bool, Error> {
    let sql = concat!(
        "INSERT INTO relevo_inbox AS i (consumer, message_id, replay, entered_at_ms) VALUES (?1, ?2, ?3, ",
        now!(),
        ") ON CONFLICT (consumer, message_id, replay) DO UPDATE \
         SET state = 'done', claim_token = NULL, claim_expires_at_ms = NULL, entered_at_ms = excluded.entered_at_ms \
         WHERE i.state = 'started' OR (i.state = 'calling' AND i.claim_expires_at_ms <= excluded.entered_at_ms)"
    );
    Ok(bind_dedup_id(sql, consumer, id).execute(connection).await?.rows_affected() > 0)
}

/// Returns the state of a known message, and the expiry of its call.
async fn known_state(
    connection: &mut SqliteConnection,
    consumer: &str,
    id: DedupId,
) -> Result<(InboxState, Option<i64>), Error> {
    let sql =
        "SELECT state, claim_expires_at_ms FROM relevo_inbox WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    let row = bind_dedup_id(sql, consumer, id).fetch_one(connection).await?;
    Ok((state(&row, 0)?, column(&row, 1)?))
}

/// Appends an inserted message to its retry queue instead.
async fn queue_behind(connection: &mut SqliteConnection, consumer: &str, message: &InboxMessage) -> Result<(), Error> {
    let sql = "UPDATE relevo_inbox SET state = 'waiting', unfinished_starts = 0, claim_token = NULL, \
               claim_expires_at_ms = NULL \
               WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    bind_dedup_id(sql, consumer, message.dedup_id).execute(&mut *connection).await?;
    let now = clock(connection).await?;
    append(connection, consumer, message, now).await?;
    Ok(())
}

/// Changes an inserted message from done to skipped.
pub(crate) async fn mark_skipped(connection: &mut SqliteConnection, consumer: &str, id: DedupId) -> Result<(), Error> {
    let sql = "UPDATE relevo_inbox SET state = 'skipped' \
         WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3 AND state = 'done'";
    bind_dedup_id(sql, consumer, id).execute(connection).await?;
    Ok(())
}

/// Records that handling starts. Returns how often it has started. A message that is settled, waiting or in a call is
/// not changed.
pub(crate) async fn record_start(connection: &mut SqliteConnection, consumer: &str, id: DedupId) -> Result<u32, Error> {
    let sql = concat!(
        "INSERT INTO relevo_inbox AS i (consumer, message_id, replay, state, unfinished_starts, entered_at_ms) \
         VALUES (?1, ?2, ?3, 'started', 1, ",
        now!(),
        ") ON CONFLICT (consumer, message_id, replay) DO UPDATE SET unfinished_starts = i.unfinished_starts + 1 WHERE i.state = 'started'"
    );
    bind_dedup_id(sql, consumer, id).execute(&mut *connection).await?;
    let sql = "SELECT unfinished_starts FROM relevo_inbox WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3";
    number(&bind_dedup_id(sql, consumer, id).fetch_one(connection).await?, 0)
}

/// Handling ended without a result: resets the number of starts, and releases the claim of this token.
pub(crate) async fn end_attempt(
    connection: &mut SqliteConnection,
    consumer: &str,
    id: DedupId,
    claim: Option<CallClaim>,
) -> Result<(), Error> {
    let sql = "UPDATE relevo_inbox SET state = 'started', unfinished_starts = 0, claim_token = NULL, \
               claim_expires_at_ms = NULL \
               WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3 \
               AND CASE WHEN ?4 IS NULL THEN state = 'started' ELSE state = 'calling' AND claim_token = ?4 END";
    bind_dedup_id(sql, consumer, id).bind(claim.map(|claim| claim.token)).execute(connection).await?;
    Ok(())
}

/// Claims a message for a call to an external service.
pub(crate) async fn claim_call(
    connection: &mut SqliteConnection,
    consumer: &str,
    message: &InboxMessage,
    lane: Option<&LaneLease>,
    duration: Duration,
) -> Result<ClaimOutcome, Error> {
    if !holds_lane(connection, consumer, lane).await? {
        return Ok(ClaimOutcome::Fenced);
    }
    let now = clock(connection).await?;
    let token = Uuid::new_v4();
    let sql = "INSERT INTO relevo_inbox AS i (consumer, message_id, replay, state, unfinished_starts, claim_token, \
               claim_expires_at_ms, entered_at_ms) \
               VALUES (?1, ?2, ?3, 'calling', 1, ?4, ?5, ?6) ON CONFLICT (consumer, message_id, replay) DO UPDATE \
               SET state = 'calling', unfinished_starts = i.unfinished_starts + 1, claim_token = \
               excluded.claim_token, claim_expires_at_ms = excluded.claim_expires_at_ms \
               WHERE i.state = 'started' OR (i.state = 'calling' AND i.claim_expires_at_ms <= ?6) RETURNING unfinished_starts";
    let upsert = bind_dedup_id(sql, consumer, message.dedup_id).bind(token).bind(now + millis(duration)).bind(now);
    let Some(row) = upsert.fetch_optional(&mut *connection).await? else {
        let (state, expires_at) = known_state(connection, consumer, message.dedup_id).await?;
        if state == InboxState::Calling {
            let remaining = expires_at.map_or(0, |expires_at| expires_at - now).max(1);
            return Ok(ClaimOutcome::Busy(Duration::from_millis(remaining.cast_unsigned())));
        }
        return Ok(ClaimOutcome::Duplicate(state));
    };
    if !waiting_queues(connection, consumer, std::slice::from_ref(message)).await?.is_empty() {
        queue_behind(connection, consumer, message).await?;
        return Ok(ClaimOutcome::QueuedBehind);
    }
    Ok(ClaimOutcome::Claimed(CallClaim { token, unfinished_starts: number(&row, 0)? }))
}

/// Inserts the result of a call. Returns false if the lane or the claim is lost.
pub(crate) async fn complete_call(
    connection: &mut SqliteConnection,
    consumer: &str,
    message: &InboxMessage,
    lane: Option<&LaneLease>,
    claim: CallClaim,
) -> Result<bool, Error> {
    if !holds_lane(connection, consumer, lane).await? {
        return Ok(false);
    }
    let sql = concat!(
        "UPDATE relevo_inbox SET state = 'done', claim_token = NULL, claim_expires_at_ms = NULL, entered_at_ms = ",
        now!(),
        " WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3 AND state = 'calling' AND claim_token = ?4"
    );
    let update = bind_dedup_id(sql, consumer, message.dedup_id).bind(claim.token).execute(&mut *connection).await?;
    Ok(update.rows_affected() > 0)
}
