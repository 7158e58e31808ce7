//! Status and stored messages, for operators.

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use relevo_core::{RawMessage, route};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::broker::BrokerFile;
use crate::classify::Error;
use crate::topology::StoredGroup;

/// The lag is exact up to this number. Above it, the real lag may be higher.
pub const LAG_COUNT_MAX: u64 = 10_000;

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its sequence number in the log.
    pub seq: u64,
    /// The address that it was published to.
    pub address: String,
    /// The key that decides its order.
    pub key: String,
    /// When it was stored, in milliseconds since the Unix epoch.
    pub stored_at_ms: i64,
    /// Headers and payload.
    pub raw: RawMessage,
}

/// The status of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The name.
    pub name: String,
    /// The address patterns of the group.
    pub patterns: Vec<String>,
    /// The number of lanes.
    pub lanes: u16,
    /// The number of live consumers.
    pub consumers: u64,
    /// The number of messages that were never delivered. Above [`LAG_COUNT_MAX`] it is a lower bound.
    pub lag: u64,
    /// The number of messages that are delivered and not acknowledged.
    pub outstanding: u64,
    /// The number of messages that were delivered, returned and wait for the next delivery.
    pub ready: u64,
}

impl BrokerFile {
    /// The status of every group, sorted by name.
    pub async fn groups(&self) -> Result<Vec<GroupStatus>, Error> {
        let mut statuses = Vec::new();
        for group in StoredGroup::all(self.0.connections.readers()).await? {
            statuses.push(self.status(group).await?);
        }
        Ok(statuses)
    }

    /// Reads messages whose address matches a pattern and whose sequence number is above `after`, oldest first.
    /// Acknowledged messages are included.
    pub async fn peek(&self, pattern: &str, after: u64, limit: usize) -> Result<Vec<StoredMessage>, Error> {
        let mut rows = sqlx::query("SELECT * FROM broker_message WHERE seq > ?1 ORDER BY seq")
            .bind(after.cast_signed())
            .fetch(self.0.connections.readers());
        let mut found = Vec::new();
        while found.len() < limit {
            let Some(row) = rows.try_next().await? else { break };
            if route::pattern_matches(pattern, row.get("address")) {
                found.push(stored_message(&row)?);
            }
        }
        Ok(found)
    }

    async fn status(&self, group: StoredGroup) -> Result<GroupStatus, Error> {
        let row = sqlx::query(
            "SELECT (SELECT count(*) FROM broker_member WHERE group_id = ?1 AND lease_until_ms > unixepoch('subsec') * 1000),
                    (SELECT count(*) FROM broker_unacknowledged WHERE group_id = ?1 AND outstanding = 1),
                    (SELECT count(*) FROM broker_unacknowledged WHERE group_id = ?1 AND outstanding = 0)",
        )
        .bind(group.id)
        .fetch_one(self.0.connections.readers())
        .await?;
        let number = |column: usize| row.get::<i64, _>(column).cast_unsigned();
        Ok(GroupStatus {
            consumers: number(0),
            lag: self.lag(&group).await?,
            outstanding: number(1),
            ready: number(2),
            name: group.name,
            patterns: group.patterns,
            lanes: group.lanes,
        })
    }

    async fn lag(&self, group: &StoredGroup) -> Result<u64, Error> {
        let patterns = group.patterns();
        let mut rows = sqlx::query(
            "SELECT m.address FROM broker_message m
             JOIN broker_lane l ON l.group_id = ?1 AND l.lane = m.slot % ?2 AND m.seq > l.cursor
             WHERE m.seq > (SELECT min(cursor) FROM broker_lane WHERE group_id = ?1)",
        )
        .bind(group.id)
        .bind(i64::from(group.lanes))
        .fetch(self.0.connections.readers());
        let mut lag = 0;
        while let Some(row) = rows.try_next().await? {
            lag += u64::from(patterns.matches(row.get(0)));
            if lag > LAG_COUNT_MAX {
                break;
            }
        }
        Ok(lag)
    }
}

/// Reads a row of `broker_message`.
pub(crate) fn stored_message(row: &SqliteRow) -> Result<StoredMessage, Error> {
    let seq: i64 = row.get("seq");
    let headers = serde_json::from_str(row.get("headers"))
        .map_err(|_| Error::Schema { what: format!("the headers of message {seq} cannot be read") })?;
    Ok(StoredMessage {
        seq: seq.cast_unsigned(),
        address: row.get("address"),
        key: row.get("key"),
        stored_at_ms: row.get("stored_at_ms"),
        raw: RawMessage::new(headers, Bytes::from(row.get::<Vec<u8>, _>("payload"))),
    })
}
