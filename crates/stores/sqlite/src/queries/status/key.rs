//! Reads the facts that explain why a key waits.

use std::time::Duration;

use relevo_core::dead_letters::{DeadLetterState, MarkAction};
use relevo_core::outbox::inspect::{MessageSummary, ShardInfo};
use relevo_core::outbox::leases::HeldAddress;
use relevo_core::outbox::why::{MarkedDeadLetter, ParkedFacts, ParkedState, ScheduledMessages, WaitingMessages};
use relevo_core::slot::slot_of;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::{Progress, StatusQuery, scheduled_summary};
use crate::classify::Error;
use crate::queries::{self, COUNT_MAX, column, now, number, optional_time, time};

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

/// Loads a parked key. `None` if the key is not parked.
pub(crate) async fn parked(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &Progress,
    key: &str,
) -> Result<Option<ParkedFacts>, Error> {
    let sql = concat!(
        "SELECT k.state, coalesce(k.next_at_ms, h.next_at_ms), \
         coalesce(coalesce(k.next_at_ms, h.next_at_ms) <= ",
        now!(),
        ", 0), k.since_ms, k.address, coalesce(h.error, k.error), k.dead_id, d.state, \
         CASE WHEN k.state = 'dead' THEN d.seq ELSE (SELECT m.seq FROM relevo_parked_message AS m \
             WHERE m.destination = ?1 AND m.key = ?2 ORDER BY m.ordinal LIMIT 1) END, \
         (SELECT count(*) FROM (SELECT 1 FROM relevo_parked_message AS m \
             WHERE m.destination = ?1 AND m.key = ?2 LIMIT ?3)) \
         FROM relevo_parked_key AS k \
         LEFT JOIN relevo_address_hold AS h ON h.destination = ?1 AND h.address = k.address \
         LEFT JOIN relevo_dead_letter AS d ON d.destination = ?1 AND d.id = k.dead_id \
         WHERE k.destination = ?1 AND k.key = ?2"
    );
    let select = sqlx::query(sql).bind(destination).bind(key).bind(COUNT_MAX);
    let Some(row) = select.fetch_optional(&mut *connection).await? else { return Ok(None) };
    let state = match column::<&str>(&row, 0)? {
        "retrying" => ParkedState::Retrying,
        "held" => ParkedState::Held(HeldAddress {
            address: column::<Option<String>>(&row, 4)?.unwrap_or_default(),
            error: column(&row, 5)?,
        }),
        "quarantined" => ParkedState::Quarantined,
        "dead" => ParkedState::Dead {
            id: queries::id(&row, 6)?,
            unapplied_mark: column::<Option<&str>>(&row, 7)?.and_then(unapplied_mark),
        },
        _ => return Err(Error::unexpected_response("the state of a parked key is unknown")),
    };
    Ok(Some(ParkedFacts {
        state,
        next_at: optional_time(&row, 1)?,
        is_due: column(&row, 2)?,
        since: time(&row, 3)?,
        head: match column(&row, 8)? {
            Some(seq) => summary(connection, destination, progress, seq).await?,
            None => None,
        },
        queued: number(&row, 9)?,
    }))
}

/// Loads the oldest dead letter of a key that an operator marked and no relay has processed.
pub(crate) async fn marked_dead_letter(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &Progress,
    key: &str,
) -> Result<Option<MarkedDeadLetter>, Error> {
    let sql = "SELECT id, state, seq FROM relevo_dead_letter WHERE destination = ?1 \
               AND state IN ('redriving', 'discarding') AND key = ?2 ORDER BY seq LIMIT 1";
    let select = sqlx::query(sql).bind(destination).bind(key);
    let Some(row) = select.fetch_optional(&mut *connection).await? else { return Ok(None) };
    let mark = unapplied_mark(column(&row, 1)?);
    Ok(Some(MarkedDeadLetter {
        id: queries::id(&row, 0)?,
        mark: mark.ok_or_else(|| Error::unexpected_response("a mark is unknown"))?,
        message: summary(connection, destination, progress, column(&row, 2)?).await?,
    }))
}

fn unapplied_mark(state: &str) -> Option<MarkAction> {
    DeadLetterState::parse(state)?.unapplied_mark()
}

async fn summary(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &Progress,
    seq: i64,
) -> Result<Option<MessageSummary>, Error> {
    Ok(StatusQuery::load_one(connection, destination, progress, seq).await?.map(|row| row.summary))
}

/// Loads the unsettled messages of a key. `None` if it has none.
pub(crate) async fn unread(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &Progress,
    key: &str,
) -> Result<Option<WaitingMessages>, Error> {
    let sql = "SELECT min(seq), count(*) FROM (SELECT seq FROM relevo_message WHERE seq > ?1 AND key = ?2 \
               ORDER BY seq LIMIT ?3)";
    let select = sqlx::query(sql).bind(progress.settled_through(slot_of(key))).bind(key).bind(COUNT_MAX);
    let row = select.fetch_one(&mut *connection).await?;
    let Some(first) = column::<Option<i64>>(&row, 0)? else { return Ok(None) };
    let head = summary(connection, destination, progress, first).await?;
    let since = head.as_ref().map(|head| head.created_at);
    Ok(Some(WaitingMessages { head, count: number(&row, 1)?, since }))
}

/// Loads the scheduled messages of a key. `None` if it has none.
pub(crate) async fn scheduled(
    connection: &mut SqliteConnection,
    key: &str,
) -> Result<Option<ScheduledMessages>, Error> {
    let sql = "SELECT id, topic, key, type, created_at_ms, due_at_ms, \
               (SELECT count(*) FROM (SELECT 1 FROM relevo_scheduled WHERE key = ?1 LIMIT ?2)) \
               FROM relevo_scheduled WHERE key = ?1 ORDER BY due_at_ms, ordinal LIMIT 1";
    let select = sqlx::query(sql).bind(key).bind(COUNT_MAX);
    let Some(row) = select.fetch_optional(connection).await? else { return Ok(None) };
    Ok(Some(ScheduledMessages {
        head: scheduled_summary(&row, [0, 1, 2, 3, 4, 5])?,
        count: number(&row, 6)?,
        due_at: time(&row, 5)?,
    }))
}
