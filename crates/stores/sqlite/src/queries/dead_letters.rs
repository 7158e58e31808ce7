//! Dead letters: operators mark them, and the owner of their shard processes the marks.

use jiff::Timestamp;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterContent, DeadLetterFilter, DeadLetterPage, DeadLetterState, DeadLetterSummary, MarkRequest,
    OperatorMark,
};
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::PublishFailure;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::inbox::hex_ids;
use crate::queries::{self, column, number, optional_time, time};

/// The condition of a filter. Parameters 1 to 11.
macro_rules! filter {
    () => {
        " destination = ?1 AND (?2 IS NULL OR hex(id) IN (SELECT value FROM json_each(?2))) \
         AND (?3 IS NULL OR key = ?3) AND (?4 IS NULL OR topic = ?4) AND (?5 IS NULL OR type = ?5) \
         AND (?6 IS NULL OR route = ?6) AND (?7 IS NULL OR class = ?7) \
         AND (?8 IS NULL OR state IN (SELECT value FROM json_each(?8))) \
         AND (?9 IS NULL OR dead_at_ms >= ?9) AND (?10 IS NULL OR dead_at_ms < ?10) \
         AND (?11 IS NULL OR instr(lower(error), lower(?11)) > 0) "
    };
}

macro_rules! summary {
    () => {
        "seq, id, topic, key, type, route, class, error, attempts, created_at_ms, dead_at_ms, redrives, state, \
         marked_at_ms, marked_by, reason"
    };
}

fn bind_filter<'q>(
    sql: &'static str,
    destination: &'q str,
    filter: &'q DeadLetterFilter,
) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(sql)
        .bind(destination)
        .bind(hex_ids(&filter.ids))
        .bind(filter.key.as_deref())
        .bind(filter.topic.as_deref())
        .bind(filter.kind.as_deref())
        .bind(filter.route.as_deref())
        .bind(filter.class.as_deref())
        .bind(state_names(&filter.states))
        .bind(filter.since.map(millis_rounded_up))
        .bind(filter.until.map(millis_rounded_up))
        .bind(filter.error.as_deref())
}

/// Returns states as a JSON array. `None` if there are none.
pub(crate) fn state_names(states: &[DeadLetterState]) -> Option<String> {
    let names: serde_json::Value = states.iter().map(|state| state.as_str()).collect();
    (!states.is_empty()).then(|| names.to_string())
}

/// The database stores milliseconds. A time between two of them is rounded up.
pub(crate) fn millis_rounded_up(at: Timestamp) -> i64 {
    -(-at.as_microsecond()).div_euclid(1000)
}

pub(crate) fn invalid_cursor(text: &str) -> Error {
    Error::Refused(format!("`{text}` is not a position in this list"))
}

pub(crate) fn parse_state(name: &str) -> Result<DeadLetterState, Error> {
    DeadLetterState::parse(name).ok_or_else(|| Error::unexpected_response("the state of a dead letter is unknown"))
}

/// Reads the columns of a mark: time, operator, reason.
pub(crate) fn operator_mark(row: &SqliteRow, first: usize) -> Result<Option<OperatorMark>, Error> {
    let parts = (optional_time(row, first)?, column(row, first + 1)?, column(row, first + 2)?);
    Ok(match parts {
        (Some(at), Some(by), Some(reason)) => Some(OperatorMark { at, by, reason }),
        _ => None,
    })
}

/// Lists dead letters after this position, oldest first.
pub(crate) async fn list(
    connection: &mut SqliteConnection,
    destination: &str,
    filter: &DeadLetterFilter,
    after: Option<&str>,
    limit: usize,
) -> Result<DeadLetterPage, Error> {
    check_destination(connection, destination).await?;
    let after: i64 = match after {
        Some(text) => text.parse().map_err(|_| invalid_cursor(text))?,
        None => i64::MIN,
    };
    let sql = concat!(
        "SELECT ",
        summary!(),
        " FROM relevo_dead_letter WHERE",
        filter!(),
        "AND seq > ?13 ORDER BY seq LIMIT ?12"
    );
    let select = bind_filter(sql, destination, filter).bind(i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX));
    let rows = select.bind(after).fetch_all(connection).await?;
    let shown = rows.get(..limit).unwrap_or(&rows);
    let letters = shown.iter().map(|row| summary(row, destination)).collect::<Result<_, _>>()?;
    let mut next = None;
    if let Some(last) = shown.last().filter(|_| rows.len() > limit) {
        next = Some(column::<i64>(last, 0)?.to_string());
    }
    Ok(DeadLetterPage { letters, next })
}

