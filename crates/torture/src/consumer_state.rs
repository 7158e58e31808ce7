//! Reads the data of a consumer from the database under test.

use std::collections::BTreeMap;

use anyhow::Result;
use sqlx::{AssertSqlSafe, Row as _};

use crate::database::{Database, Link};
use crate::oracle::{ConsumerState, Effect, LaneMark};

/// Runs a query with the consumer as its only parameter, on either database, and reads each row.
macro_rules! rows {
    ($link:expr, $sql:expr, $consumer:expr, $read:expr) => {
        match $link {
            Link::Postgres(connection) => {
                let rows = sqlx::query(AssertSqlSafe($sql)).bind($consumer).fetch_all(connection).await?;
                rows.iter().map($read).collect::<Result<Vec<_>>>()?
            }
            Link::Sqlite(connection) => {
                let rows = sqlx::query(AssertSqlSafe($sql)).bind($consumer).fetch_all(connection).await?;
                rows.iter().map($read).collect::<Result<Vec<_>>>()?
            }
        }
    };
}

impl Database {
    /// The mark of each lane of a consumer, and how many messages its inbox knows up to there: both at the same moment.
    pub(crate) async fn marks(&self, consumer: &str) -> Result<Vec<LaneMark>> {
        let (marks, inbox) = match self {
            Self::Postgres(_) => ("relevo.inbox_lane_status", "relevo.inbox"),
            Self::Sqlite(_) => ("relevo_inbox_lane", "relevo_inbox"),
        };
        let known = format!(
            "SELECT count(DISTINCT t.broker_offset) FROM ({}) AS t WHERE t.lane = k.lane AND t.broker_offset <= k.settled_offset",
            known_offsets(inbox)
        );
        let sql = format!(
            "SELECT k.lane, CAST(k.settled_offset AS bigint), ({known}) FROM {marks} AS k WHERE k.consumer = $1 AND k.settled_offset IS NOT NULL"
        );
        let mut link = self.connect().await?;
        Ok(rows!(&mut link, sql, consumer, |row| {
            Ok(LaneMark { lane: row.try_get(0)?, mark: row.try_get(1)?, known: row.try_get(2)? })
        }))
    }

    /// All data of a consumer, and the state of marks that were sampled during the run.
    pub(crate) async fn consumer_state(&self, consumer: &str, sampled: &[LaneMark]) -> Result<ConsumerState> {
        let inbox = match self {
            Self::Postgres(_) => "relevo.inbox",
            Self::Sqlite(_) => "relevo_inbox",
        };
        let mut link = self.connect().await?;
        let effects =
            "SELECT message_id, message_key, change FROM ledger WHERE consumer = $1 ORDER BY place".to_owned();
        let effects = rows!(&mut link, effects, consumer, |row| {
            Ok(Effect { id: row.try_get(0)?, key: row.try_get(1)?, number: row.try_get(2)? })
        });
        let states = format!("SELECT state, count(*) FROM {inbox} WHERE consumer = $1 GROUP BY state");
        let states = rows!(&mut link, states, consumer, |row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let counts = format!(
            "SELECT (SELECT count(*) FROM {inbox}_retry_message WHERE consumer = $1),
                    (SELECT count(*) FROM {inbox}_dead_letter WHERE consumer = $1 AND state = 'dead'),
                    (SELECT CAST(coalesce(sum(redrives), 0) AS bigint) FROM {inbox}_dead_letter WHERE consumer = $1)"
        );
        let counts = rows!(&mut link, counts, consumer, |row| {
            Ok([row.try_get::<i64, _>(0)?, row.try_get(1)?, row.try_get(2)?])
        });
        let [waiting, dead, redriven] = counts.first().copied().unwrap_or_default();
        let offsets = format!(
            "SELECT DISTINCT lane, CAST(broker_offset AS bigint) AS n FROM ({}) AS t WHERE broker_offset IS NOT NULL ORDER BY lane, n",
            known_offsets(inbox)
        );
        let offsets = rows!(&mut link, offsets, consumer, |row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let mut lanes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (lane, offset) in offsets {
            lanes.entry(lane).or_default().push(offset);
        }
        let at_end = |mark: &LaneMark| {
            let offsets = lanes.get(&mark.lane).map_or(&[][..], Vec::as_slice);
            i64::try_from(offsets.partition_point(|offset| *offset <= mark.mark)).unwrap_or(i64::MAX)
        };
        let marks = sampled.iter().map(|mark| (mark.clone(), at_end(mark))).collect();
        Ok(ConsumerState { effects, states: states.into_iter().collect(), waiting, dead, redriven, marks })
    }

    /// The number of committed changes.
    pub(crate) async fn committed(&self) -> Result<i64> {
        let sql = "SELECT count(*) FROM torture_change WHERE token <> $1".to_owned();
        let mut link = self.connect().await?;
        let counts = rows!(&mut link, sql, "", |row| Ok(row.try_get(0)?));
        Ok(counts.first().copied().unwrap_or_default())
    }

    /// The number of messages that a consumer's inbox has as done, and the number that it knows in total.
    pub(crate) async fn done(&self, consumer: &str) -> Result<(i64, i64)> {
        let inbox = match self {
            Self::Postgres(_) => "relevo.inbox",
            Self::Sqlite(_) => "relevo_inbox",
        };
        let sql = format!("SELECT count(*) FILTER (WHERE state = 'done'), count(*) FROM {inbox} WHERE consumer = $1");
        let mut link = self.connect().await?;
        let counts = rows!(&mut link, sql, consumer, |row| Ok((row.try_get(0)?, row.try_get(1)?)));
        Ok(counts.first().copied().unwrap_or_default())
    }
}

/// The lane and offset of each message that a consumer has handled, or that waits or is dead.
fn known_offsets(inbox: &str) -> String {
    format!(
        "SELECT lane, broker_offset FROM ledger WHERE consumer = $1
         UNION ALL SELECT lane, broker_offset FROM {inbox}_retry_message WHERE consumer = $1
         UNION ALL SELECT lane, broker_offset FROM {inbox}_dead_letter WHERE consumer = $1"
    )
}
