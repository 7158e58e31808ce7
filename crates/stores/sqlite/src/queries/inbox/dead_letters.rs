//! Dead letters of inboxes: list, redrive, discard.

use bytes::Bytes;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterContent, DeadLetterFilter, DeadLetterPage, DeadLetterState, DeadLetterSummary, MarkRequest,
};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};

use super::retry::{delete_empty_queue, ensure_queue, queue_due_at};
use super::{hex_ids, inbox_message, raw_message};
use crate::classify::Error;
use crate::queries::dead_letters::{invalid_cursor, millis_rounded_up, operator_mark, parse_state, state_names};
use crate::queries::{self, clock, column, number, time};

/// The condition of a filter. Parameters 1 to 8.
macro_rules! filter {
    () => {
        " (?1 IS NULL OR consumer = ?1) AND (?2 IS NULL OR hex(id) IN (SELECT value FROM json_each(?2))) \
         AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR class = ?4) \
         AND (?5 IS NULL OR state IN (SELECT value FROM json_each(?5))) \
         AND (?6 IS NULL OR dead_at_ms >= ?6) AND (?7 IS NULL OR dead_at_ms < ?7) \
         AND (?8 IS NULL OR instr(lower(error), lower(?8)) > 0) "
    };
}

macro_rules! summary {
    () => {
        "consumer, id, replay, queue, class, error, attempts, arrived_at_ms, dead_at_ms, redrives, state, \
         marked_at_ms, marked_by, reason, ordinal, headers"
    };
}

fn bind_filter<'q>(sql: &'static str, filter: &'q DeadLetterFilter) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(sql)
        .bind(filter.owner_name())
        .bind(hex_ids(&filter.ids))
        .bind(filter.key.as_deref())
        .bind(filter.class.as_deref())
        .bind(state_names(&filter.states))
        .bind(filter.since.map(millis_rounded_up))
        .bind(filter.until.map(millis_rounded_up))
        .bind(filter.error.as_deref())
}

/// Lists dead letters after this position, oldest first.
pub(crate) async fn list(
    connection: &mut SqliteConnection,
    filter: &DeadLetterFilter,
    after: Option<&str>,
    limit: usize,
) -> Result<DeadLetterPage, Error> {
    let position = |text: &str| text.split_once('/').and_then(|(at, no)| Some((at.parse().ok()?, no.parse().ok()?)));
    let (after_ms, after_ordinal) = match after {
        Some(text) => position(text).ok_or_else(|| invalid_cursor(text))?,
        None => (i64::MIN, i64::MIN),
    };
    let sql = concat!(
        "SELECT ",
        summary!(),
        " FROM relevo_inbox_dead_letter WHERE",
        filter!(),
        "AND (dead_at_ms, ordinal) > (?10, ?11) ORDER BY dead_at_ms, ordinal LIMIT ?9"
    );
    let select = bind_filter(sql, filter).bind(i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX));
    let rows = select.bind(after_ms).bind(after_ordinal).fetch_all(connection).await?;
    let shown = rows.get(..limit).unwrap_or(&rows);
    let letters = shown.iter().map(summary).collect::<Result<_, _>>()?;
    let mut next = None;
    if let Some(last) = shown.last().filter(|_| rows.len() > limit) {
        next = Some(format!("{}/{}", column::<i64>(last, 8)?, column::<i64>(last, 14)?));
    }
    Ok(DeadLetterPage { letters, next })
}

/// Loads dead letters with their messages, oldest first.
pub(crate) async fn get(
    connection: &mut SqliteConnection,
    filter: &DeadLetterFilter,
    limit: usize,
) -> Result<Vec<DeadLetter>, Error> {
    let sql = concat!(
        "SELECT ",
        summary!(),
        ", backtrace, id, replay, headers, payload, address, lane, broker_offset, queue, attempts \
         FROM relevo_inbox_dead_letter WHERE",
        filter!(),
        "ORDER BY dead_at_ms, ordinal LIMIT ?9"
    );
    let select = bind_filter(sql, filter).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let letter = |row: &SqliteRow| {
        let content = DeadLetterContent::Inbox { message: inbox_message(row, 17)?, backtrace: column(row, 16)? };
        Ok(DeadLetter { summary: summary(row)?, content })
    };
    select.fetch_all(connection).await?.iter().map(letter).collect()
}

fn summary(row: &SqliteRow) -> Result<DeadLetterSummary, Error> {
    let received = raw_message(row, 15, Bytes::new())?.decode().ok().map(|received| received.message);
    Ok(DeadLetterSummary {
        owner: column(row, 0)?,
        id: queries::id(row, 1)?,
        replay: number(row, 2)?,
        topic: received.as_ref().map(|message| message.topic.to_string()),
        key: column(row, 3)?,
        kind: received.as_ref().map(|message| message.kind.to_string()),
        route: None,
        class: column(row, 4)?,
        error: column(row, 5)?,
        attempts: number(row, 6)?,
        entered_at: time(row, 7)?,
        dead_at: time(row, 8)?,
        redrives: number(row, 9)?,
        state: parse_state(column(row, 10)?)?,
        mark: operator_mark(row, 11)?,
    })
}

/// Counts the unmarked dead letters that match a filter.
pub(crate) async fn count(connection: &mut SqliteConnection, filter: &DeadLetterFilter) -> Result<u64, Error> {
    let sql = concat!("SELECT count(*) FROM relevo_inbox_dead_letter WHERE state = 'dead' AND", filter!());
    number(&bind_filter(sql, filter).fetch_one(connection).await?, 0)
}

