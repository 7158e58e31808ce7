//! Dead letters of inboxes: list, redrive, discard.

use relevo_core::inbox::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterState, MarkRequest};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};

use super::retry::{delete_empty_queue, ensure_queue, queue_due_at};
use super::{hex_ids, inbox_message};
use crate::classify::Error;
use crate::queries::{clock, column, number, time};

/// The condition of a filter. Parameters 1 to 7.
macro_rules! filter {
    () => {
        " (?1 IS NULL OR consumer = ?1) AND (?2 IS NULL OR hex(id) IN (SELECT value FROM json_each(?2))) \
         AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR class = ?4) AND (?5 IS NULL OR state = ?5) \
         AND (?6 IS NULL OR dead_at_ms >= ?6) AND (?7 IS NULL OR dead_at_ms < ?7) "
    };
}

fn bind_filter<'q>(sql: &'static str, filter: &'q DeadLetterFilter) -> Query<'q, Sqlite, SqliteArguments> {
    // The database stores milliseconds. A time between two of them is rounded up.
    let millis = |at: jiff::Timestamp| -(-at.as_microsecond()).div_euclid(1000);
    sqlx::query(sql)
        .bind(filter.consumer.as_deref())
        .bind(hex_ids(&filter.ids))
        .bind(filter.queue.as_deref())
        .bind(filter.class.as_deref())
        .bind(filter.state.map(DeadLetterState::as_str))
        .bind(filter.since.map(millis))
        .bind(filter.until.map(millis))
}

/// Lists dead letters, oldest first.
pub(crate) async fn list(
    connection: &mut SqliteConnection,
    filter: &DeadLetterFilter,
    limit: usize,
) -> Result<Vec<DeadLetter>, Error> {
    let sql = concat!(
        "SELECT consumer, class, error, backtrace, attempts, arrived_at_ms, dead_at_ms, redrives, state, reason, \
         id, replay, headers, payload, address, lane, broker_offset, queue FROM relevo_inbox_dead_letter WHERE",
        filter!(),
        "ORDER BY dead_at_ms, ordinal LIMIT ?8"
    );
    let select = bind_filter(sql, filter).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    select.fetch_all(connection).await?.iter().map(dead_letter).collect()
}

fn dead_letter(row: &SqliteRow) -> Result<DeadLetter, Error> {
    Ok(DeadLetter {
        consumer: column(row, 0)?,
        class: column(row, 1)?,
        error: column(row, 2)?,
        backtrace: column(row, 3)?,
        attempts: number(row, 4)?,
        arrived_at: time(row, 5)?,
        dead_at: time(row, 6)?,
        redrives: number(row, 7)?,
        state: DeadLetterState::parse(column(row, 8)?)
            .ok_or_else(|| Error::unexpected_response("a dead letter's state is unknown"))?,
        reason: column(row, 9)?,
        message: inbox_message(row, 10)?,
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
pub(crate) async fn mark(
    connection: &mut SqliteConnection,
    state: DeadLetterState,
    request: &MarkRequest,
) -> Result<u64, Error> {
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
