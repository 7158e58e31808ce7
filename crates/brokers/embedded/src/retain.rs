//! Dropping messages that nobody needs.

use std::sync::Mutex;
use std::time::Duration;

use relevo_core::slot;
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;
use tokio::time::Instant;

use crate::broker::{EmbeddedBroker, Inner};
use crate::classify::Error;
use crate::config::WhenFull;
use crate::group::Stored;
use crate::lanes::json;
use crate::link::Write;
use crate::publish::{self, Row};

/// How many messages one transaction looks at, so that publishers wait for milliseconds.
const CHUNK: i64 = 2_000;
/// How often publishing looks for messages to drop.
const PAUSE: Duration = Duration::from_secs(1);

/// What a sweep dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Messages dropped.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// When publishing swept last, and how much came in since.
#[derive(Debug, Default)]
pub(crate) struct Sweeper(Mutex<Option<(Instant, usize)>>);

impl Sweeper {
    /// How many messages came in since the last sweep, if it is time for another.
    fn due(&self, published: usize) -> Option<usize> {
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (at, before) = last.unwrap_or_else(|| (Instant::now(), 0));
        let since = before + published;
        let due = at.elapsed() >= PAUSE;
        *last = Some(if due { (Instant::now(), 0) } else { (at, since) });
        due.then_some(since)
    }
}

impl EmbeddedBroker {
    /// Drops what every group has acknowledged and is older than `keep`. Publishing does it too, now and then; it is
    /// only needed where nothing is published.
    pub async fn sweep(&self) -> Result<Swept, Error> {
        self.sweep_chunks(self.0.config.keep, u64::MAX).await
    }

    /// Keeps pace with what was published; a failure is left to the next time, and to whoever publishes next.
    pub(crate) async fn sweep_now_and_then(&self, published: usize) {
        let Some(since) = self.0.sweeper.due(published) else { return };
        // Twice as much as came in, so that a backlog of old messages shrinks.
        let chunks = 1 + 2 * since as u64 / CHUNK.cast_unsigned();
        if let Err(error) = self.sweep_chunks(self.0.config.keep, chunks).await {
            tracing::warn!(%error, "old messages could not be dropped, will try again");
        }
    }

