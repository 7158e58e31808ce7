//! The status of messages: combines the log, the progress and the tables of parked and dead messages.

pub(crate) mod key;
pub(crate) mod sample;
pub(crate) mod search;
pub(crate) mod verify;

use std::collections::BTreeMap;

use relevo_core::outbox::inspect::{MessageStatus, MessageSummary};
use relevo_core::outbox::leases::Lease;
use relevo_core::slot::shard_of;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::{self, column, number, optional_time, time};

/// The progress of a destination's shards.
pub(crate) struct Progress {
    pub(crate) enabled: bool,
    pub(crate) shards: u16,
    /// Indexed by shard.
    settled_through: Vec<i64>,
}

impl Progress {
    pub(crate) async fn load(connection: &mut SqliteConnection, destination: &str) -> Result<Self, Error> {
        let sql = "SELECT d.enabled, d.shards, p.shard, p.from_seq, p.to_seq, p.settled_seq FROM relevo_destination AS d \
                   JOIN relevo_progress AS p ON p.destination = d.name WHERE d.name = ?1 ORDER BY p.shard";
        let rows = sqlx::query(sql).bind(destination).fetch_all(connection).await?;
        let first = rows.first().ok_or_else(|| queries::unknown_destination(destination))?;
        let (enabled, shards) = (column(first, 0)?, number(first, 1)?);
        let settled_through = rows
            .iter()
            .map(|row| Ok(queries::settled_through(&queries::position(row, 3)?)))
            .collect::<Result<_, Error>>()?;
        Ok(Self { enabled, shards, settled_through })
    }

    /// Everything of this slot is settled up to this number.
    pub(crate) fn settled_through(&self, slot: u16) -> i64 {
        self.settled_through.get(usize::from(shard_of(slot, self.shards))).copied().unwrap_or(0)
    }

    /// Groups shards by position.
    pub(crate) fn groups(&self) -> BTreeMap<i64, Vec<u16>> {
        let mut groups: BTreeMap<i64, Vec<u16>> = BTreeMap::new();
        for (shard, settled_seq) in (0..self.shards).zip(&self.settled_through) {
            groups.entry(*settled_seq).or_default().push(shard);
        }
        groups
    }

    /// The slots of these shards. `None` for all of them.
    pub(crate) fn slots(&self, shards: &[u16]) -> Option<String> {
        let lease = |shard: &u16| Lease { shard: *shard, shard_count: self.shards, epoch: 0, owner: Uuid::nil() };
        queries::slots(&shards.iter().map(lease).collect::<Vec<_>>())
    }
}

/// A message with its status, and the values that its publish time is found by.
pub(crate) struct StatusRow {
    pub(crate) summary: MessageSummary,
    slot: u16,
    created_at_ms: i64,
    /// Whether it was parked before it was published.
    was_parked: bool,
}

/// Selects messages. All given conditions must hold.
#[derive(Default)]
pub(crate) struct StatusQuery<'a> {
    /// Inclusive.
    pub(crate) from: i64,
    /// Exclusive.
    pub(crate) before: i64,
    pub(crate) key: Option<&'a str>,
    pub(crate) topic: Option<&'a str>,
    pub(crate) kind: Option<&'a str>,
    pub(crate) since_ms: Option<i64>,
    pub(crate) until_ms: Option<i64>,
}

impl StatusQuery<'_> {
    /// Loads the message with this number.
    pub(crate) async fn load_one(
        connection: &mut SqliteConnection,
        destination: &str,
        progress: &Progress,
        seq: i64,
    ) -> Result<Option<StatusRow>, Error> {
        let query = Self { from: seq, before: seq + 1, ..Self::default() };
        Ok(query.load(connection, destination, progress).await?.pop())
    }

    /// Loads the messages, newest first. Includes parked and dead messages that retention deleted from the log.
    pub(crate) async fn load(
        &self,
        connection: &mut SqliteConnection,
        destination: &str,
        progress: &Progress,
    ) -> Result<Vec<StatusRow>, Error> {
        let sql = "WITH m AS ( \
                       SELECT seq, slot, id, topic, key, type, created_at_ms FROM relevo_message \
                       WHERE seq >= ?2 AND seq < ?3 \
                       UNION SELECT seq, slot, id, topic, key, type, created_at_ms FROM relevo_parked_message \
                       WHERE destination = ?1 AND seq >= ?2 AND seq < ?3 \
                       UNION SELECT seq, slot, id, topic, key, type, created_at_ms FROM relevo_dead_letter \
                       WHERE destination = ?1 AND state <> 'redriven' AND seq >= ?2 AND seq < ?3 \
                   ) \
                   SELECT m.seq, m.slot, m.id, m.topic, m.key, m.type, m.created_at_ms, \
                       p.ordinal = (SELECT min(q.ordinal) FROM relevo_parked_message AS q \
                           WHERE q.destination = ?1 AND q.key = m.key), \
                       k.state, k.attempts, coalesce(k.next_at_ms, h.next_at_ms), k.error, \
                       d.state, d.attempts, d.error, l.published_at_ms \
                   FROM m \
                   LEFT JOIN relevo_parked_message AS p ON p.destination = ?1 AND p.seq = m.seq \
                   LEFT JOIN relevo_parked_key AS k ON k.destination = ?1 AND k.key = p.key \
                   LEFT JOIN relevo_address_hold AS h ON h.destination = ?1 AND h.address = k.address \
                   LEFT JOIN relevo_dead_letter AS d ON d.destination = ?1 AND d.seq = m.seq AND d.state <> 'redriven' \
                   LEFT JOIN relevo_parked_published AS l ON l.destination = ?1 AND l.seq = m.seq \
                   WHERE (?4 IS NULL OR m.key = ?4) AND (?5 IS NULL OR m.topic = ?5) AND (?6 IS NULL OR m.type = ?6) \
                       AND (?7 IS NULL OR m.created_at_ms >= ?7) AND (?8 IS NULL OR m.created_at_ms < ?8) \
                   ORDER BY m.seq DESC";
        let select = sqlx::query(sql).bind(destination).bind(self.from).bind(self.before);
        let select = select.bind(self.key).bind(self.topic).bind(self.kind).bind(self.since_ms).bind(self.until_ms);
        select.fetch_all(connection).await?.iter().map(|row| status_row(row, progress)).collect()
    }
}

