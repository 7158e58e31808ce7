//! Compares committed with settled messages.

use jiff::Timestamp;
use relevo_core::outbox::inspect::{Backlog, MessageStatus};
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::search::{TimeRange, VerifyReport};
use sqlx::Row as _;
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::status::Progress;
use crate::queries::{self, column, number, optional_time};
use crate::store::Store;

/// A backlog is counted exactly up to this number.
const COUNT_MAX: i64 = 10_000;

/// The slots of these shards. `None` for all of them.
pub(crate) fn slots_of(progress: &Progress, shards: &[u16]) -> Option<String> {
    let lease = |shard: &u16| Lease { shard: *shard, shard_count: progress.shards, epoch: 0, owner: Uuid::nil() };
    queries::slots(&shards.iter().map(lease).collect::<Vec<_>>())
}

impl Store {
    /// The size of the backlog: exact up to 10 000, an estimate above.
    pub(crate) async fn count_backlog(&self) -> Result<Backlog, Error> {
        let mut session = self.read_connection.acquire().await?;
        let progress = Progress::load(&mut session, &self.destination).await?;
        let (mut pending, mut exact) = (0, true);
        for (upto, shards) in progress.groups() {
            let slots = slots_of(&progress, &shards);
            let sql = "SELECT count(*) FROM (SELECT 1 FROM relevo_message WHERE seq > ?1 \
                       AND (?2 IS NULL OR slot IN (SELECT value FROM json_each(?2))) LIMIT ?3)";
            let count = sqlx::query(sql).bind(upto).bind(slots).bind(COUNT_MAX + 1 - pending);
            pending += column::<i64>(&count.fetch_one(&mut *session).await?, 0)?;
            if pending > COUNT_MAX {
                exact = false;
                break;
            }
        }
        if !exact {
            pending = estimate(&mut session, &progress).await?;
        }
        let sql = "SELECT (SELECT count(*) FROM (SELECT 1 FROM relevo_parked_message WHERE destination = ?1 LIMIT ?2)), \
                   (SELECT count(*) FROM (SELECT 1 FROM relevo_dead_letter \
                       WHERE destination = ?1 AND state = 'dead' LIMIT ?2))";
        let row = sqlx::query(sql).bind(&self.destination).bind(COUNT_MAX).fetch_one(&mut *session).await?;
        session.release();
        Ok(Backlog { pending, exact, parked: column(&row, 0)?, dead: column(&row, 1)? })
    }

    pub(crate) async fn verify(&self, range: TimeRange) -> Result<VerifyReport, Error> {
        let mut session = self.read_connection.acquire().await?;
        let progress = Progress::load(&mut session, &self.destination).await?;
        let sql = "SELECT CASE \
                       WHEN p.ordinal IS NOT NULL THEN CASE \
                           WHEN k.state = 'dead' OR p.ordinal > (SELECT min(q.ordinal) FROM relevo_parked_message AS q \
                               WHERE q.destination = ?1 AND q.key = p.key) THEN 'behind' \
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
        let select = sqlx::query(sql).bind(&self.destination).bind(i64::from(progress.shards));
        let select = select.bind(range.since.map(Timestamp::as_millisecond));
        let rows = select.bind(range.until.map(Timestamp::as_millisecond)).fetch_all(&mut *session).await?;
        let mut verified = VerifyReport::default();
        let mut counts = MessageStatus::ALL.map(|status| (status, 0));
        for row in &rows {
            let status = MessageStatus::parse(column(row, 0)?)
                .ok_or_else(|| Error::unexpected_response("a status is not known"))?;
            let count: u64 = number(row, 1)?;
            verified.committed += count;
            if let Some(found) = counts.iter_mut().find(|(known, _)| *known == status) {
                found.1 = count;
            }
            if status == MessageStatus::Pending {
                verified.oldest_unsettled = optional_time(row, 2)?;
            }
        }
        verified.by_status = counts.to_vec();
        verified.inconsistencies = inconsistencies(&mut session, &self.destination, progress.shards).await?;
        session.release();
        Ok(verified)
    }
}

/// Estimates from sequence numbers alone: each shard has about an equal share of the range.
async fn estimate(connection: &mut SqliteConnection, progress: &Progress) -> Result<i64, Error> {
    let newest = sqlx::query("SELECT coalesce(max(seq), 0) FROM relevo_message").fetch_one(connection).await?;
    let newest: i64 = column(&newest, 0)?;
    let behind = |(upto, shards): (i64, Vec<u16>)| (newest - upto).max(0) * i64::try_from(shards.len()).unwrap_or(0);
    Ok(progress.groups().into_iter().map(behind).sum::<i64>() / i64::from(progress.shards))
}

/// Finds states that must never occur.
async fn inconsistencies(
    connection: &mut SqliteConnection,
    destination: &str,
    shards: u16,
) -> Result<Vec<String>, Error> {
    let checks = [
        (
            "messages wait for a key that is not parked",
            "SELECT count(*) FROM relevo_parked_message AS m WHERE m.destination = ?1 AND NOT EXISTS ( \
             SELECT 1 FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.key = m.key) AND ?2 > 0",
        ),
        (
            "keys wait with nothing in their queue",
            "SELECT count(*) FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.state <> 'dead' AND NOT EXISTS ( \
             SELECT 1 FROM relevo_parked_message AS m WHERE m.destination = ?1 AND m.key = k.key) AND ?2 > 0",
        ),
        (
            "keys wait for a dead letter that is not there",
            "SELECT count(*) FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.state = 'dead' AND NOT EXISTS ( \
             SELECT 1 FROM relevo_dead_letter AS d WHERE d.destination = ?1 AND d.id = k.dead_id \
             AND d.state IN ('dead', 'redriving', 'discarding')) AND ?2 > 0",
        ),
        (
            "keys wait for an address that is not held",
            "SELECT count(*) FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.state = 'held' AND NOT EXISTS ( \
             SELECT 1 FROM relevo_address_hold AS h WHERE h.destination = ?1 AND h.address = k.address) AND ?2 > 0",
        ),
        (
            "messages are parked and not settled",
            "SELECT count(*) FROM relevo_parked_message AS m JOIN relevo_progress AS p \
             ON p.destination = ?1 AND p.shard = m.slot % ?2 \
             WHERE m.destination = ?1 AND m.seq > max(p.from_seq, p.settled_seq)",
        ),
        (
            "shards have no lease or no progress",
            "SELECT 2 * ?2 - (SELECT count(*) FROM relevo_lease WHERE destination = ?1 AND shard < ?2) \
             - (SELECT count(*) FROM relevo_progress WHERE destination = ?1 AND shard < ?2)",
        ),
        (
            "shards have settled numbers that were never given out",
            "SELECT count(*) FROM relevo_progress AS p WHERE p.destination = ?1 AND ?2 > 0 AND p.to_seq > coalesce(( \
             SELECT seq FROM sqlite_sequence WHERE name = 'relevo_message'), 0)",
        ),
    ];
    let mut found = Vec::new();
    for (what, sql) in checks {
        let row = sqlx::query(sql).bind(destination).bind(i64::from(shards)).fetch_one(&mut *connection).await?;
        let count: i64 = row.try_get(0)?;
        if count != 0 {
            found.push(format!("{count} {what}"));
        }
    }
    Ok(found)
}
