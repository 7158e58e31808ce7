//! The log as a replay source: all stored messages, acknowledged or not.

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use jiff::Timestamp;
use relevo_core::inbox::source::{Ask, Extent, Filter, Logged, Read, ReplaySource, SourceError};
use relevo_core::{Class, Lane};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::broker::EmbeddedBroker;
use crate::classify::Error;
use crate::group::Stored;
use crate::inspect::kept;
use crate::pattern::Patterns;

/// The number of messages that one call reads.
const CHUNK: usize = 5_000;
/// The page size for counting.
const COUNTED: usize = 1_000;

/// The stored messages of a group's addresses, as its consumers receive them.
#[derive(Debug)]
pub struct EmbeddedLog {
    broker: EmbeddedBroker,
    group: Stored,
    patterns: Patterns,
}

impl EmbeddedBroker {
    /// The log with the addresses and lanes of this group.
    pub async fn log(&self, group: &str) -> Result<EmbeddedLog, Error> {
        let stored = Stored::find(self.0.link.readers(), group).await?;
        let group = stored.ok_or_else(|| Error::NoGroup(group.to_owned()))?;
        Ok(EmbeddedLog { broker: self.clone(), patterns: group.patterns(), group })
    }
}

impl EmbeddedLog {
    async fn look(&self, filter: &Filter, ask: Ask) -> Result<Read, Error> {
        let low = filter.start(ask.after);
        let mut rows = sqlx::query("SELECT * FROM broker_message WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3")
            .bind(low.cast_signed())
            .bind(filter.to.map_or(i64::MAX, |to| i64::try_from(to).unwrap_or(i64::MAX)))
            .bind(i64::try_from(CHUNK).unwrap_or(i64::MAX))
            .fetch(self.broker.0.link.readers());
        let mut read = Read { messages: Vec::new(), next: low, ended: false };
        let (mut looked, mut bytes) = (0, 0);
        while let Some(row) = rows.try_next().await? {
            looked += 1;
            let logged = self.logged(&row)?;
            read.next = logged.number;
            if self.patterns.matches(&logged.address) && filter.admits(&logged) {
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
    fn logged(&self, row: &SqliteRow) -> Result<Logged, Error> {
        let slot: i64 = row.get("slot");
        let kept = kept(row)?;
        let at = Timestamp::from_millisecond(kept.at_ms)
            .map_err(|_| Error::Schema { what: format!("the time of message {} cannot be read", kept.seq) })?;
        Ok(Logged {
            number: kept.seq,
            at,
            raw: kept.raw,
            address: kept.address.into(),
            lane: Lane::new((slot % i64::from(self.group.lanes)).to_string()),
            place: Some(kept.seq),
        })
    }
}

/// Converts a broker error for the reader of the log.
fn failed(error: Error) -> SourceError {
    match error.class() {
        Class::Outage => SourceError::Away(error.into()),
        Class::Unknown | Class::Throttled(_) | Class::Transient | Class::Poison | Class::Blocked => {
            SourceError::Broken(error.into())
        }
    }
}

#[async_trait]
impl ReplaySource for EmbeddedLog {
    async fn extent(&self) -> Result<Option<Extent>, SourceError> {
        let select = sqlx::query("SELECT min(seq), max(seq) FROM broker_message");
        let row = select.fetch_one(self.broker.0.link.readers()).await.map_err(|error| failed(error.into()))?;
        let ends = row.get::<Option<i64>, _>(0).zip(row.get::<Option<i64>, _>(1));
        Ok(ends.map(|(first, last)| Extent { first: first.cast_unsigned(), last: last.cast_unsigned() }))
    }

    async fn count(&self, filter: &Filter) -> Result<u64, SourceError> {
        let (mut counted, mut after) = (0, 0);
        loop {
            let read = self.read(filter, Ask { after, limit: COUNTED, bytes: 64 << 20 }).await?;
            counted += read.messages.len() as u64;
            after = read.next;
            if read.ended {
                return Ok(counted);
            }
        }
    }

    async fn read(&self, filter: &Filter, ask: Ask) -> Result<Read, SourceError> {
        self.look(filter, ask).await.map_err(failed)
    }
}
