//! Reads the data of a consumer from the database under test.

use std::collections::BTreeMap;

use anyhow::Result;
use sqlx::{AssertSqlSafe, Row as _};

use crate::database::{Database, Link};
use crate::oracle::{Effect, Left, Mark};

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

/// The tables and columns of an inbox that are read here.
struct Inbox {
    inbox: &'static str,
    trace: &'static str,
    offset: &'static str,
    lane: &'static str,
    settled_offset: &'static str,
    waiting: &'static str,
    dead: &'static str,
    dead_state: &'static str,
    redrives: &'static str,
}

const POSTGRES: Inbox = Inbox {
    inbox: "relevo.inbox",
    trace: "relevo.inbox_trace",
    offset: "place",
    lane: "relevo.inbox_mark",
    settled_offset: "mark",
    waiting: "relevo.inbox_waiting",
    dead: "relevo.inbox_dead",
    dead_state: "fate",
    redrives: "redriven",
};

const SQLITE: Inbox = Inbox {
    inbox: "relevo_inbox",
    trace: "relevo_inbox_trace",
    offset: "broker_offset",
    lane: "relevo_inbox_lane",
    settled_offset: "settled_offset",
    waiting: "relevo_inbox_retry_message",
    dead: "relevo_inbox_dead_letter",
    dead_state: "state",
    redrives: "redrives",
};

impl Database {
    const fn inbox(&self) -> &'static Inbox {
        match self {
            Self::Postgres(_) => &POSTGRES,
            Self::Sqlite(_) => &SQLITE,
        }
    }

    /// The mark of each lane of a consumer, and how many messages its inbox knows up to there: both at the same moment.
    pub(crate) async fn marks(&self, consumer: &str) -> Result<Vec<Mark>> {
        let Inbox { trace, offset, lane, settled_offset, .. } = self.inbox();
        // The trace has one row for each message that the inbox knows.
        let known = format!(
            "SELECT count(*) FROM {trace} AS t WHERE t.consumer = k.consumer AND t.lane = k.lane \
             AND t.{offset} <= k.{settled_offset}"
        );
        let sql = format!(
            "SELECT k.lane, CAST(k.{settled_offset} AS bigint), ({known}) FROM {lane} AS k \
             WHERE k.consumer = $1 AND k.{settled_offset} IS NOT NULL"
        );
        let mut link = self.connect().await?;
        Ok(rows!(&mut link, sql, consumer, |row| {
            Ok(Mark { lane: row.try_get(0)?, mark: row.try_get(1)?, known: row.try_get(2)? })
        }))
    }

    /// All data of a consumer, and the state of marks that were sampled during the run.
    pub(crate) async fn left(&self, consumer: &str, seen: &[Mark]) -> Result<Left> {
        let Inbox { inbox, trace, offset, waiting, dead, dead_state, redrives, .. } = self.inbox();
        let mut link = self.connect().await?;
        let effects =
            "SELECT message_id, message_key, change FROM ledger WHERE consumer = $1 ORDER BY place".to_owned();
        let effects = rows!(&mut link, effects, consumer, |row| {
            Ok(Effect { id: row.try_get(0)?, key: row.try_get(1)?, number: row.try_get(2)? })
        });
        let states = format!("SELECT state, count(*) FROM {inbox} WHERE consumer = $1 GROUP BY state");
        let states = rows!(&mut link, states, consumer, |row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let counts = format!(
            "SELECT (SELECT count(*) FROM {waiting} WHERE consumer = $1),
                    (SELECT count(*) FROM {dead} WHERE consumer = $1 AND {dead_state} = 'pending'),
                    (SELECT CAST(coalesce(sum({redrives}), 0) AS bigint) FROM {dead} WHERE consumer = $1)"
        );
        let counts = rows!(&mut link, counts, consumer, |row| {
            Ok([row.try_get::<i64, _>(0)?, row.try_get(1)?, row.try_get(2)?])
        });
        let [waiting, dead, redriven] = counts.first().copied().unwrap_or_default();
        let places = format!(
            "SELECT lane, CAST({offset} AS bigint) FROM {trace}
             WHERE consumer = $1 AND {offset} IS NOT NULL ORDER BY lane, {offset}"
        );
        let places = rows!(&mut link, places, consumer, |row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let mut lanes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (lane, place) in places {
            lanes.entry(lane).or_default().push(place);
        }
        let in_the_end = |mark: &Mark| {
            let places = lanes.get(&mark.lane).map_or(&[][..], Vec::as_slice);
            i64::try_from(places.partition_point(|place| *place <= mark.mark)).unwrap_or(i64::MAX)
        };
        let marks = seen.iter().map(|mark| (mark.clone(), in_the_end(mark))).collect();
        Ok(Left { effects, states: states.into_iter().collect(), waiting, dead, redriven, marks })
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
        let inbox = self.inbox().inbox;
        let sql = format!("SELECT count(*) FILTER (WHERE state = 'done'), count(*) FROM {inbox} WHERE consumer = $1");
        let mut link = self.connect().await?;
        let counts = rows!(&mut link, sql, consumer, |row| Ok((row.try_get(0)?, row.try_get(1)?)));
        Ok(counts.first().copied().unwrap_or_default())
    }
}
