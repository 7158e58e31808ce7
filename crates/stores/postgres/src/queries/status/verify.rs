//! The statements that compare committed with settled messages.

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::outbox::inspect::MessageStatus;

use super::{SeqRange, Sources, StatusStatements};
use crate::binary_copy::CopyRows;
use crate::classify::Error;

/// The messages of one status in a range of sequence numbers.
pub(crate) struct StatusCount {
    pub(crate) status: MessageStatus,
    pub(crate) count: u64,
    pub(crate) oldest: Timestamp,
    /// Messages that no later window can contain.
    pub(crate) stranded: u64,
    /// Messages that a window passed without containing them.
    pub(crate) skipped: u64,
    /// A stranded or skipped one.
    pub(crate) example: Option<i64>,
}

impl StatusStatements {
    /// Counts the messages of a range by status.
    ///
    /// A window contains numbers above the tick's `max_seq`, and below it those of late transactions. Nothing else is
    /// ever read. A message that is visible at the tick has a number up to `max_seq`, because `max_seq` is read
    /// afterwards.
    pub(crate) fn count_by_status(&self, numbers: &SeqRange, condition: &str) -> String {
        format!(
            "{} SELECT status, count(*), min(created_at), \
             count(*) FILTER (WHERE stranded), count(*) FILTER (WHERE skipped), \
             coalesce(min(seq) FILTER (WHERE stranded OR skipped), -1) \
             FROM (SELECT *, status = 'pending' AND seq <= max_seq AND xid <> ALL (late_xids) AS stranded, \
                 status = 'published' AND seen_from AND seq > max_seq AS skipped FROM ({}) AS every) AS every GROUP BY status",
            self.positions(),
            self.with_status(Sources::LOG, numbers, condition)
        )
    }

    /// Selects at most `limit` violations of a check, and their number.
    pub(crate) fn violations(&self, check: &Check, limit: usize) -> String {
        let rows = check.rows.replace('@', &self.schema).replace('$', &self.destination);
        format!("SELECT it, count(*) OVER () FROM ({rows}) AS wrong(it) ORDER BY it LIMIT {limit}")
    }
}

/// Reads the rows of [`StatusStatements::count_by_status`].
pub(crate) fn decode_status_counts(answer: Bytes) -> Result<Vec<StatusCount>, Error> {
    let mut rows = CopyRows::new(answer, 6)?;
    let mut counts = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let status = MessageStatus::parse(&row.text()?).ok_or(Error::UnexpectedResponse("a status is unknown"))?;
        counts.push(StatusCount {
            status,
            count: row.count()?,
            oldest: row.timestamp()?,
            stranded: row.count()?,
            skipped: row.count()?,
            example: Some(row.int8()?).filter(|seq| *seq >= 0),
        });
    }
    Ok(counts)
}

/// Reads the rows of [`StatusStatements::violations`]: the names, and the number of all violations.
pub(crate) fn decode_violations(answer: Bytes) -> Result<(Vec<String>, u64), Error> {
    let mut rows = CopyRows::new(answer, 2)?;
    let mut names = Vec::new();
    let mut count = 0;
    while let Some(mut row) = rows.next_row()? {
        names.push(row.string()?);
        count = row.count()?;
    }
    Ok((names, count))
}

/// A condition that must never hold: its description, and the query that finds violations. `@` stands for the schema,
/// `$` for the destination.
pub(crate) struct Check {
    pub(crate) description: &'static str,
    rows: &'static str,
}

/// Every statement is complete in itself, so that concurrent traffic cannot cause a false contradiction.
pub(crate) const CHECKS: [Check; 10] = [
    Check {
        description: "parked messages whose key is not parked",
        rows: "SELECT DISTINCT m.key FROM @.parked_message AS m WHERE m.destination = $ AND NOT EXISTS \
               (SELECT 1 FROM @.parked_key AS k WHERE k.destination = m.destination AND k.key = m.key)",
    },
    Check {
        description: "parked keys with an empty queue",
        rows: "SELECT k.key FROM @.parked_key AS k WHERE k.destination = $ AND k.state <> 'dead' AND NOT EXISTS \
               (SELECT 1 FROM @.parked_message AS m WHERE m.destination = k.destination AND m.key = k.key)",
    },
    Check {
        description: "keys that wait for a missing dead letter",
        rows: "SELECT k.key FROM @.parked_key AS k WHERE k.destination = $ AND k.state = 'dead' AND NOT EXISTS \
               (SELECT 1 FROM @.dead_letter AS d WHERE d.destination = k.destination AND d.id = k.dead_id \
               AND d.state IN ('dead', 'redriving', 'discarding'))",
    },
    Check {
        description: "keys that wait for an address that is not held",
        rows: "SELECT k.key FROM @.parked_key AS k WHERE k.destination = $ AND k.state = 'held' AND NOT EXISTS \
               (SELECT 1 FROM @.address_hold AS h WHERE h.destination = k.destination AND h.address = k.address)",
    },
    Check {
        description: "parked keys without a time for the next attempt",
        rows: "SELECT k.key FROM @.parked_key AS k WHERE k.destination = $ AND k.state IN ('retrying', 'quarantined') \
               AND k.next_at IS NULL",
    },
    Check {
        description: "messages that are both parked and dead-lettered",
        rows: "SELECT m.id::text FROM @.parked_message AS m JOIN @.dead_letter AS d \
               ON d.destination = m.destination AND d.seq = m.seq AND d.state <> 'redriven' WHERE m.destination = $",
    },
    Check {
        description: "shards whose progress names a missing tick",
        rows: "SELECT s.shard::text FROM @.shard_positions($) AS s WHERE NOT EXISTS \
               (SELECT 1 FROM @.tick AS t WHERE t.tick = s.from_tick) OR NOT EXISTS \
               (SELECT 1 FROM @.tick AS t WHERE t.tick = s.to_tick)",
    },
    Check {
        description: "leases of shards that do not exist",
        rows: "SELECT l.shard::text FROM @.lease AS l JOIN @.destination AS d ON d.name = l.destination \
               WHERE d.name = $ AND l.shard NOT BETWEEN 0 AND d.shards - 1",
    },
    Check {
        description: "shards without a lease",
        rows: "SELECT n::text FROM @.destination AS d CROSS JOIN LATERAL generate_series(0, d.shards - 1) AS n \
               WHERE d.name = $ AND NOT EXISTS \
               (SELECT 1 FROM @.lease AS l WHERE l.destination = d.name AND l.shard = n)",
    },
    Check {
        description: "shards without progress",
        rows: "SELECT l.shard::text FROM @.lease AS l JOIN @.destination AS d ON d.name = l.destination \
               WHERE d.name = $ AND l.shard < d.shards AND NOT EXISTS (SELECT 1 FROM @.progress AS p \
               WHERE p.destination = d.name AND p.shards = d.shards AND p.shard = l.shard)",
    },
];
