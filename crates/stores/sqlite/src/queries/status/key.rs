//! Statements that explain why a key waits.

use std::time::Duration;

use jiff::Timestamp;
use relevo_core::outbox::inspect::{MessageSummary, ShardInfo, WaitCause};
use relevo_core::outbox::leases::HeldAddress;
use relevo_core::slot::slot_of;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::{Progress, StatusQuery, scheduled_summary};
use crate::classify::Error;
use crate::queries::{self, COUNT_MAX, column, now, number, optional_time, time};

/// Why a key waits.
pub(crate) struct KeyWait {
    pub(crate) cause: WaitCause,
    /// The first message of the key.
    pub(crate) head: Option<MessageSummary>,
    pub(crate) since: Option<Timestamp>,
    /// The number of waiting messages, up to [`COUNT_MAX`].
    pub(crate) waiting: u64,
}

/// Lists the shards of a destination with their owners.
pub(crate) async fn shards(
    connection: &mut SqliteConnection,
    destination: &str,
    count: u16,
) -> Result<Vec<ShardInfo>, Error> {
    let sql = concat!(
        "SELECT l.shard, m.name, l.epoch, l.expires_at_ms - ",
        now!(),
        ", p.settled_at_ms, l.owner IS NOT NULL, \
         (SELECT count(*) FROM relevo_parked_key AS k WHERE k.destination = ?1 AND k.slot % ?2 = l.shard) \
         FROM relevo_lease AS l \
         LEFT JOIN relevo_relay AS m ON m.destination = ?1 AND m.owner = l.owner \
         LEFT JOIN relevo_progress AS p ON p.destination = ?1 AND p.shard = l.shard \
         WHERE l.destination = ?1 ORDER BY l.shard"
    );
    let rows = sqlx::query(sql).bind(destination).bind(i64::from(count)).fetch_all(connection).await?;
    let shard = |row: &SqliteRow| {
        let is_owned: bool = column(row, 5)?;
        let name: Option<String> = column(row, 1)?;
        let remaining = u64::try_from(column::<i64>(row, 3)?).unwrap_or(0);
        Ok(ShardInfo {
            shard: number(row, 0)?,
            // The owner has no row in the table of relays: it died, and no relay has acquired the shard yet.
            owner: is_owned.then(|| name.unwrap_or_else(|| "a stopped relay".to_owned())),
            epoch: column(row, 2)?,
            lease_remaining: if is_owned { Duration::from_millis(remaining) } else { Duration::ZERO },
            settled_at: optional_time(row, 4)?,
            parked_keys: number(row, 6)?,
        })
    };
    rows.iter().map(shard).collect()
}

/// Why a parked key waits. `None` if it is not parked.
pub(crate) async fn parked(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &Progress,
    key: &str,
) -> Result<Option<KeyWait>, Error> {
    let sql = "SELECT k.state, k.next_at_ms, k.since_ms, k.address, h.error, h.next_at_ms, k.dead_id, \
               d.seq, d.state, \
               (SELECT m.seq FROM relevo_parked_message AS m WHERE m.destination = ?1 AND m.key = ?2 ORDER BY \
               m.ordinal LIMIT 1), \
               (SELECT count(*) FROM (SELECT 1 FROM relevo_parked_message AS m \
                   WHERE m.destination = ?1 AND m.key = ?2 LIMIT ?3)) \
               FROM relevo_parked_key AS k \
               LEFT JOIN relevo_address_hold AS h ON h.destination = ?1 AND h.address = k.address \
               LEFT JOIN relevo_dead_letter AS d ON d.destination = ?1 AND d.id = k.dead_id \
               WHERE k.destination = ?1 AND k.key = ?2";
    let select = sqlx::query(sql).bind(destination).bind(key).bind(COUNT_MAX);
    let Some(row) = select.fetch_optional(&mut *connection).await? else { return Ok(None) };
    let since: Timestamp = time(&row, 2)?;
    let retry_at = optional_time(&row, 1)?.unwrap_or(since);
    let queued: u64 = number(&row, 10)?;
    let dead_seq: Option<i64> = column(&row, 7)?;
    let (cause, head, waiting) = match column::<&str>(&row, 0)? {
        "held" => {
            let held_address = HeldAddress {
                address: column::<Option<String>>(&row, 3)?.unwrap_or_default(),
                error: column::<Option<String>>(&row, 4)?.unwrap_or_default(),
            };
            (WaitCause::AddressHeld { held_address, probe_at: optional_time(&row, 5)? }, column(&row, 9)?, queued)
        }
        "quarantined" => (WaitCause::Quarantined { at: retry_at }, column(&row, 9)?, queued),
        "dead" => {
            let id = queries::id(&row, 6)?;
            let cause = match column::<Option<String>>(&row, 8)? {
                Some(mark) if mark == "redriving" || mark == "discarding" => WaitCause::MarkNotApplied { id, mark },
                _ => WaitCause::DeadLetter { id },
            };
            (cause, dead_seq, queued + 1)
        }
        _ => (WaitCause::Retrying { at: retry_at }, column(&row, 9)?, queued),
    };
    let head = match head {
        Some(seq) => StatusQuery::load_one(connection, destination, progress, seq).await?.map(|row| row.summary),
        None => None,
    };
    Ok(Some(KeyWait { cause, head, since: Some(since), waiting }))
}

/// Why the unsettled messages of a key wait. `None` if it has none.
pub(crate) async fn unread(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &Progress,
    key: &str,
    shard: &ShardInfo,
) -> Result<Option<KeyWait>, Error> {
    let sql = "SELECT min(seq), count(*) FROM (SELECT seq FROM relevo_message WHERE seq > ?1 AND key = ?2 \
               ORDER BY seq LIMIT ?3)";
    let select = sqlx::query(sql).bind(progress.settled_through(slot_of(key))).bind(key).bind(COUNT_MAX);
    let row = select.fetch_one(&mut *connection).await?;
    let Some(first) = column::<Option<i64>>(&row, 0)? else { return Ok(None) };
    let head = StatusQuery::load_one(connection, destination, progress, first).await?.map(|row| row.summary);
    let cause = if shard.lease_remaining.is_zero() { WaitCause::NoRelay } else { WaitCause::NotReadYet };
    let since = head.as_ref().map(|head| head.created_at);
    Ok(Some(KeyWait { cause, head, since, waiting: number(&row, 1)? }))
}

/// The first scheduled message of a key, or [`WaitCause::Idle`].
pub(crate) async fn scheduled(connection: &mut SqliteConnection, key: &str) -> Result<KeyWait, Error> {
    let sql = "SELECT id, topic, key, type, created_at_ms, due_at_ms, \
               (SELECT count(*) FROM relevo_scheduled WHERE key = ?1) \
               FROM relevo_scheduled WHERE key = ?1 ORDER BY due_at_ms, ordinal LIMIT 1";
    let Some(row) = sqlx::query(sql).bind(key).fetch_optional(connection).await? else {
        return Ok(KeyWait { cause: WaitCause::Idle, head: None, since: None, waiting: 0 });
    };
    let head = scheduled_summary(&row, [0, 1, 2, 3, 4, 5])?;
    let since = Some(head.created_at);
    Ok(KeyWait {
        cause: WaitCause::Scheduled { at: time(&row, 5)? },
        head: Some(head),
        since,
        waiting: number(&row, 6)?,
    })
}
