//! Reads of the log: pages for relays and for replays, and scheduled messages that are due.

use jiff::Timestamp;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::PageRequest;
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::replay_source::{LogBounds, OutboxRouting, ReplayFilter, ReplayPage, ReplayReadRequest};
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::{self, column, now, number};

/// Maximum number of scheduled messages that one transaction moves into the log.
const SCHEDULED_BATCH: i64 = 1000;
/// Maximum number of messages that one call of a replay source scans.
const REPLAY_CHUNK: i64 = 5_000;

/// Fails if the file is read-only. It changes nothing, but on a read-only file `BEGIN` alone succeeds as a read.
pub(crate) async fn check_writable(connection: &mut SqliteConnection) -> Result<(), Error> {
    sqlx::query("UPDATE relevo_settings SET only_row = 1 WHERE false").execute(connection).await?;
    Ok(())
}

/// Returns the highest number in the log, or zero.
pub(crate) async fn newest_seq(connection: &mut SqliteConnection) -> Result<i64, Error> {
    let newest = sqlx::query("SELECT coalesce(max(seq), 0) FROM relevo_message").fetch_one(connection).await?;
    column(&newest, 0)
}

/// Returns the highest number in the log, and whether a scheduled message is due. It costs two B-tree lookups.
pub(crate) async fn newest_and_due(connection: &mut SqliteConnection) -> Result<(i64, bool), Error> {
    let sql = concat!(
        "SELECT coalesce((SELECT max(seq) FROM relevo_message), 0), \
         coalesce((SELECT min(due_at_ms) FROM relevo_scheduled) <= ",
        now!(),
        ", 0)"
    );
    let row = sqlx::query(sql).fetch_one(connection).await?;
    Ok((column(&row, 0)?, column(&row, 1)?))
}

