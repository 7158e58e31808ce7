//! The outbox log as a replay source, read forwards. A read waits for no writer.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use relevo_core::inbox::source::{Ask, Extent, Filter, Read, ReplaySource, Sending, SourceError};
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::{self, column, number};
use crate::store::Store;

/// The number of messages that one call reads.
const CHUNK: i64 = 5_000;
/// The number of messages per page while counting.
const COUNTED: usize = 1_000;

/// The log of an outbox, with the routing of its relay.
pub struct OutboxLog {
    store: Arc<Store>,
    sending: Sending,
}

impl OutboxLog {
    /// Creates a replay source for this outbox. `sending` defines how its messages are sent.
    pub const fn new(store: Arc<Store>, sending: Sending) -> Self {
        Self { store, sending }
    }

    /// Counting reads no payloads, so `payload` is false for it.
    async fn read_on(&self, filter: &Filter, ask: Ask, payload: bool) -> Result<Read, SourceError> {
        let looked = async {
            let mut session = self.store.reading.take().await?;
            let read = read(&mut session, &self.sending, filter, ask, payload).await?;
            session.give_back();
            Ok(read)
        };
        Ok(self.store.call(looked).await?)
    }
}

async fn read(
    connection: &mut SqliteConnection,
    sending: &Sending,
    filter: &Filter,
    ask: Ask,
    payload: bool,
) -> Result<Read, Error> {
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let (low, high) = (signed(filter.start(ask.after)), filter.to.map_or(i64::MAX, signed));
    let sql = "SELECT max(seq), count(*) FROM \
               (SELECT seq FROM relevo_message WHERE seq > ?1 AND seq <= ?2 ORDER BY seq LIMIT ?3)";
    let row = sqlx::query(sql).bind(low).bind(high).bind(CHUNK).fetch_one(&mut *connection).await?;
    let Some(end) = column::<Option<i64>>(&row, 0)? else {
        return Ok(Read { messages: Vec::new(), next: ask.after.max(low.unsigned_abs()), ended: true });
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
        let logged = sending.logged(last, queries::message(row, 1)?);
        messages.extend(logged.filter(|logged| filter.admits(logged)));
    }
    let is_cut = rows.len() >= limit || size >= bytes;
    let (next, ended) = if is_cut { (last, false) } else { (end, is_last) };
    Ok(Read { messages, next: next.unsigned_abs(), ended })
}

#[async_trait]
impl ReplaySource for OutboxLog {
    async fn extent(&self) -> Result<Option<Extent>, SourceError> {
        let looked = async {
            let mut session = self.store.reading.take().await?;
            let sql = "SELECT min(seq), max(seq) FROM relevo_message";
            let row = sqlx::query(sql).fetch_one(&mut *session).await?;
            session.give_back();
            Ok(column::<Option<i64>>(&row, 0)?.zip(column::<Option<i64>>(&row, 1)?))
        };
        let ends = self.store.call(looked).await?;
        Ok(ends.map(|(first, last)| Extent { first: first.unsigned_abs(), last: last.unsigned_abs() }))
    }

    async fn count(&self, filter: &Filter) -> Result<u64, SourceError> {
        let (mut counted, mut after) = (0, 0);
        loop {
            let read = self.read_on(filter, Ask { after, limit: COUNTED, bytes: usize::MAX }, false).await?;
            counted += read.messages.len() as u64;
            after = read.next;
            if read.ended {
                return Ok(counted);
            }
        }
    }

    async fn read(&self, filter: &Filter, ask: Ask) -> Result<Read, SourceError> {
        self.read_on(filter, ask, true).await
    }
}
