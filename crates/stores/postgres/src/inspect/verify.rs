//! Compares committed with settled messages: counts by ranges of sequence numbers, then checks for contradictions.
//! Every check is one statement, so that concurrent traffic cannot cause a false contradiction.

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use relevo_core::outbox::inspect::MessageStatus;
use relevo_core::outbox::search::{MessageFilter, TimeRange, VerifyReport};

use super::listing::{self, SeqRange, Sources, Sql};
use super::search::{ScanWidth, minus_skew, plus_skew, seq_and_time, seq_at};
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::store::Store;

/// Maximum number of examples per contradiction. Further ones are only counted.
const NAMED_MAX: usize = 5;

pub(super) async fn verify(store: &Store, range: TimeRange) -> Result<VerifyReport, Error> {
    let mut tally = StatusCounts::default();
    let sql = Sql::of(store);
    let condition =
        listing::condition(&MessageFilter { since: range.since, until: range.until, ..MessageFilter::default() });
    let mut from = match range.since {
        Some(since) => seq_at(store, minus_skew(since)).await?,
        None => i64::MIN,
    };
    let until = match range.until {
        Some(until) => seq_at(store, plus_skew(until)).await?,
        None => i64::MAX,
    };
    let mut width = ScanWidth::first();
    while let Some((next, _)) = seq_and_time(store, sql.next(from)).await?.filter(|(next, _)| *next < until) {
        let asked = Instant::now();
        let numbers = SeqRange { start: next, end: next.saturating_add(width.get()).min(until) };
        tally.add(store, &sql, &numbers, &condition).await?;
        width.adapt(asked.elapsed());
        from = numbers.end;
    }
    let mut verified = tally.into_report();
    for check in CHECKS {
        verified.inconsistencies.extend(check.run(store, &sql).await?);
    }
    Ok(verified)
}

/// The counts so far.
#[derive(Default)]
struct StatusCounts {
    counts: BTreeMap<MessageStatus, u64>,
    oldest_unsettled: Option<Timestamp>,
    /// Messages that no later window can contain. `skipped` counts those that a window passed without containing them.
    stranded: u64,
    skipped: u64,
    examples: Vec<i64>,
}

impl StatusCounts {
    async fn add(&mut self, store: &Store, sql: &Sql, numbers: &SeqRange, condition: &str) -> Result<(), Error> {
        // A window contains numbers above the tick's `max_seq`, and below it those of late transactions. Nothing else
        // is ever read. A message that is visible at the tick has a number up to `max_seq`, because `max_seq` is read
        // afterwards.
        let query = format!(
            "{} SELECT status, count(*), min(created_at), \
             count(*) FILTER (WHERE stranded), count(*) FILTER (WHERE skipped), \
             coalesce(min(seq) FILTER (WHERE stranded OR skipped), -1) \
             FROM (SELECT *, status = 'pending' AND seq <= max_seq AND xid <> ALL (late_xids) AS stranded, \
                 status = 'published' AND seen_from AND seq > max_seq AS skipped FROM ({}) AS every) AS every GROUP BY status",
            sql.stand(),
            sql.standing(Sources::LOG, numbers, condition)
        );
        let mut rows = CopyRows::new(store.operator_connection.copy_out(query).await?, 6)?;
        while let Some(mut row) = rows.next_row()? {
            let status =
                MessageStatus::parse(&row.text()?).ok_or(Error::UnexpectedResponse("a status is not known"))?;
            *self.counts.entry(status).or_default() += row.count()?;
            let oldest = row.timestamp()?;
            let waits = match status {
                MessageStatus::Published | MessageStatus::Dead | MessageStatus::Discarded => false,
                MessageStatus::Scheduled
                | MessageStatus::Pending
                | MessageStatus::Retrying
                | MessageStatus::Held
                | MessageStatus::Quarantined
                | MessageStatus::Waiting => true,
            };
            if waits {
                self.oldest_unsettled = Some(self.oldest_unsettled.map_or(oldest, |known| known.min(oldest)));
            }
            self.stranded += row.count()?;
            self.skipped += row.count()?;
            let example = row.int8()?;
            if example >= 0 && self.examples.len() < NAMED_MAX {
                self.examples.push(example);
            }
        }
        Ok(())
    }

    fn into_report(self) -> VerifyReport {
        let example = self.examples.first().map_or_else(String::new, |seq| format!(", such as number {seq}"));
        let mut contradictions = Vec::new();
        if self.stranded > 0 {
            contradictions.push(format!(
                "{} messages are neither settled nor ahead of their shard: no window will hold them{example}",
                self.stranded
            ));
        }
        if self.skipped > 0 {
            contradictions
                .push(format!("{} messages count as settled although no window held them{example}", self.skipped));
        }
        let counted = |status| (status, self.counts.get(&status).copied().unwrap_or(0));
        VerifyReport {
            committed: self.counts.values().sum(),
            by_status: MessageStatus::ALL.into_iter().map(counted).collect(),
            oldest_unsettled: self.oldest_unsettled,
            inconsistencies: contradictions,
        }
    }
}

/// A condition that must never hold: its description, and the query that finds violations. `@` stands for the schema,
/// `$` for the destination.
struct Check {
    description: &'static str,
    rows: &'static str,
}

impl Check {
    async fn run(&self, store: &Store, sql: &Sql) -> Result<Option<String>, Error> {
        let rows = self.rows.replace('@', sql.schema()).replace('$', sql.destination());
        let query = format!("SELECT it, count(*) OVER () FROM ({rows}) AS wrong(it) ORDER BY it LIMIT {NAMED_MAX}");
        let mut rows = CopyRows::new(store.operator_connection.copy_out(query).await?, 2)?;
        let mut names = Vec::new();
        let mut count = 0;
        while let Some(mut row) = rows.next_row()? {
            names.push(format!("`{}`", row.text()?));
            count = row.count()?;
        }
        if names.is_empty() {
            return Ok(None);
        }
        let more = if count > names.len() as u64 { " …" } else { "" };
        Ok(Some(format!("{}: {count} ({}{more})", self.description, names.join(", "))))
    }
}

const CHECKS: [Check; 10] = [
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
        description: "keys held by a dead letter that is not there",
        rows: "SELECT k.key FROM @.parked_key AS k WHERE k.destination = $ AND k.state = 'dead' AND NOT EXISTS \
               (SELECT 1 FROM @.dead_letter AS d WHERE d.destination = k.destination AND d.id = k.dead_id \
               AND d.state IN ('dead', 'redriving', 'discarding'))",
    },
    Check {
        description: "keys that wait for an address which is not held",
        rows: "SELECT k.key FROM @.parked_key AS k WHERE k.destination = $ AND k.state = 'held' AND NOT EXISTS \
               (SELECT 1 FROM @.address_hold AS h WHERE h.destination = k.destination AND h.address = k.address)",
    },
    Check {
        description: "keys that wait for no time",
        rows: "SELECT k.key FROM @.parked_key AS k WHERE k.destination = $ AND k.state IN ('retrying', 'quarantined') \
               AND k.next_at IS NULL",
    },
    Check {
        description: "messages that are parked and dead at once",
        rows: "SELECT m.id::text FROM @.parked_message AS m JOIN @.dead_letter AS d \
               ON d.destination = m.destination AND d.seq = m.seq AND d.state <> 'redriven' WHERE m.destination = $",
    },
    Check {
        description: "shards whose progress names a tick that is gone",
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
