//! The statements that read the log for a replay.

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::Message;
use relevo_core::outbox::search::MessageFilter;
use relevo_core::replay_source::{ReplayFilter, ReplayReadRequest};

use super::StatusStatements;
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::queries::read::full_message;

/// The number of messages that one call reads.
const CHUNK: usize = 5_000;

/// A range of consecutive log rows.
pub(crate) struct Chunk {
    pub(crate) last: i64,
    pub(crate) is_full: bool,
    pub(crate) newest: Timestamp,
}

/// The number of messages of one topic, type and key.
pub(crate) struct GroupCount {
    pub(crate) topic: ByteString,
    pub(crate) kind: ByteString,
    /// Empty if messages are not counted by key.
    pub(crate) key: ByteString,
    pub(crate) count: u64,
}

impl StatusStatements {
    /// Selects the end of the next chunk, its length and its newest emit time. `low` is exclusive, `high` inclusive.
    pub(crate) fn replay_chunk(&self, low: i64, high: i64) -> String {
        let schema = &self.schema;
        format!(
            "SELECT max(c.seq), count(*), max(c.created_at) FROM (SELECT seq, created_at FROM {schema}.message \
             WHERE seq > {low} AND seq <= {high} ORDER BY seq LIMIT {CHUNK}) AS c HAVING count(*) > 0"
        )
    }

    /// Selects the messages of a chunk. A running sum of the payloads before each row stops the page at its byte limit.
    /// Larger payloads are not sent.
    pub(crate) fn replay_page(
        &self,
        filter: &ReplayFilter,
        low: i64,
        high: i64,
        request: &ReplayReadRequest,
    ) -> String {
        let schema = &self.schema;
        format!(
            "SELECT seq, id, created_at, topic, key, type, content_type, headers::text, payload FROM (\
             SELECT m.*, sum(octet_length(m.payload)::bigint) OVER (ORDER BY m.seq) - octet_length(m.payload) AS before \
             FROM (SELECT * FROM {schema}.message WHERE seq > {low} AND seq <= {high}{} ORDER BY seq LIMIT {}) AS m) AS w \
             WHERE before < {} ORDER BY seq",
            condition(filter),
            request.limit.max(1),
            request.bytes.max(1),
        )
    }

    /// Counts by topic and type, which determine the route, and by key if the filter names an address.
    pub(crate) fn count_by_group(&self, filter: &ReplayFilter, low: i64, high: i64) -> String {
        let by = if filter.address.is_some() { "topic, type, key" } else { "topic, type, ''" };
        format!(
            "SELECT {by}, count(*) FROM {}.message WHERE seq > {low} AND seq <= {high}{} GROUP BY 1, 2, 3",
            self.schema,
            condition(filter)
        )
    }
}

fn condition(filter: &ReplayFilter) -> String {
    super::condition(&MessageFilter {
        key: filter.key.clone(),
        topic: filter.topic.clone(),
        kind: filter.kind.clone(),
        since: filter.since,
        until: filter.until,
        ..MessageFilter::default()
    })
}

/// Reads the row of [`StatusStatements::replay_chunk`].
pub(crate) fn decode_chunk(answer: Bytes) -> Result<Option<Chunk>, Error> {
    let mut rows = CopyRows::new(answer, 3)?;
    let row = rows.next_row()?;
    row.map(|mut row| {
        let (last, count, newest) = (row.int8()?, row.count()?, row.timestamp()?);
        Ok(Chunk { last, is_full: count >= CHUNK as u64, newest })
    })
    .transpose()
}

/// Reads the rows of [`StatusStatements::replay_page`], each with its sequence number.
pub(crate) fn decode_replay_page(answer: Bytes) -> Result<Vec<(i64, Message)>, Error> {
    let mut rows = CopyRows::new(answer, 9)?;
    let mut messages = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        messages.push((row.int8()?, full_message(&mut row)?));
    }
    Ok(messages)
}

/// Reads the rows of [`StatusStatements::count_by_group`].
pub(crate) fn decode_group_counts(answer: Bytes) -> Result<Vec<GroupCount>, Error> {
    let mut rows = CopyRows::new(answer, 4)?;
    let mut groups = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        groups.push(GroupCount { topic: row.text()?, kind: row.text()?, key: row.text()?, count: row.count()? });
    }
    Ok(groups)
}