    /// Whether there is room for these rows now.
    pub(crate) async fn make_room(&self, rows: &[Row<'_>]) -> Result<bool, Error> {
        let Inner { config, link, .. } = &*self.0;
        let (messages, bytes) = publish::weigh(rows);
        let (messages_goal, bytes_goal) =
            (config.messages_max.checked_sub(messages), config.bytes_max.checked_sub(bytes));
        // A batch that is larger than the limit fits in no broker.
        let (Some(messages_goal), Some(bytes_goal)) = (messages_goal, bytes_goal) else { return Ok(false) };
        self.sweep_chunks(Duration::ZERO, u64::MAX).await?;
        loop {
            let (messages, bytes) = totals(link.readers()).await?;
            if messages <= messages_goal && bytes <= bytes_goal {
                return Ok(true);
            }
            if config.when_full == WhenFull::Refuse || messages == 0 {
                return Ok(false);
            }
            self.drop_oldest().await?;
        }
    }

    async fn sweep_chunks(&self, keep: Duration, chunks: u64) -> Result<Swept, Error> {
        let keep_ms = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
        let mut swept = Swept::default();
        let mut after = 0;
        for _ in 0..chunks {
            let (dropped, next) = self.sweep_chunk(after, keep_ms).await?;
            swept.messages += dropped.messages;
            swept.bytes += dropped.bytes;
            let Some(next) = next else { break };
            after = next;
        }
        Ok(swept)
    }

    /// One chunk of the log; says where the next one begins, if there is one that may have something to drop.
    async fn sweep_chunk(&self, after: i64, keep_ms: i64) -> Result<(Swept, Option<i64>), Error> {
        let look = sqlx::query(LOOK).bind(after).bind(keep_ms).bind(CHUNK);
        let row = look.fetch_one(self.0.link.readers()).await?;
        let (last, old, seen): (Option<i64>, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let Some(last) = last.filter(|_| old > 0) else { return Ok((Swept::default(), None)) };
        let mut write = self.0.link.write_relaxed().await?;
        let gone = sqlx::query(SWEEP).bind(after).bind(last).bind(keep_ms).fetch_all(write.sql()).await?;
        let swept = Swept {
            messages: gone.len() as u64,
            bytes: gone.iter().map(|row| row.get::<i64, _>(0).cast_unsigned()).sum(),
        };
        sqlx::query("UPDATE broker_meta SET messages = messages - ?1, bytes = bytes - ?2")
            .bind(swept.messages.cast_signed())
            .bind(swept.bytes.cast_signed())
            .execute(write.sql())
            .await?;
        write.commit().await?;
        // The log is in the order of time: behind a chunk with young messages there are only younger ones.
        Ok((swept, (seen == CHUNK && old == seen).then_some(last)))
    }

    /// Drops some of the oldest messages, wanted or not, except dead letters: those are for a person to delete.
    async fn drop_oldest(&self) -> Result<(), Error> {
        let mut write = self.0.link.write_relaxed().await?;
        let oldest = sqlx::query(OLDEST).fetch_all(write.sql()).await?;
        let Some(last) = oldest.last().map(|row| row.get::<i64, _>("seq")) else {
            let (messages, bytes) = totals(write.sql()).await?;
            write.abandon().await?;
            return Err(Error::Full { messages, bytes });
        };
        for group in Stored::all(write.sql()).await? {
            let unsettled = unsettled_of(&mut write, &group, &oldest).await?;
            sqlx::query("UPDATE broker_group SET dropped = dropped + ?2 WHERE id = ?1")
                .bind(group.id)
                .bind(unsettled)
                .execute(write.sql())
                .await?;
        }
        let seqs: Vec<i64> = oldest.iter().map(|row| row.get("seq")).collect();
        for sql in [
            "DELETE FROM broker_pending WHERE seq IN (SELECT value FROM json_each(?1))",
            "DELETE FROM broker_message WHERE seq IN (SELECT value FROM json_each(?1))",
            // What waited behind one of these waits for nobody any more.
            "UPDATE broker_pending AS p SET state = 0 WHERE state = 3 AND ?1 IS NOT NULL AND NOT EXISTS (
                 SELECT 1 FROM broker_pending h
                 WHERE h.grp = p.grp AND h.lane = p.lane AND h.key = p.key AND h.due_ms IS NOT NULL)",
        ] {
            sqlx::query(sql).bind(json(&seqs)).execute(write.sql()).await?;
        }
        sqlx::query("UPDATE broker_lane SET cursor = max(cursor, ?1)").bind(last).execute(write.sql()).await?;
        sqlx::query("UPDATE broker_meta SET messages = messages - ?1, bytes = bytes - ?2")
            .bind(i64::try_from(oldest.len()).unwrap_or(i64::MAX))
            .bind(oldest.iter().map(|row| row.get::<i64, _>("bytes")).sum::<i64>())
            .execute(write.sql())
            .await?;
        tracing::warn!(messages = oldest.len(), up_to = last, "the broker is full, the oldest messages were dropped");
        write.commit().await
    }
}

/// How many of these messages a group had not settled: those that were pending, and those that it had not reached.
async fn unsettled_of(write: &mut Write, group: &Stored, oldest: &[SqliteRow]) -> Result<i64, Error> {
    let cursors: Vec<i64> = sqlx::query_scalar("SELECT cursor FROM broker_lane WHERE grp = ?1 ORDER BY lane")
        .bind(group.id)
        .fetch_all(write.sql())
        .await?;
    let seqs: Vec<i64> = oldest.iter().map(|row| row.get("seq")).collect();
    let pending: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM broker_pending WHERE grp = ?1 AND seq IN (SELECT value FROM json_each(?2))",
    )
    .bind(group.id)
    .bind(json(&seqs))
    .fetch_one(write.sql())
    .await?;
    let patterns = group.patterns();
    let is_ahead = |row: &&SqliteRow| {
        let lane = usize::from(slot::shard_of(row.get("slot"), group.lanes));
        cursors.get(lane).is_some_and(|cursor| row.get::<i64, _>("seq") > *cursor)
            && patterns.matches(row.get("address"))
    };
    let ahead = oldest.iter().filter(is_ahead).count();
    Ok(pending + i64::try_from(ahead).unwrap_or(i64::MAX))
}

async fn totals(reader: impl sqlx::SqliteExecutor<'_>) -> Result<(u64, u64), Error> {
    let row = sqlx::query("SELECT messages, bytes FROM broker_meta").fetch_one(reader).await?;
    Ok((row.get::<i64, _>(0).cast_unsigned(), row.get::<i64, _>(1).cast_unsigned()))
}

/// The next chunk that all lanes have passed: its last number, how many of it are old enough, how many there are.
const LOOK: &str = "
SELECT max(seq), coalesce(sum(at_ms <= unixepoch('subsec') * 1000 - ?2), 0), count(*) FROM (
    SELECT seq, at_ms FROM broker_message
    WHERE seq > ?1 AND seq <= coalesce((SELECT min(cursor) FROM broker_lane), 9223372036854775807)
    ORDER BY seq LIMIT ?3)";

const SWEEP: &str = "
DELETE FROM broker_message AS m
WHERE seq > ?1 AND seq <= ?2 AND at_ms <= unixepoch('subsec') * 1000 - ?3
  AND seq <= coalesce((SELECT min(cursor) FROM broker_lane), 9223372036854775807)
  AND NOT EXISTS (SELECT 1 FROM broker_pending p WHERE p.seq = m.seq)
  AND NOT EXISTS (SELECT 1 FROM broker_dead d WHERE d.seq = m.seq)
RETURNING octet_length(headers) + octet_length(payload)";

const OLDEST: &str = "
SELECT seq, slot, address, octet_length(headers) + octet_length(payload) AS bytes FROM broker_message AS m
WHERE NOT EXISTS (SELECT 1 FROM broker_dead d WHERE d.seq = m.seq) ORDER BY seq LIMIT 100";