/// Moves due scheduled messages to the log in order of their due times.
pub(crate) async fn move_due_scheduled(connection: &mut SqliteConnection) -> Result<(), Error> {
    let now = queries::clock(connection).await?;
    for sql in [
        "INSERT INTO relevo_message (slot, id, created_at_ms, topic, key, type, content_type, headers, payload) \
         SELECT slot, id, ?1, topic, key, type, content_type, headers, payload FROM relevo_scheduled \
         WHERE due_at_ms <= ?1 ORDER BY due_at_ms, ordinal LIMIT ?2",
        "DELETE FROM relevo_scheduled WHERE ordinal IN ( \
         SELECT ordinal FROM relevo_scheduled WHERE due_at_ms <= ?1 ORDER BY due_at_ms, ordinal LIMIT ?2)",
    ] {
        sqlx::query(sql).bind(now).bind(SCHEDULED_BATCH).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Reads the messages of a window after a position in it. Returns whether there may be more.
pub(crate) async fn page(
    connection: &mut SqliteConnection,
    request: &PageRequest<'_>,
    leases: &[Lease],
    start: &Position,
) -> Result<(Vec<LogEntry>, bool), Error> {
    let limit = request.messages_max.max(1);
    // Payloads up to this length cannot exceed the byte limit, even in a full page. Larger ones are left out, so that
    // the size of the page is limited before it is known.
    let small = i64::try_from((request.bytes_max / limit).max(1)).unwrap_or(i64::MAX);
    let sql = "SELECT seq, slot, id, created_at_ms, topic, key, type, content_type, headers, \
               CASE WHEN length(payload) <= ?4 THEN payload END, length(payload) FROM relevo_message \
               WHERE seq > ?1 AND seq <= ?2 AND (?5 IS NULL OR slot IN (SELECT value FROM json_each(?5))) \
               ORDER BY seq LIMIT ?3";
    let select = sqlx::query(sql).bind(queries::settled_through(start)).bind(start.to_tick());
    let select = select.bind(i64::try_from(limit).unwrap_or(i64::MAX)).bind(small).bind(queries::slots(leases));
    let rows = select.fetch_all(&mut *connection).await?;
    let mut entries = Vec::with_capacity(rows.len());
    let mut bytes = 0;
    for row in &rows {
        if bytes >= request.bytes_max {
            break;
        }
        let length: i64 = column(row, 10)?;
        bytes += usize::try_from(length).unwrap_or(0);
        let mut entry = queries::entry(row, 0)?;
        if length > small {
            entry = full_entry(connection, entry.seq).await?;
        }
        entries.push(entry);
    }
    let is_cut = rows.len() >= limit || entries.len() < rows.len();
    Ok((entries, is_cut))
}

async fn full_entry(connection: &mut SqliteConnection, seq: i64) -> Result<LogEntry, Error> {
    let sql = "SELECT seq, slot, id, created_at_ms, topic, key, type, content_type, headers, payload \
               FROM relevo_message WHERE seq = ?1";
    queries::entry(&sqlx::query(sql).bind(seq).fetch_one(connection).await?, 0)
}

/// Returns the first and the last number of the log, or `None` if the log is empty.
pub(crate) async fn log_bounds(connection: &mut SqliteConnection) -> Result<Option<LogBounds>, Error> {
    let row = sqlx::query("SELECT min(seq), max(seq) FROM relevo_message").fetch_one(connection).await?;
    let bounds = column::<Option<i64>>(&row, 0)?.zip(column::<Option<i64>>(&row, 1)?);
    Ok(bounds.map(|(first, last)| LogBounds { first: first.unsigned_abs(), last: last.unsigned_abs() }))
}

/// Reads the next page of a replay. Without `payload`, the messages have none.
pub(crate) async fn replay_page(
    connection: &mut SqliteConnection,
    routing: &OutboxRouting,
    filter: &ReplayFilter,
    request: ReplayReadRequest,
    payload: bool,
) -> Result<ReplayPage, Error> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (low, high) = (signed(filter.start_after(request.after)), filter.to.map_or(i64::MAX, signed));
    let sql = "SELECT max(seq), count(*) FROM \
               (SELECT seq FROM relevo_message WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3)";
    let row = sqlx::query(sql).bind(low).bind(high).bind(REPLAY_CHUNK).fetch_one(&mut *connection).await?;
    let Some(end) = column::<Option<i64>>(&row, 0)? else {
        return Ok(ReplayPage { messages: Vec::new(), next: request.after.max(low.unsigned_abs()), ended: true });
    };
    let is_last = column::<i64>(&row, 1)? < REPLAY_CHUNK;
    // A running sum of the payloads before each row stops the page at its byte limit. Larger payloads are not read.
    let sql = "SELECT seq, id, created_at_ms, topic, key, type, content_type, headers, CASE WHEN ?10 THEN payload END, size \
               FROM (SELECT *, sum(size) OVER (ORDER BY seq) - size AS before FROM ( \
                   SELECT *, octet_length(payload) * ?10 AS size FROM relevo_message WHERE seq > ?1 AND seq <= ?2 \
                   AND (?3 IS NULL OR key = ?3) AND (?4 IS NULL OR topic = ?4) AND (?5 IS NULL OR type = ?5) \
                   AND (?6 IS NULL OR created_at_ms >= ?6) AND (?7 IS NULL OR created_at_ms < ?7) \
                   ORDER BY seq LIMIT ?8)) WHERE before < ?9 ORDER BY seq";
    // The log stores whole milliseconds, so a bound is rounded up.
    let ceiling = |at: Timestamp| -(-at.as_microsecond()).div_euclid(1000);
    let (limit, bytes) = (request.limit.max(1), request.bytes.max(1));
    let bounded = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let select = sqlx::query(sql).bind(low).bind(end).bind(&filter.key).bind(&filter.topic).bind(&filter.kind);
    let select = select.bind(filter.since.map(ceiling)).bind(filter.until.map(ceiling));
    let select = select.bind(bounded(limit)).bind(bounded(bytes)).bind(payload);
    let rows = select.fetch_all(connection).await?;
    let (mut messages, mut size, mut last) = (Vec::new(), 0, low);
    for row in &rows {
        last = column(row, 0)?;
        size += number::<usize>(row, 9)?;
        let logged = routing.to_log_message(last, queries::message(row, 1)?);
        messages.extend(logged.filter(|logged| filter.matches(logged)));
    }
    let is_cut = rows.len() >= limit || size >= bytes;
    let (next, ended) = if is_cut { (last, false) } else { (end, is_last) };
    Ok(ReplayPage { messages, next: next.unsigned_abs(), ended })
}
