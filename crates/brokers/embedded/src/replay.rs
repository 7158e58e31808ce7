//! The log as a replay source: all stored messages, acknowledged or not.

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use relevo_core::replay_source::{
    LogBounds, LogMessage, ReplayFilter, ReplayPage, ReplayReadRequest, ReplaySource, ReplaySourceError,
};
use relevo_core::{Class, Lane};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::address::AddressPatterns;
use crate::broker::BrokerFile;
use crate::classify::Error;
use crate::inspect::stored_message;
use crate::topology::StoredGroup;

/// The number of messages that one call reads.
const CHUNK: usize = 5_000;
/// The page size for counting.
const COUNT_PAGE: usize = 1_000;

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
    async fn read_page(&self, filter: &ReplayFilter, ask: ReplayReadRequest) -> Result<ReplayPage, Error> {
        let low = filter.start_after(ask.after);
        let mut rows = sqlx::query("SELECT * FROM broker_message WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3")
            .bind(low.cast_signed())
            .bind(filter.to.map_or(i64::MAX, |to| i64::try_from(to).unwrap_or(i64::MAX)))
            .bind(i64::try_from(CHUNK).unwrap_or(i64::MAX))
            .fetch(self.broker.0.connections.readers());
        let mut read = ReplayPage { messages: Vec::new(), next: low, ended: false };
        let (mut looked, mut bytes) = (0, 0);
        while let Some(row) = rows.try_next().await? {
            looked += 1;
            let logged = self.to_log_message(&row)?;
            read.next = logged.number;
            if self.patterns.matches(&logged.address) && filter.matches(&logged) {
                bytes += logged.raw.payload.len();
                read.messages.push(logged);
            }
            if read.messages.len() >= ask.limit || bytes >= ask.bytes {
                return Ok(read);
            }
        }
        read.ended = looked < CHUNK;
        Ok(read)
    }

    /// Converts a row to the form that this group's consumers receive.
    fn to_log_message(&self, row: &SqliteRow) -> Result<LogMessage, Error> {
        let slot: i64 = row.get("slot");
        let kept = stored_message(row)?;
        let at = Timestamp::from_millisecond(kept.stored_at_ms)
            .map_err(|_| Error::Schema { what: format!("the time of message {} cannot be read", kept.seq) })?;
        Ok(LogMessage {
            number: kept.seq,
            at,
            raw: kept.raw,
            address: kept.address.into(),
            lane: Lane::new((slot % i64::from(self.group.lanes)).to_string()),
            offset: Some(kept.seq),
        })
    }
}

/// Converts a broker error for the reader of the log.
fn source_error(error: Error) -> ReplaySourceError {
    match error.class() {
        Class::Outage => ReplaySourceError::Unreachable(error.into()),
        Class::Unknown | Class::Throttled(_) | Class::Transient | Class::Poison | Class::Blocked => {
            ReplaySourceError::Failed(error.into())
        }
    }
}

#[async_trait]
impl ReplaySource for ReplayLog {
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError> {
        let select = sqlx::query("SELECT min(seq), max(seq) FROM broker_message");
        let row =
            select.fetch_one(self.broker.0.connections.readers()).await.map_err(|error| source_error(error.into()))?;
        let ends = row.get::<Option<i64>, _>(0).zip(row.get::<Option<i64>, _>(1));
        Ok(ends.map(|(first, last)| LogBounds { first: first.cast_unsigned(), last: last.cast_unsigned() }))
    }

    async fn count(&self, filter: &ReplayFilter) -> Result<u64, ReplaySourceError> {
        let (mut counted, mut after) = (0, 0);
        loop {
            let read = self.read(filter, ReplayReadRequest { after, limit: COUNT_PAGE, bytes: 64 << 20 }).await?;
            counted += read.messages.len() as u64;
            after = read.next;
            if read.ended {
                return Ok(counted);
            }
        }
    }

    async fn read(&self, filter: &ReplayFilter, ask: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError> {
        self.read_page(filter, ask).await.map_err(source_error)
    }
}