fn status_row(row: &SqliteRow, progress: &Progress) -> Result<StatusRow, Error> {
    let (seq, slot): (i64, u16) = (column(row, 0)?, number(row, 1)?);
    let mut summary = MessageSummary {
        seq: Some(seq),
        id: queries::id(row, 2)?,
        topic: column(row, 3)?,
        key: column(row, 4)?,
        kind: column(row, 5)?,
        created_at: time(row, 6)?,
        status: if seq <= progress.settled_through(slot) { MessageStatus::Published } else { MessageStatus::Pending },
        attempts: 0,
        next_attempt_at: None,
        last_error: None,
        published_at: None,
    };
    let is_head: Option<bool> = column(row, 7)?;
    let key_state: Option<&str> = column(row, 8)?;
    let dead_state: Option<&str> = column(row, 12)?;
    if let (Some(is_head), Some(state)) = (is_head, key_state) {
        summary.status = match state {
            "retrying" if is_head => MessageStatus::Retrying,
            "held" if is_head => MessageStatus::Held,
            "quarantined" if is_head => MessageStatus::Quarantined,
            _ => MessageStatus::Waiting,
        };
        if summary.status != MessageStatus::Waiting {
            summary.attempts = number(row, 9)?;
            summary.next_attempt_at = optional_time(row, 10)?;
            summary.last_error = column(row, 11)?;
        }
    } else if let Some(state) = dead_state {
        summary.status = if state == "discarded" { MessageStatus::Discarded } else { MessageStatus::Dead };
        summary.attempts = number(row, 13)?;
        summary.last_error = column(row, 14)?;
    }
    let published_at = optional_time(row, 15)?.filter(|_| summary.status == MessageStatus::Published);
    summary.published_at = published_at;
    Ok(StatusRow { summary, slot, created_at_ms: column(row, 6)?, was_parked: published_at.is_some() })
}

impl StatusRow {
    /// Adds the publish time, as long as the history contains it.
    pub(crate) async fn with_publish_time(
        self,
        connection: &mut SqliteConnection,
        destination: &str,
    ) -> Result<MessageSummary, Error> {
        let mut summary = self.summary;
        if summary.status != MessageStatus::Published || self.was_parked {
            return Ok(summary);
        }
        let sql = "SELECT settled_at_ms FROM relevo_settle_history \
                   WHERE destination = ?1 AND settled_at_ms >= ?2 AND settled_seq >= ?3 \
                   AND (shard_list IS NULL OR instr(shard_list, ',' || (?4 % shards) || ',') > 0) \
                   ORDER BY settled_at_ms LIMIT 1";
        let select = sqlx::query(sql).bind(destination).bind(self.created_at_ms).bind(summary.seq);
        let row = select.bind(i64::from(self.slot)).fetch_optional(connection).await?;
        summary.published_at = row.map(|row| time(&row, 0)).transpose()?;
        Ok(summary)
    }
}

/// Reads a scheduled message. The columns are id, topic, key, type, emit time, due time.
fn scheduled_summary(row: &SqliteRow, columns: [usize; 6]) -> Result<MessageSummary, Error> {
    let [id, topic, key, kind, created_at, due_at] = columns;
    Ok(MessageSummary {
        seq: None,
        id: queries::id(row, id)?,
        topic: column(row, topic)?,
        key: column(row, key)?,
        kind: column(row, kind)?,
        created_at: time(row, created_at)?,
        status: MessageStatus::Scheduled,
        attempts: 0,
        next_attempt_at: Some(time(row, due_at)?),
        last_error: None,
        published_at: None,
    })
}
