//! The log as a replay source: all stored messages, acknowledged or not.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use relevo_core::replay_source::{
    LogBounds, LogMessage, ReplayFilter, ReplayPage, ReplayReadRequest, ReplaySource, ReplaySourceError,
};
use relevo_core::{Failure, Lane, RawMessage};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::address::AddressPatterns;
use crate::classify::Error;
use crate::publish::BrokerFile;
use crate::topology::StoredGroup;

/// The number of messages that one call reads.
const CHUNK: usize = 5_000;

/// The stored messages of a group's addresses, as its consumers receive them.
#[derive(Debug)]
pub struct ReplayLog {
    broker: BrokerFile,
    group: StoredGroup,
    patterns: AddressPatterns,
}

impl BrokerFile {
    /// The log with the addresses and lanes of this group.
    pub async fn replay_log(&self, group: &str) -> Result<ReplayLog, Error> {
        let stored = StoredGroup::find(self.0.connections.readers(), group).await?;
        let group = stored.ok_or_else(|| Error::GroupNotFound(group.to_owned()))?;
        Ok(ReplayLog { broker: self.clone(), patterns: group.patterns(), group })
    }
}

impl ReplayLog {
    async fn read_page(&self, filter: &ReplayFilter, request: ReplayReadRequest) -> Result<ReplayPage, Error> {
        let low = filter.start_after(request.after);
        let mut rows = sqlx::query("SELECT * FROM broker_message WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3")
            .bind(low.cast_signed())
            .bind(filter.to.map_or(i64::MAX, |to| i64::try_from(to).unwrap_or(i64::MAX)))
            .bind(i64::try_from(CHUNK).unwrap_or(i64::MAX))
            .fetch(self.broker.0.connections.readers());
        let mut page = ReplayPage { messages: Vec::new(), next: low, ended: false };
        let (mut scanned, mut bytes) = (0, 0);
        while let Some(row) = rows.try_next().await? {
            scanned += 1;
            let message = self.to_log_message(&row)?;
            page.next = message.number;
            if self.patterns.matches(&message.address) && filter.matches(&message) {
                bytes += message.raw.payload.len();
                page.messages.push(message);
            }
            if page.messages.len() >= request.limit || bytes >= request.bytes {
                return Ok(page);
            }
        }
        page.ended = scanned < CHUNK;
        Ok(page)
    }

    /// Converts a row to the form that this group's consumers receive.
    fn to_log_message(&self, row: &SqliteRow) -> Result<LogMessage, Error> {
        let seq: i64 = row.get("seq");
        let malformed = |part| Error::Schema { detail: format!("the {part} of message {seq} is malformed") };
        let headers = serde_json::from_str(row.get("headers")).map_err(|_| malformed("header"))?;
        let at = Timestamp::from_millisecond(row.get("stored_at_ms")).map_err(|_| malformed("time"))?;
        let lane = row.get::<i64, _>("slot") % i64::from(self.group.lanes);
        Ok(LogMessage {
            number: seq.cast_unsigned(),
            at,
            raw: RawMessage::new(headers, Bytes::from(row.get::<Vec<u8>, _>("payload"))),
            address: row.get::<&str, _>("address").into(),
            lane: Lane::new(lane.to_string()),
            offset: Some(seq.cast_unsigned()),
        })
    }
}

#[async_trait]
impl ReplaySource for ReplayLog {
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError> {
        let select = sqlx::query("SELECT min(seq), max(seq) FROM broker_message");
        let row = select.fetch_one(self.broker.0.connections.readers()).await;
        let row = row.map_err(|error| Failure::from(Error::from(error)))?;
        let ends = row.get::<Option<i64>, _>(0).zip(row.get::<Option<i64>, _>(1));
        Ok(ends.map(|(first, last)| LogBounds { first: first.cast_unsigned(), last: last.cast_unsigned() }))
    }

    async fn read(&self, filter: &ReplayFilter, request: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError> {
        Ok(self.read_page(filter, request).await.map_err(Failure::from)?)
    }
}
