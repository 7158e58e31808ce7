//! What people ask.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use relevo_core::{Raw, route};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::broker::EmbeddedBroker;
use crate::classify::Error;
use crate::group::Stored;

/// Up to here a lag is counted exactly; above, it is only known to be more.
pub const LAG_EXACT_MAX: u64 = 10_000;

/// A message that the broker keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its number at the broker.
    pub seq: u64,
    /// Where it was published to.
    pub address: String,
    /// What its place in an order is decided by.
    pub key: String,
    /// When it was stored, in milliseconds since 1970.
    pub at_ms: i64,
    /// The message, bytes and all.
    pub raw: Raw,
}

/// How a group is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Which addresses it gets.
    pub patterns: Vec<String>,
    /// How many lanes it has.
    pub lanes: u16,
    /// Consumers that are alive.
    pub consumers: u64,
    /// Messages that were never handed out; above [`LAG_EXACT_MAX`] there are at least so many.
    pub lag: u64,
    /// Messages that are handed out and not settled.
    pub out: u64,
    /// Messages that were handed out and came back.
    pub waiting: u64,
}

impl EmbeddedBroker {
    /// Every group, by name.
    pub async fn groups(&self) -> Result<Vec<GroupStatus>, Error> {
        let mut statuses = Vec::new();
        for group in Stored::all(self.0.link.readers()).await? {
            statuses.push(self.status(group).await?);
        }
        Ok(statuses)
    }

    /// Messages of the addresses that match a pattern, with numbers above `after`, oldest first, whoever has
    /// acknowledged them.
    pub async fn peek(&self, pattern: &str, after: u64, limit: usize) -> Result<Vec<Kept>, Error> {
        let mut rows = sqlx::query("SELECT * FROM broker_message WHERE seq > ?1 ORDER BY seq")
            .bind(after.cast_signed())
            .fetch(self.0.link.readers());
        let mut found = Vec::new();
        while found.len() < limit {
            let Some(row) = rows.try_next().await? else { break };
            if route::matches(pattern, row.get("address")) {
                found.push(kept(&row)?);
            }
        }
        Ok(found)
    }

    async fn status(&self, group: Stored) -> Result<GroupStatus, Error> {
        let row = sqlx::query(
            "SELECT (SELECT count(*) FROM broker_member WHERE group_id = ?1 AND lease_until_ms > unixepoch('subsec') * 1000),
                    (SELECT count(*) FROM broker_unacknowledged WHERE group_id = ?1 AND outstanding = 1),
                    (SELECT count(*) FROM broker_unacknowledged WHERE group_id = ?1 AND outstanding = 0)",
        )
        .bind(group.id)
        .fetch_one(self.0.link.readers())
        .await?;
        let number = |column: usize| row.get::<i64, _>(column).cast_unsigned();
        Ok(GroupStatus {
            consumers: number(0),
            lag: self.lag(&group).await?,
            out: number(1),
            waiting: number(2),
            name: group.name,
            patterns: group.patterns,
            lanes: group.lanes,
        })
    }

    async fn lag(&self, group: &Stored) -> Result<u64, Error> {
        let patterns = group.patterns();
        let mut rows = sqlx::query(
            "SELECT m.address FROM broker_message m
             JOIN broker_lane l ON l.group_id = ?1 AND l.lane = m.slot % ?2 AND m.seq > l.cursor
             WHERE m.seq > (SELECT min(cursor) FROM broker_lane WHERE group_id = ?1)",
        )
        .bind(group.id)
        .bind(i64::from(group.lanes))
        .fetch(self.0.link.readers());
        let mut lag = 0;
        while let Some(row) = rows.try_next().await? {
            lag += u64::from(patterns.matches(row.get(0)));
            if lag > LAG_EXACT_MAX {
                break;
            }
        }
        Ok(lag)
    }
}

/// Reads a row of `broker_message`.
pub(crate) fn kept(row: &SqliteRow) -> Result<Kept, Error> {
    let seq: i64 = row.get("seq");
    let headers = serde_json::from_str(row.get("headers"))
        .map_err(|_| Error::Schema { what: format!("the headers of message {seq} cannot be read") })?;
    Ok(Kept {
        seq: seq.cast_unsigned(),
        address: row.get("address"),
        key: row.get("key"),
        at_ms: row.get("stored_at_ms"),
        raw: Raw::new(headers, Bytes::from(row.get::<Vec<u8>, _>("payload"))),
    })
}
