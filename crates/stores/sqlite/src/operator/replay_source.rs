//! The outbox log as a replay source, read forwards. A read waits for no writer.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use relevo_core::inbox::source::{
    LogBounds, OutboxRouting, ReplayFilter, ReplayPage, ReplayReadRequest, ReplaySource, ReplaySourceError,
};
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::{self, column, number};
use crate::store::Store;

/// The number of messages that one call reads.
const CHUNK: i64 = 5_000;
/// The number of messages per page while counting.
const COUNT_PAGE: usize = 1_000;

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

    /// Counting reads no payloads, so `payload` is false for it.
    async fn read_page(
        &self,
        filter: &ReplayFilter,
        ask: ReplayReadRequest,
        payload: bool,
    ) -> Result<ReplayPage, ReplaySourceError> {
        let looked = async {
            let mut session = self.store.read_connection.acquire().await?;
            let read = read(&mut session, &self.routing, filter, ask, payload).await?;
            session.release();
            Ok(read)
        };
        Ok(self.store.with_timeout(looked).await?)
    }
}

async fn read(
    connection: &mut SqliteConnection,
    sending: &OutboxRouting,
    filter: &ReplayFilter,
    ask: ReplayReadRequest,
    payload: bool,
) -> Result<ReplayPage, Error> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (low, high) = (signed(filter.start_after(ask.after)), filter.to.map_or(i64::MAX, signed));
    let sql = "SELECT max(seq), count(*) FROM \
               (SELECT seq FROM relevo_message WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3)";
    let row = sqlx::query(sql).bind(low).bind(high).bind(CHUNK).fetch_one(&mut *connection).await?;
    let Some(end) = column::<Option<i64>>(&row, 0)? else {
        return Ok(ReplayPage { messages: Vec::new(), next: ask.after.max(low.unsigned_abs()), ended: true });
    };
    let is_last = column::<i64>(&row, 1)? < CHUNK;
    // A running sum of the payloads before each row stops the page at its byte limit. Larger payloads are not read.
    let sql = "SELECT seq, id, created_at_ms, topic, key, type, content_type, headers, CASE WHEN ?10 THEN payload END, size \
               FROM (SELECT *, sum(size) OVER (ORDER BY seq) - size AS before FROM ( \
                   SELECT *, octet_length(payload) * ?10 AS size FROM relevo_message WHERE seq > ?1 AND seq <= ?2 \
                   AND (?3 IS NULL OR key = ?3) AND (?4 IS NULL OR topic = ?4) AND (?5 IS NULL OR type = ?5) \
                   AND (?6 IS NULL OR created_at_ms >= ?6) AND (?7 IS NULL OR created_at_ms < ?7) \
                   ORDER BY seq LIMIT ?8)) WHERE before < ?9 ORDER BY seq";
    // The log stores whole milliseconds, so a bound is rounded up.
    let ceiling = |at: Timestamp| -(-at.as_microsecond()).div_euclid(1000);
    let (limit, bytes) = (ask.limit.max(1), ask.bytes.max(1));
    let most = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
    let select = sqlx::query(sql).bind(low).bind(end).bind(&filter.key).bind(&filter.topic).bind(&filter.kind);
    let select = select.bind(filter.since.map(ceiling)).bind(filter.until.map(ceiling));
    let select = select.bind(most(limit)).bind(most(bytes)).bind(payload);
    let rows = select.fetch_all(connection).await?;
    let (mut messages, mut size, mut last) = (Vec::new(), 0, low);
    for row in &rows {
        last = column(row, 0)?;
        size += number::<usize>(row, 9)?;
        let logged = sending.to_log_message(last, queries::message(row, 1)?);
        messages.extend(logged.filter(|logged| filter.matches(logged)));
    }
    let is_cut = rows.len() >= limit || size >= bytes;
    let (next, ended) = if is_cut { (last, false) } else { (end, is_last) };
    Ok(ReplayPage { messages, next: next.unsigned_abs(), ended })
}

#[async_trait]
impl ReplaySource for OutboxReplaySource {
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError> {
        let looked = async {
            let mut session = self.store.read_connection.acquire().await?;
            let sql = "SELECT min(seq), max(seq) FROM relevo_message";
            let row = sqlx::query(sql).fetch_one(&mut *session).await?;
            session.release();
            Ok(column::<Option<i64>>(&row, 0)?.zip(column::<Option<i64>>(&row, 1)?))
        };
        let ends = self.store.with_timeout(looked).await?;
        Ok(ends.map(|(first, last)| LogBounds { first: first.unsigned_abs(), last: last.unsigned_abs() }))
    }

    async fn count(&self, filter: &ReplayFilter) -> Result<u64, ReplaySourceError> {
        let (mut counted, mut after) = (0, 0);
        loop {
            let read = self
                .read_page(filter, ReplayReadRequest { after, limit: COUNT_PAGE, bytes: usize::MAX }, false)
                .await?;
            counted += read.messages.len() as u64;
            after = read.next;
            if read.ended {
                return Ok(counted);
            }
        }
    }

    async fn read(&self, filter: &ReplayFilter, ask: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError> {
        self.read_page(filter, ask, true).await
    }
}
