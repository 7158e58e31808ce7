//! The outbox log as a replay source, read forwards by ranges of sequence numbers with plain SELECTs.
//!
//! A transaction that commits during the read may add a number that was already passed. No message is lost: it is live,
//! and the relay publishes it.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use relevo_core::Message;
use relevo_core::outbox::search::MessageFilter;
use relevo_core::replay_source::{
    LogBounds, LogMessage, OutboxRouting, ReplayFilter, ReplayPage, ReplayReadRequest, ReplaySource, ReplaySourceError,
};
use relevo_core::store::StoreError;

use super::listing::{self, Sources, Sql};
use super::search::{ScanWidth, minus_skew, seq_and_time, seq_at};
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::queries::full_message;
use crate::store::Store;

/// The number of messages that one call reads.
const CHUNK: usize = 5_000;

/// The log of an outbox, with the routing of its relay.
pub struct OutboxReplaySource {
    store: Arc<Store>,
    routing: OutboxRouting,
}

impl OutboxReplaySource {
    /// Creates a replay source for this outbox. `sending` defines how its messages are sent.
    pub const fn new(store: Arc<Store>, routing: OutboxRouting) -> Self {
        Self { store, routing }
    }

    /// Returns the bounds of a filter: the first is exclusive, the second inclusive.
    async fn seq_bounds(&self, filter: &ReplayFilter, after: u64) -> Result<(i64, i64), Error> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let mut low = signed(filter.start_after(after));
        // After the first page the position is already past that time.
        if let Some(since) = filter.since.filter(|_| after == 0) {
            low = low.max(seq_at(&self.store, minus_skew(since)).await?.saturating_sub(1));
        }
        Ok((low, filter.to.map_or(i64::MAX, signed)))
    }

    /// Returns the end of the next chunk, whether it is full, and its newest emit time.
    async fn chunk(&self, low: i64, high: i64) -> Result<Option<Chunk>, Error> {
        let sql = format!(
            "SELECT max(c.seq), count(*), max(c.created_at) FROM (SELECT seq, created_at FROM {}.message \
             WHERE seq > {low} AND seq <= {high} ORDER BY seq LIMIT {CHUNK}) AS c HAVING count(*) > 0",
            self.store.schema
        );
        let mut rows = CopyRows::new(self.store.operator_connection.copy_out(sql).await?, 3)?;
        let row = rows.next_row()?;
        row.map(|mut row| {
            let (last, count, newest) = (row.int8()?, row.count()?, row.timestamp()?);
            Ok(Chunk { last, is_full: count >= CHUNK as u64, newest })
        })
        .transpose()
    }

    async fn read_page(&self, filter: &ReplayFilter, ask: ReplayReadRequest) -> Result<ReplayPage, Error> {
        let (low, high) = self.seq_bounds(filter, ask.after).await?;
        let Some(chunk) = self.chunk(low, high).await? else {
            return Ok(ReplayPage { messages: Vec::new(), next: ask.after.max(low.unsigned_abs()), ended: true });
        };
        // A running sum of the payloads before each row stops the page at its byte limit. Larger payloads are not sent.
        let sql = format!(
            "SELECT seq, id, created_at, topic, key, type, content_type, headers::text, payload FROM (\
             SELECT m.*, sum(octet_length(m.payload)::bigint) OVER (ORDER BY m.seq) - octet_length(m.payload) AS before \
             FROM (SELECT * FROM {}.message WHERE seq > {low} AND seq <= {}{} ORDER BY seq LIMIT {}) AS m) AS w \
             WHERE before < {} ORDER BY seq",
            self.store.schema,
            chunk.last,
            condition(filter),
            ask.limit.max(1),
            ask.bytes.max(1),
        );
        let mut rows = CopyRows::new(self.store.operator_connection.copy_out(sql).await?, 9)?;
        let (mut found, mut bytes, mut last) = (Vec::new(), 0, low);
        let mut count = 0;
        while let Some(mut row) = rows.next_row()? {
            last = row.int8()?;
            let message = full_message(&mut row)?;
            count += 1;
            bytes += message.payload.len();
            found.extend(self.routing.to_log_message(last, message).filter(|logged| filter.matches(logged)));
        }
        let is_cut = count >= ask.limit.max(1) || bytes >= ask.bytes.max(1);
        let passed = filter.until.is_some_and(|until| minus_skew(chunk.newest) >= until);
        let (next, ended) = if is_cut { (last, false) } else { (chunk.last, !chunk.is_full || passed) };
        Ok(ReplayPage { messages: found, next: next.unsigned_abs(), ended })
    }

    /// Counts by topic and type, which determine the route, and by key if the filter names an address.
    async fn count_all(&self, filter: &ReplayFilter) -> Result<u64, Error> {
        let (mut low, high) = self.seq_bounds(filter, 0).await?;
        let Some((last, _)) = seq_and_time(&self.store, Sql::of(&self.store).top(Sources::LOG, i64::MAX)).await? else {
            return Ok(0);
        };
        let high = high.min(last);
        let by = if filter.address.is_some() { "topic, type, key" } else { "topic, type, ''" };
        let mut width = ScanWidth::first();
        let mut counted = 0;
        while low < high {
            let asked = Instant::now();
            let end = low.saturating_add(width.get()).min(high);
            let sql = format!(
                "SELECT {by}, count(*) FROM {}.message WHERE seq > {low} AND seq <= {end}{} GROUP BY 1, 2, 3",
                self.store.schema,
                condition(filter)
            );
            let mut rows = CopyRows::new(self.store.operator_connection.copy_out(sql).await?, 4)?;
            while let Some(mut row) = rows.next_row()? {
                let (topic, kind, key) = (row.text()?, row.text()?, row.text()?);
                let count = row.count()?;
                counted += if self.matches_route(filter, topic, kind, key) { count } else { 0 };
            }
            width.adapt(asked.elapsed());
            low = end;
        }
        Ok(counted)
    }

    /// Whether messages of this kind have a route to an address of the filter.
    fn matches_route(
        &self,
        filter: &ReplayFilter,
        topic: bytestring::ByteString,
        kind: bytestring::ByteString,
        key: bytestring::ByteString,
    ) -> bool {
        let one = Message {
            id: relevo_core::MessageId::v7(0, [0; 10]),
            kind,
            key,
            topic,
            payload: bytes::Bytes::new(),
            content_type: "".into(),
            headers: relevo_core::message::Headers::new(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let address = ReplayFilter { address: filter.address.clone(), ..ReplayFilter::default() };
        self.routing.to_log_message(0, one).is_some_and(|logged: LogMessage| address.matches(&logged))
    }
}

/// A range of consecutive log rows.
struct Chunk {
    last: i64,
    is_full: bool,
    newest: jiff::Timestamp,
}

fn condition(filter: &ReplayFilter) -> String {
    listing::condition(&MessageFilter {
        key: filter.key.clone(),
        topic: filter.topic.clone(),
        kind: filter.kind.clone(),
        since: filter.since,
        until: filter.until,
        ..MessageFilter::default()
    })
}

#[async_trait]
impl ReplaySource for OutboxReplaySource {
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError> {
        let sql = Sql::of(&self.store);
        let ends = async {
            let first = seq_and_time(&self.store, sql.next(i64::MIN)).await?;
            let last = seq_and_time(&self.store, sql.top(Sources::LOG, i64::MAX)).await?;
            Ok::<_, Error>(first.zip(last))
        };
        let ends = ends.await.map_err(StoreError::from)?;
        Ok(ends.map(|((first, _), (last, _))| LogBounds { first: first.unsigned_abs(), last: last.unsigned_abs() }))
    }

    async fn count(&self, filter: &ReplayFilter) -> Result<u64, ReplaySourceError> {
        Ok(self.count_all(filter).await.map_err(StoreError::from)?)
    }

    async fn read(&self, filter: &ReplayFilter, ask: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError> {
        Ok(self.read_page(filter, ask).await.map_err(StoreError::from)?)
    }
}
