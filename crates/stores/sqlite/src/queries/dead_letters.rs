//! Dead letters: operators mark them, and the owner of their shard processes the marks.

use relevo_core::dead_letters::{DeadLetter, DeadLetterFilter, MarkRequest, OperatorMark};
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::PublishFailure;
use serde_json::json;
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::{self, column, number, optional_time, time};

/// The condition of a filter. Parameters 1 to 4: destination, ids, key, route.
macro_rules! filter {
    () => {
        " destination = ?1 AND (?2 IS NULL OR hex(id) IN (SELECT value FROM json_each(?2))) \
         AND (?3 IS NULL OR key = ?3) AND (?4 IS NULL OR route = ?4) "
    };
}

fn id_filter(filter: &DeadLetterFilter) -> Option<String> {
    let hex = |id: &relevo_core::MessageId| id.as_uuid().simple().to_string().to_uppercase();
    (!filter.ids.is_empty()).then(|| json!(filter.ids.iter().map(hex).collect::<Vec<_>>()).to_string())
}

/// Lists dead letters in all states, oldest first.
pub(crate) async fn list(
    connection: &mut SqliteConnection,
    destination: &str,
    filter: &DeadLetterFilter,
    limit: usize,
) -> Result<Vec<DeadLetter>, Error> {
    let sql = concat!(
        "SELECT class, error, attempts, state, route, dead_at_ms, marked_at_ms, marked_by, reason, id, \
         created_at_ms, topic, key, type, content_type, headers, payload \
         FROM relevo_dead_letter WHERE ",
        filter!(),
        "AND (NOT ?6 OR state = 'dead') ORDER BY seq LIMIT ?5"
    );
    let select = sqlx::query(sql).bind(destination).bind(id_filter(filter)).bind(&filter.key).bind(&filter.route);
    let select = select.bind(i64::try_from(limit).unwrap_or(i64::MAX)).bind(filter.unmarked);
    let rows = select.fetch_all(connection).await?;
    let dead_letter = |row| {
        let marked = match (optional_time(row, 6)?, column(row, 7)?, column(row, 8)?) {
            (Some(at), Some(by), Some(reason)) => Some(OperatorMark { at, by, reason }),
            _ => None,
        };
        Ok(DeadLetter {
            class: column(row, 0)?,
            error: column(row, 1)?,
            attempts: number(row, 2)?,
            state: column(row, 3)?,
            route: column(row, 4)?,
            dead_at: time(row, 5)?,
            marked,
            message: queries::message(row, 9)?,
        })
    };
    rows.iter().map(dead_letter).collect()
}

/// Marks dead letters that have no mark yet and returns their number. A second call marks nothing.
pub(crate) async fn mark(
    connection: &mut SqliteConnection,
    destination: &str,
    state: &str,
    request: &MarkRequest,
) -> Result<u64, Error> {
    validate(request)?;
    let sql = concat!(
        "UPDATE relevo_dead_letter SET state = ?5, marked_by = ?6, reason = ?7, marked_at_ms = ",
        queries::now!(),
        " WHERE state = 'dead' AND",
        filter!()
    );
    let filter = &request.filter;
    let update = sqlx::query(sql).bind(destination).bind(id_filter(filter)).bind(&filter.key).bind(&filter.route);
    let update = update.bind(state).bind(&request.by).bind(&request.reason);
    Ok(update.execute(connection).await?.rows_affected())
}

fn validate(request: &MarkRequest) -> Result<(), Error> {
    if request.by.is_empty() || request.reason.is_empty() {
        return Err(Error::Refused("the requester and the reason of a mark are required".to_owned()));
    }
    Ok(())
}

/// Counts the dead letters that [`mark`] would mark.
pub(crate) async fn count_unmarked(
    connection: &mut SqliteConnection,
    destination: &str,
    request: &MarkRequest,
) -> Result<u64, Error> {
    validate(request)?;
    let filter = &request.filter;
    let sql = concat!("SELECT count(*) FROM relevo_dead_letter WHERE state = 'dead' AND", filter!());
    let count = sqlx::query(sql).bind(destination).bind(id_filter(filter)).bind(&filter.key).bind(&filter.route);
    number(&count.fetch_one(connection).await?, 0)
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
