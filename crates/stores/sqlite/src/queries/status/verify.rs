//! Counts of messages by status, and checks of the tables.

use jiff::Timestamp;
use relevo_core::outbox::inspect::MessageStatus;
use relevo_core::outbox::search::TimeRange;
use sqlx::sqlite::SqliteConnection;

use super::Progress;
use crate::classify::Error;
use crate::queries::{COUNT_MAX, column, number, optional_time, read};

/// The messages of one status.
pub(crate) struct StatusCount {
    pub(crate) status: MessageStatus,
    pub(crate) count: u64,
    pub(crate) oldest: Option<Timestamp>,
}

/// Counts the messages of the log by status.
pub(crate) async fn count_by_status(
    connection: &mut SqliteConnection,
    destination: &str,
    shards: u16,
    range: TimeRange,
) -> Result<Vec<StatusCount>, Error> {
    let sql = "SELECT CASE \
                   WHEN p.ordinal IS NOT NULL THEN CASE \
                       WHEN k.state = 'dead' OR p.ordinal > (SELECT min(q.ordinal) FROM relevo_parked_message AS q \
                           WHERE q.destination = ?1 AND q.key = p.key) THEN 'waiting' \
                       ELSE k.state END \
                   WHEN d.state = 'discarded' THEN 'discarded' WHEN d.state IS NOT NULL THEN 'dead' \
                   WHEN m.seq <= max(s.from_seq, s.settled_seq) THEN 'published' ELSE 'pending' END AS status, \
               count(*), min(m.created_at_ms) \
               FROM relevo_message AS m \
               LEFT JOIN relevo_progress AS s ON s.destination = ?1 AND s.shard = m.slot % ?2 \
               LEFT JOIN relevo_parked_message AS p ON p.destination = ?1 AND p.seq = m.seq \
               LEFT JOIN relevo_parked_key AS k ON k.destination = ?1 AND k.key = p.key \
               LEFT JOIN relevo_dead_letter AS d ON d.destination = ?1 AND d.seq = m.seq AND d.state <> 'redriven' \
               WHERE (?3 IS NULL OR m.created_at_ms >= ?3) AND (?4 IS NULL OR m.created_at_ms < ?4) GROUP BY 1";
    let select = sqlx::query(sql).bind(destination).bind(i64::from(shards));
    let select = select.bind(range.since.map(Timestamp::as_millisecond));
    let rows = select.bind(range.until.map(Timestamp::as_millisecond)).fetch_all(connection).await?;
    let status_count = |row| {
        Ok(StatusCount {
            status: MessageStatus::parse(column(row, 0)?)
                .ok_or_else(|| Error::unexpected_response("a status is unknown"))?,
            count: number(row, 1)?,
            oldest: optional_time(row, 2)?,
        })
    };
    rows.iter().map(status_count).collect()
}

/// Counts the unsettled messages. Above [`COUNT_MAX`] it stops.
pub(crate) async fn count_unsettled(connection: &mut SqliteConnection, progress: &Progress) -> Result<i64, Error> {
    let mut count = 0;
    for (settled_seq, shards) in progress.groups() {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM relevo_message WHERE seq > ?1 \
                   AND (?2 IS NULL OR slot IN (SELECT value FROM json_each(?2))) LIMIT ?3)";
        let select = sqlx::query(sql).bind(settled_seq).bind(progress.slots(&shards)).bind(COUNT_MAX + 1 - count);
        count += column::<i64>(&select.fetch_one(&mut *connection).await?, 0)?;
        if count > COUNT_MAX {
            break;
        }
    }
    Ok(count)
}

/// Counts parked and dead messages, each up to [`COUNT_MAX`].
pub(crate) async fn count_parked_and_dead(
    connection: &mut SqliteConnection,
    destination: &str,
) -> Result<(i64, i64), Error> {
    let sql = "SELECT (SELECT count(*) FROM (SELECT 1 FROM relevo_parked_message WHERE destination = ?1 LIMIT ?2)), \
               (SELECT count(*) FROM (SELECT 1 FROM relevo_dead_letter \
                   WHERE destination = ?1 AND state = 'dead' LIMIT ?2))";
    let row = sqlx::query(sql).bind(destination).bind(COUNT_MAX).fetch_one(connection).await?;
    Ok((column(&row, 0)?, column(&row, 1)?))
}

/// Estimates from sequence numbers alone: each shard has about an equal share of the range.
pub(crate) async fn estimate_backlog(connection: &mut SqliteConnection, progress: &Progress) -> Result<i64, Error> {
    let newest = read::newest_seq(connection).await?;
    let behind = |(settled_seq, shards): (i64, Vec<u16>)| {
        (newest - settled_seq).max(0) * i64::try_from(shards.len()).unwrap_or(0)
    };
    Ok(progress.groups().into_iter().map(behind).sum::<i64>() / i64::from(progress.shards))
}

/// Finds states that must never occur.
pub(crate) async fn inconsistencies(
    connection: &mut SqliteConnection,
    destination: &str,
    shards: u16,
) -> Result<Vec<String>, Error> {
    let checks = [
        (
            "parked messages whose key is not parked",
            "SELECT count(*) FROM relevo_parked_message AS m WHERE m.destination = ?1 AND NOT EXISTS ( \
             SELECT 1 FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.key = m.key) AND ?2 > 0",
        ),
        (
            "parked keys with an empty queue",
            "SELECT count(*) FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.state <> 'dead' AND NOT EXISTS ( \
             SELECT 1 FROM relevo_parked_message AS m WHERE m.destination = ?1 AND m.key = k.key) AND ?2 > 0",
        ),
        (
            "keys that wait for a missing dead letter",
            "SELECT count(*) FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.state = 'dead' AND NOT EXISTS ( \
             SELECT 1 FROM relevo_dead_letter AS d WHERE d.destination = ?1 AND d.id = k.dead_id \
             AND d.state IN ('dead', 'redriving', 'discarding')) AND ?2 > 0",
        ),
        (
            "keys that wait for an address that is not held",
            "SELECT count(*) FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.state = 'held' AND NOT EXISTS ( \
             SELECT 1 FROM relevo_address_hold AS h WHERE h.destination = ?1 AND h.address = k.address) AND ?2 > 0",
        ),
        (
            "parked messages that are not settled",
            "SELECT count(*) FROM relevo_parked_message AS m JOIN relevo_progress AS p \
             ON p.destination = ?1 AND p.shard = m.slot % ?2 \
             WHERE m.destination = ?1 AND m.seq > max(p.from_seq, p.settled_seq)",
        ),
        (
            "shards without a lease or without progress",
            "SELECT 2 * ?2 - (SELECT count(*) FROM relevo_lease WHERE destination = ?1 AND shard < ?2) \
             - (SELECT count(*) FROM relevo_progress WHERE destination = ?1 AND shard < ?2)",
        ),
        (
            "shards that settled numbers which were never assigned",
            "SELECT count(*) FROM relevo_progress AS p WHERE p.destination = ?1 AND ?2 > 0 AND p.to_seq > coalesce(( \
             SELECT seq FROM sqlite_sequence WHERE name = 'relevo_message'), 0)",
        ),
    ];
    let mut found = Vec::new();
    for (text, sql) in checks {
        let row = sqlx::query(sql).bind(destination).bind(i64::from(shards)).fetch_one(&mut *connection).await?;
        let count: i64 = column(&row, 0)?;
        if count != 0 {
            found.push(format!("{count} {text}"));
        }
    }
    Ok(found)
}
