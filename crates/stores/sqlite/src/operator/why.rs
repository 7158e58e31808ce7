//! Explains why a key is blocked, and lists the owners of shards.

use std::time::Duration;

use jiff::Timestamp;
use relevo_core::outbox::inspect::{KeyReport, MessageSummary, ShardInfo, WaitCause};
use relevo_core::outbox::leases::HeldAddress;
use relevo_core::slot::{shard_of, slot_of};
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::classify::Error;
use crate::operator::search::scheduled_summary;
use crate::queries::status::{Lines, Progress};
use crate::queries::{self, column, now, number, optional_time, time};
use crate::store::Store;

/// Counting of waiting messages stops here.
const COUNT_MAX: i64 = 10_000;

/// The cause, the first message, since when the key waits, and how many messages wait.
type KeyWait = (WaitCause, Option<MessageSummary>, Option<Timestamp>, u64);

impl Store {
    pub(crate) async fn list_shards(&self) -> Result<Vec<ShardInfo>, Error> {
        let mut session = self.read_connection.acquire().await?;
        let progress = Progress::load(&mut session, &self.destination).await?;
        let shards = shards(&mut session, &self.destination, progress.shards).await?;
        session.release();
        Ok(shards)
    }

    pub(crate) async fn why(&self, key: &str) -> Result<KeyReport, Error> {
        let mut session = self.read_connection.acquire().await?;
        let destination = &*self.destination;
        let progress = Progress::load(&mut session, destination).await?;
        let shard = shard_of(slot_of(key), progress.shards);
        let mut shards = shards(&mut session, destination, progress.shards).await?;
        let shard = shards.swap_remove(shards.iter().position(|row| row.shard == shard).unwrap_or(0));
        let mut found = parked(&mut session, destination, &progress, key).await?;
        if found.is_none() {
            found = unread(&mut session, destination, &progress, key, &shard).await?;
        }
        let (mut cause, head, since, waiting) = match found {
            Some(found) => found,
            None => scheduled(&mut session, key).await?,
        };
        session.release();
        if !progress.enabled && !matches!(cause, WaitCause::Idle | WaitCause::Scheduled { .. }) {
            cause = WaitCause::Disabled;
        }
        Ok(KeyReport { cause, head, waiting, since, shard })
    }
}

async fn shards(connection: &mut SqliteConnection, destination: &str, count: u16) -> Result<Vec<ShardInfo>, Error> {
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
        let lasts = u64::try_from(column::<i64>(row, 3)?).unwrap_or(0);
        Ok(ShardInfo {
            shard: number(row, 0)?,
            // The owner has no row in the table of relays: it died, and no relay has acquired the shard yet.
            owner: is_owned.then(|| name.unwrap_or_else(|| "a stopped relay".to_owned())),
            epoch: column(row, 2)?,
            lease_remaining: if is_owned { Duration::from_millis(lasts) } else { Duration::ZERO },
            settled_at: optional_time(row, 4)?,
            parked_keys: number(row, 6)?,
        })
    };
    rows.iter().map(shard).collect()
}

async fn parked(
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
    let at = optional_time(&row, 1)?.unwrap_or(since);
    let waits: u64 = number(&row, 10)?;
    let dead_seq: Option<i64> = column(&row, 7)?;
    let (cause, head, waiting) = match column::<&str>(&row, 0)? {
        "held" => {
            let hold = HeldAddress {
                address: column::<Option<String>>(&row, 3)?.unwrap_or_default(),
                error: column::<Option<String>>(&row, 4)?.unwrap_or_default(),
            };
            (WaitCause::AddressHeld { held_address: hold, probe_at: optional_time(&row, 5)? }, column(&row, 9)?, waits)
        }
        "quarantined" => (WaitCause::Quarantined { at }, column(&row, 9)?, waits),
        "dead" => {
            let id = queries::id(&row, 6)?;
            let cause = match column::<Option<String>>(&row, 8)? {
                Some(mark) if mark == "redriving" || mark == "discarding" => WaitCause::MarkNotApplied { id, mark },
                _ => WaitCause::DeadLetter { id },
            };
            (cause, dead_seq, waits + 1)
        }
        _ => (WaitCause::Retrying { at }, column(&row, 9)?, waits),
    };
    let head = match head {
        Some(seq) => oldest_parked(connection, destination, progress, seq).await?,
        None => None,
    };
    Ok(Some((cause, head, Some(since), waiting)))
}

async fn oldest_parked(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &Progress,
    seq: i64,
) -> Result<Option<MessageSummary>, Error> {
    let lines = Lines { from: seq, before: seq + 1, ..Lines::default() };
    Ok(lines.load(connection, destination, progress).await?.pop().map(|line| line.listed))
}

async fn unread(
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
    let head = oldest_parked(connection, destination, progress, first).await?;
    let cause = if shard.lease_remaining.is_zero() { WaitCause::NoRelay } else { WaitCause::NotReadYet };
    let since = head.as_ref().map(|head| head.created_at);
    Ok(Some((cause, head, since, number(&row, 1)?)))
}

async fn scheduled(connection: &mut SqliteConnection, key: &str) -> Result<KeyWait, Error> {
    let sql = "SELECT id, topic, key, type, created_at_ms, due_at_ms, \
               (SELECT count(*) FROM relevo_scheduled WHERE key = ?1) \
               FROM relevo_scheduled WHERE key = ?1 ORDER BY due_at_ms, ordinal LIMIT 1";
    let Some(row) = sqlx::query(sql).bind(key).fetch_optional(connection).await? else {
        return Ok((WaitCause::Idle, None, None, 0));
    };
    let head = scheduled_summary(&row, [0, 1, 2, 3, 4, 5])?;
    let since = Some(head.created_at);
    Ok((WaitCause::Scheduled { at: time(&row, 5)? }, Some(head), since, number(&row, 6)?))
}