/// An unmarked dead letter that a mark changes.
struct DeadLetterRow {
    row: i64,
    consumer: String,
    queue: String,
    ordinal: i64,
    blocks_queue: bool,
}

/// Redrives or discards unmarked dead letters. Returns their number.
pub(crate) async fn mark(connection: &mut SqliteConnection, request: &MarkRequest) -> Result<u64, Error> {
    let state = request.action.final_state();
    let sql = concat!(
        "SELECT rowid, consumer, queue, ordinal, blocks_queue FROM relevo_inbox_dead_letter WHERE state = 'dead' AND",
        filter!(),
        "ORDER BY ordinal"
    );
    let rows = bind_filter(sql, &request.filter).fetch_all(&mut *connection).await?;
    let now = clock(connection).await?;
    for (position, row) in (0..).zip(&rows) {
        let dead_letter = DeadLetterRow {
            row: column(row, 0)?,
            consumer: column(row, 1)?,
            queue: column(row, 2)?,
            ordinal: column(row, 3)?,
            blocks_queue: column(row, 4)?,
        };
        let sql = "UPDATE relevo_inbox_dead_letter SET state = ?2, blocks_queue = 0, redrives = redrives + (?2 = \
                   'redriven'), reason = ?3, \
                   marked_by = ?4, marked_at_ms = ?5 WHERE rowid = ?1";
        let update =
            sqlx::query(sql).bind(dead_letter.row).bind(state.as_str()).bind(&request.reason).bind(&request.by);
        update.bind(now).execute(&mut *connection).await?;
        if state == DeadLetterState::Redriven {
            redrive(
                connection,
                &dead_letter,
                now,
                now + request.rate_per_second.map_or(0, |rate| delay_at_rate(position, rate)),
            )
            .await?;
        } else if dead_letter.blocks_queue && unblock_queue(connection, &dead_letter, now).await? {
            delete_empty_queue(connection, &dead_letter.consumer, &dead_letter.queue).await?;
        }
    }
    Ok(rows.len() as u64)
}

/// The delay of the dead letter at this position, for a rate per second.
fn delay_at_rate(position: i64, rate: u32) -> i64 {
    position.saturating_mul(1000) / i64::from(rate.max(1))
}

/// Puts a dead letter back at its old position in its queue, before all later messages.
async fn redrive(
    connection: &mut SqliteConnection,
    dead_letter: &DeadLetterRow,
    now: i64,
    at: i64,
) -> Result<(), Error> {
    ensure_queue(connection, &dead_letter.consumer, &dead_letter.queue, at).await?;
    for sql in [
        "INSERT INTO relevo_inbox_retry_message (ordinal, consumer, queue, id, replay, headers, payload, address, \
             lane, broker_offset, redriven, class, error, arrived_at_ms, not_before_ms) \
         SELECT ordinal, consumer, queue, id, replay, headers, payload, address, lane, broker_offset, \
         1, class, error, \
             arrived_at_ms, ?2 FROM relevo_inbox_dead_letter WHERE rowid = ?1",
        "UPDATE relevo_inbox SET state = 'redriven', unfinished_starts = 0 WHERE state = 'dead' AND (consumer, \
         message_id, replay) IN ( \
         SELECT consumer, id, replay FROM relevo_inbox_dead_letter WHERE rowid = ?1)",
    ] {
        sqlx::query(sql).bind(dead_letter.row).bind(at).execute(&mut *connection).await?;
    }
    if unblock_queue(connection, dead_letter, now).await? {
        // A worker that has claimed the queue finds the new head and releases the queue. Its claim stays until then, so
        // that no other worker makes the same call. If this dead letter is not the head, nothing changes.
        let sql = "UPDATE relevo_inbox_retry_queue SET next_at_ms = ?4 WHERE consumer = ?1 AND queue = ?2 AND NOT \
                   EXISTS (SELECT 1 FROM relevo_inbox_retry_message \
                   WHERE consumer = ?1 AND queue = ?2 AND ordinal < ?3)";
        let update = sqlx::query(sql).bind(&dead_letter.consumer).bind(&dead_letter.queue).bind(dead_letter.ordinal);
        update.bind(at).execute(connection).await?;
    }
    Ok(())
}

/// Unblocks a queue that this dead letter blocked. The queue is then due when its first message is. Returns false if another
/// dead letter still blocks it.
async fn unblock_queue(
    connection: &mut SqliteConnection,
    dead_letter: &DeadLetterRow,
    now: i64,
) -> Result<bool, Error> {
    let sql = "SELECT 1 FROM relevo_inbox_dead_letter WHERE consumer = ?1 AND queue = ?2 AND blocks_queue";
    let blocking =
        sqlx::query(sql).bind(&dead_letter.consumer).bind(&dead_letter.queue).fetch_optional(&mut *connection).await?;
    if blocking.is_some() {
        return Ok(false);
    }
    let next = queue_due_at(connection, &dead_letter.consumer, &dead_letter.queue, now).await?;
    let sql = "UPDATE relevo_inbox_retry_queue SET next_at_ms = ?3, blocked = 0 WHERE consumer = ?1 AND queue = ?2 AND blocked";
    sqlx::query(sql).bind(&dead_letter.consumer).bind(&dead_letter.queue).bind(next).execute(connection).await?;
    Ok(true)
}