/// Loads dead letters with their messages, oldest first.
pub(crate) async fn get(
    connection: &mut SqliteConnection,
    destination: &str,
    filter: &DeadLetterFilter,
    limit: usize,
) -> Result<Vec<DeadLetter>, Error> {
    check_destination(connection, destination).await?;
    let sql = concat!(
        "SELECT ",
        summary!(),
        ", id, created_at_ms, topic, key, type, content_type, headers, payload FROM relevo_dead_letter WHERE",
        filter!(),
        "ORDER BY seq LIMIT ?12"
    );
    let select = bind_filter(sql, destination, filter).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let letter = |row: &SqliteRow| {
        let content = DeadLetterContent::Outbox(queries::message(row, 16)?);
        Ok(DeadLetter { summary: summary(row, destination)?, content })
    };
    select.fetch_all(connection).await?.iter().map(letter).collect()
}

fn summary(row: &SqliteRow, destination: &str) -> Result<DeadLetterSummary, Error> {
    Ok(DeadLetterSummary {
        owner: destination.to_owned(),
        id: queries::id(row, 1)?,
        replay: 0,
        topic: Some(column(row, 2)?),
        key: column(row, 3)?,
        kind: Some(column(row, 4)?),
        route: Some(column(row, 5)?),
        class: column(row, 6)?,
        error: column(row, 7)?,
        attempts: number(row, 8)?,
        entered_at: time(row, 9)?,
        dead_at: time(row, 10)?,
        redrives: number(row, 11)?,
        state: parse_state(column(row, 12)?)?,
        mark: operator_mark(row, 13)?,
    })
}

/// Returns an error if the destination does not exist.
async fn check_destination(connection: &mut SqliteConnection, destination: &str) -> Result<(), Error> {
    let select = sqlx::query("SELECT 1 FROM relevo_destination WHERE name = ?1").bind(destination);
    match select.fetch_optional(connection).await? {
        Some(_) => Ok(()),
        None => Err(queries::unknown_destination(destination)),
    }
}

/// Marks dead letters that have no mark yet and returns their number. A second call marks nothing.
pub(crate) async fn mark(
    connection: &mut SqliteConnection,
    destination: &str,
    request: &MarkRequest,
) -> Result<u64, Error> {
    check_destination(connection, destination).await?;
    let sql = concat!(
        "UPDATE relevo_dead_letter SET state = ?12, marked_by = ?13, reason = ?14, marked_at_ms = ",
        queries::now!(),
        " WHERE state = 'dead' AND",
        filter!()
    );
    let update = bind_filter(sql, destination, &request.filter).bind(request.action.pending_state().as_str());
    Ok(update.bind(&request.by).bind(&request.reason).execute(connection).await?.rows_affected())
}

/// Counts the dead letters that [`mark`] would mark.
pub(crate) async fn count_unmarked(
    connection: &mut SqliteConnection,
    destination: &str,
    filter: &DeadLetterFilter,
) -> Result<u64, Error> {
    check_destination(connection, destination).await?;
    let sql = concat!("SELECT count(*) FROM relevo_dead_letter WHERE state = 'dead' AND", filter!());
    number(&bind_filter(sql, destination, filter).fetch_one(connection).await?, 0)
}

/// Applies the marks of these shards.
pub(crate) async fn apply_marks(
    connection: &mut SqliteConnection,
    destination: &str,
    held: &[Lease],
    now: i64,
) -> Result<(), Error> {
    if held.is_empty() {
        return Ok(());
    }
    // Last first: each one is inserted at the front of its key, so that the first ends up before the others.
    let sql = "SELECT id, key, state FROM relevo_dead_letter \
               WHERE destination = ?1 AND state IN ('redriving', 'discarding') \
               AND (?2 IS NULL OR slot IN (SELECT value FROM json_each(?2))) ORDER BY seq DESC";
    let select = sqlx::query(sql).bind(destination).bind(queries::slots(held));
    for row in select.fetch_all(&mut *connection).await? {
        let (id, key): (Uuid, String) = (column(&row, 0)?, column(&row, 1)?);
        if column::<&str>(&row, 2)? == "redriving" {
            redrive(connection, destination, id, now).await?;
        } else {
            discard(connection, destination, &key, id, now).await?;
        }
    }
    Ok(())
}

