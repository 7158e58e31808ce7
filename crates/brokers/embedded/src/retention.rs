//! Deletes messages that no group needs.

use std::time::Duration;

use parking_lot::Mutex;
use sqlx::Row as _;
use tokio::time::Instant;

use crate::classify::Error;
use crate::publish::{self, BrokerFile, BrokerInner, EncodedMessage};

/// The number of messages that one transaction checks, so that publishers wait only milliseconds.
const CHUNK: i64 = 2_000;
/// How often publishing checks for messages to delete.
const PRUNE_INTERVAL: Duration = Duration::from_secs(1);

/// What a prune deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// The number of deleted messages.
    pub messages: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// When publishing last pruned, how many messages were stored since then, and where the next prune continues.
#[derive(Debug, Default)]
pub(crate) struct PruneSchedule(Mutex<PruneState>);

#[derive(Debug, Default)]
struct PruneState {
    last: Option<(Instant, usize)>,
    after: i64,
}

impl PruneSchedule {
    /// If a prune is due: the number of messages since the last one, and where to continue.
    fn due(&self, published: usize) -> Option<(usize, i64)> {
        let mut state = self.0.lock();
        let (at, before) = state.last.unwrap_or_else(|| (Instant::now(), 0));
        let since = before + published;
        let due = at.elapsed() >= PRUNE_INTERVAL;
        state.last = Some(if due { (Instant::now(), 0) } else { (at, since) });
        due.then_some((since, state.after))
    }

    fn continue_after(&self, seq: i64) {
        self.0.lock().after = seq;
    }
}

impl BrokerFile {
    /// Deletes messages that every group has acknowledged and that are older than `retention`. Publishing does this
    /// regularly; call it only if nothing is published.
    pub async fn prune(&self) -> Result<Pruned, Error> {
        Ok(self.prune_chunks(0, self.0.config.retention, u64::MAX).await?.0)
    }

    /// Prunes in proportion to the published messages. After a failure, a later publish tries again.
    pub(crate) async fn prune_if_due(&self, published: usize) {
        let Some((since, after)) = self.0.prune_schedule.due(published) else { return };
        // Check twice as many as were stored, so that a backlog of old messages shrinks.
        let chunks = 1 + 2 * since as u64 / CHUNK.cast_unsigned();
        match self.prune_chunks(after, self.0.config.retention, chunks).await {
            // Unacknowledged messages may fill whole chunks: the next prune continues after them.
            Ok((_, next)) => self.0.prune_schedule.continue_after(next),
            Err(error) => tracing::warn!(%error, "cannot delete old messages, will retry"),
        }
    }

    /// Deletes acknowledged messages of any age. Returns whether these rows fit now.
    pub(crate) async fn prune_to_fit(&self, rows: &[EncodedMessage<'_>]) -> Result<bool, Error> {
        let BrokerInner { config, connections, .. } = &*self.0;
        let (messages, bytes) = publish::batch_size(rows);
        let (messages_goal, bytes_goal) =
            (config.messages_max.checked_sub(messages), config.bytes_max.checked_sub(bytes));
        // A batch above the limit never fits.
        let (Some(messages_goal), Some(bytes_goal)) = (messages_goal, bytes_goal) else { return Ok(false) };
        self.prune_chunks(0, Duration::ZERO, u64::MAX).await?;
        let (messages, bytes) = totals(connections.readers()).await?;
        Ok(messages <= messages_goal && bytes <= bytes_goal)
    }

    /// Returns what was deleted, and where the next prune continues: 0 is the start of the log.
    async fn prune_chunks(&self, mut after: i64, retention: Duration, chunks: u64) -> Result<(Pruned, i64), Error> {
        let retention_ms = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX);
        let mut pruned = Pruned::default();
        for _ in 0..chunks {
            let (deleted, next) = self.prune_chunk(after, retention_ms).await?;
            pruned.messages += deleted.messages;
            pruned.bytes += deleted.bytes;
            let Some(next) = next else { return Ok((pruned, 0)) };
            after = next;
        }
        Ok((pruned, after))
    }

    /// Prunes one chunk of the log. Returns where the next chunk starts, if it may have messages to delete.
    async fn prune_chunk(&self, after: i64, retention_ms: i64) -> Result<(Pruned, Option<i64>), Error> {
        let select = sqlx::query(SELECT_CHUNK).bind(after).bind(retention_ms).bind(CHUNK);
        let row = select.fetch_one(self.0.connections.readers()).await?;
        let (last, old, count): (Option<i64>, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let Some(last) = last.filter(|_| old > 0) else { return Ok((Pruned::default(), None)) };
        let mut write = self.0.connections.begin_relaxed().await?;
        let deleted =
            sqlx::query(DELETE_CHUNK).bind(after).bind(last).bind(retention_ms).fetch_all(write.connection()).await?;
        let pruned = Pruned {
            messages: deleted.len() as u64,
            bytes: deleted.iter().map(|row| row.get::<i64, _>(0).cast_unsigned()).sum(),
        };
        sqlx::query("UPDATE broker_meta SET messages = messages - ?1, bytes = bytes - ?2")
            .bind(pruned.messages.cast_signed())
            .bind(pruned.bytes.cast_signed())
            .execute(write.connection())
            .await?;
        write.commit().await?;
        // The log is in time order: after a chunk with recent messages, all others are more recent.
        Ok((pruned, (count == CHUNK && old == count).then_some(last)))
    }
}

async fn totals(reader: impl sqlx::SqliteExecutor<'_>) -> Result<(u64, u64), Error> {
    let row = sqlx::query("SELECT messages, bytes FROM broker_meta").fetch_one(reader).await?;
    Ok((row.get::<i64, _>(0).cast_unsigned(), row.get::<i64, _>(1).cast_unsigned()))
}

/// The position that every lane of every group has passed. If there never was a group, it is the start: messages wait
/// for the first group. If the last group was deleted, no message is needed.
macro_rules! passed_by_all_groups {
    () => {
        "coalesce((SELECT min(cursor) FROM broker_lane),
                  (SELECT 9223372036854775807 FROM sqlite_sequence WHERE name = 'broker_group'), 0)"
    };
}

/// Whether a message is old enough. A timestamp in the future is a clock error and must not keep other messages from
/// being deleted.
macro_rules! is_old {
    ($retention:literal) => {
        concat!(
            "(stored_at_ms <= unixepoch('subsec') * 1000 - ",
            $retention,
            " OR stored_at_ms > unixepoch('subsec') * 1000 + 86400000)"
        )
    };
}

/// The next chunk that all lanes have passed: its last sequence number, the number of old messages, and its size.
const SELECT_CHUNK: &str = concat!(
    "SELECT max(seq), coalesce(sum(",
    is_old!("?2"),
    "), 0), count(*) FROM (SELECT seq, stored_at_ms FROM broker_message WHERE seq > ?1 AND seq <= ",
    passed_by_all_groups!(),
    " ORDER BY seq LIMIT ?3)"
);

const DELETE_CHUNK: &str = concat!(
    "DELETE FROM broker_message AS m WHERE seq > ?1 AND seq <= ?2 AND ",
    is_old!("?3"),
    " AND seq <= ",
    passed_by_all_groups!(),
    " AND NOT EXISTS (SELECT 1 FROM broker_unacknowledged u WHERE u.seq = m.seq)
      RETURNING octet_length(headers) + octet_length(payload)"
);