async fn redrive(connection: &mut SqliteConnection, destination: &str, id: Uuid, now: i64) -> Result<(), Error> {
    let statements = [
        // A key that another dead letter blocks stays blocked. This message then waits at the front.
        "INSERT INTO relevo_parked_key AS k (destination, key, slot, state, attempts, next_at_ms, route, class, error, \
             since_ms) \
         SELECT destination, key, slot, 'retrying', 0, ?3, route, class, error, ?3 FROM relevo_dead_letter \
         WHERE destination = ?1 AND id = ?2 \
         ON CONFLICT (destination, key) DO UPDATE \
         SET state = 'retrying', attempts = 0, next_at_ms = ?3, address = NULL, dead_id = NULL \
         WHERE k.state <> 'dead' OR k.dead_id = ?2",
        "UPDATE relevo_destination SET first_ordinal = first_ordinal - 1 WHERE name = ?1 AND ?2 = ?2 AND ?3 = ?3",
        "INSERT INTO relevo_parked_message \
             (destination, key, ordinal, seq, slot, id, created_at_ms, topic, type, content_type, headers, payload) \
         SELECT l.destination, l.key, d.first_ordinal, l.seq, l.slot, l.id, l.created_at_ms, l.topic, l.type, \
             l.content_type, l.headers, l.payload \
         FROM relevo_dead_letter AS l JOIN relevo_destination AS d ON d.name = l.destination \
         WHERE l.destination = ?1 AND l.id = ?2 AND ?3 = ?3",
        "UPDATE relevo_dead_letter SET state = 'redriven', redrives = redrives + 1 \
         WHERE destination = ?1 AND id = ?2 AND ?3 = ?3",
    ];
    for sql in statements {
        sqlx::query(sql).bind(destination).bind(id).bind(now).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn discard(
    connection: &mut SqliteConnection,
    destination: &str,
    key: &str,
    id: Uuid,
    now: i64,
) -> Result<(), Error> {
    let update = sqlx::query("UPDATE relevo_dead_letter SET state = 'discarded' WHERE destination = ?1 AND id = ?2");
    update.bind(destination).bind(id).execute(&mut *connection).await?;
    let sql = "UPDATE relevo_parked_key SET state = 'retrying', attempts = 0, next_at_ms = ?4, dead_id = NULL \
               WHERE destination = ?1 AND key = ?2 AND state = 'dead' AND dead_id = ?3";
    sqlx::query(sql).bind(destination).bind(key).bind(id).bind(now).execute(&mut *connection).await?;
    unpark_if_empty(connection, destination, key).await?;
    Ok(())
}

/// Makes the next message of the key due now.
pub(crate) async fn make_due_now(
    connection: &mut SqliteConnection,
    destination: &str,
    key: &str,
    now: i64,
) -> Result<(), Error> {
    let sql = "UPDATE relevo_parked_key SET state = 'retrying', attempts = 0, next_at_ms = ?3, address = NULL, \
               dead_id = NULL WHERE destination = ?1 AND key = ?2";
    sqlx::query(sql).bind(destination).bind(key).bind(now).execute(connection).await?;
    Ok(())
}

/// Unparks a key whose queue is empty, unless a dead letter blocks it.
pub(crate) async fn unpark_if_empty(
    connection: &mut SqliteConnection,
    destination: &str,
    key: &str,
) -> Result<bool, Error> {
    let sql = "DELETE FROM relevo_parked_key WHERE destination = ?1 AND key = ?2 AND state <> 'dead' \
               AND NOT EXISTS (SELECT 1 FROM relevo_parked_message WHERE destination = ?1 AND key = ?2)";
    Ok(sqlx::query(sql).bind(destination).bind(key).execute(connection).await?.rows_affected() > 0)
}

/// Moves a parked message to the dead letters. An existing dead letter of it becomes dead again. Returns `None` if the
/// message is not parked.
pub(crate) async fn move_to_dead_letters(
    connection: &mut SqliteConnection,
    destination: &str,
    key: &str,
    ordinal: i64,
    failure: &PublishFailure,
    now: i64,
) -> Result<Option<Uuid>, Error> {
    let sql = "INSERT INTO relevo_dead_letter AS d (destination, id, seq, slot, created_at_ms, topic, key, type, \
               content_type, headers, payload, route, class, error, attempts, dead_at_ms) \
               SELECT destination, id, seq, slot, created_at_ms, topic, key, type, content_type, headers, payload, \
               ?4, ?5, ?6, ?7, ?8 FROM relevo_parked_message WHERE destination = ?1 AND key = ?2 AND ordinal = ?3 \
               ON CONFLICT (destination, id) DO UPDATE SET state = 'dead', class = excluded.class, \
               error = excluded.error, attempts = d.attempts + excluded.attempts, dead_at_ms = excluded.dead_at_ms \
               RETURNING id";
    let insert = sqlx::query(sql).bind(destination).bind(key).bind(ordinal).bind(&*failure.route).bind(failure.class);
    let insert = insert.bind(&failure.error).bind(i64::from(failure.attempts)).bind(now);
    let Some(row) = insert.fetch_optional(&mut *connection).await? else { return Ok(None) };
    let delete = sqlx::query("DELETE FROM relevo_parked_message WHERE destination = ?1 AND key = ?2 AND ordinal = ?3");
    delete.bind(destination).bind(key).bind(ordinal).execute(connection).await?;
    Ok(Some(column(&row, 0)?))
}
