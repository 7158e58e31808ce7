//! The outbox log as a replay source, read forwards by ranges of sequence numbers with plain SELECTs.
//!
//! A transaction that commits during the read may add a number that was already passed. No message is lost: it is live,
//! and the relay publishes it.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use relevo_core::Message;
use relevo_core::replay_source::{
    LogBounds, LogMessage, OutboxRouting, ReplayFilter, ReplayPage, ReplayReadRequest, ReplaySource, ReplaySourceError,
};
use relevo_core::store::StoreError;

use super::search::{ScanWidth, minus_skew, seq_and_time, seq_at};
use crate::classify::Error;
use crate::operator::{Operator, Scope};
use crate::queries::status::Sources;
use crate::queries::status::replay::{self, GroupCount};

/// The log of an outbox, with the routing of its relay.
pub struct OutboxReplaySource {
    operator: Arc<Operator>,
    routing: OutboxRouting,
}

impl OutboxReplaySource {
    /// Creates a replay source for this outbox. `routing` defines how its messages are sent.
    pub const fn new(operator: Arc<Operator>, routing: OutboxRouting) -> Self {
        Self { operator, routing }
    }

    /// The log is the same for every destination.
    fn scope(&self) -> Scope<'_> {
        self.operator.scope("")
    }

    /// Returns the bounds of a filter: the first is exclusive, the second inclusive.
    async fn seq_bounds(&self, filter: &ReplayFilter, after: u64) -> Result<(i64, i64), Error> {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let mut low = signed(filter.start_after(after));
        // After the first page the position is already past that time.
        if let Some(since) = filter.since.filter(|_| after == 0) {
            low = low.max(seq_at(self.scope(), minus_skew(since)).await?.saturating_sub(1));
        }
        Ok((low, filter.to.map_or(i64::MAX, signed)))
    }

    async fn read_page(&self, filter: &ReplayFilter, request: ReplayReadRequest) -> Result<ReplayPage, Error> {
        let connection = &self.operator.connection;
        let sql = self.scope().status();
        let (low, high) = self.seq_bounds(filter, request.after).await?;
        let Some(chunk) = replay::decode_chunk(connection.copy_out(sql.replay_chunk(low, high)).await?)? else {
            return Ok(ReplayPage { messages: Vec::new(), next: request.after.max(low.unsigned_abs()), ended: true });
        };
        let answer = connection.copy_out(sql.replay_page(filter, low, chunk.last, &request)).await?;
        let (mut found, mut count, mut bytes, mut last) = (Vec::new(), 0, 0, low);
        for (seq, message) in replay::decode_replay_page(answer)? {
            last = seq;
            count += 1;
            bytes += message.payload.len();
            found.extend(self.routing.to_log_message(seq, message).filter(|logged| filter.matches(logged)));
        }
        let is_cut = count >= request.limit.max(1) || bytes >= request.bytes.max(1);
        let passed = filter.until.is_some_and(|until| minus_skew(chunk.newest) >= until);
        let (next, ended) = if is_cut { (last, false) } else { (chunk.last, !chunk.is_full || passed) };
        Ok(ReplayPage { messages: found, next: next.unsigned_abs(), ended })
    }

    async fn count_all(&self, filter: &ReplayFilter) -> Result<u64, Error> {
        let sql = self.scope().status();
        let (mut low, high) = self.seq_bounds(filter, 0).await?;
        let Some((last, _)) = seq_and_time(self.scope(), sql.newest_below(Sources::LOG, i64::MAX)).await? else {
            return Ok(0);
        };
        let high = high.min(last);
        let mut width = ScanWidth::first();
        let mut counted = 0;
        while low < high {
            let query_began = Instant::now();
            let end = low.saturating_add(width.get()).min(high);
            let answer = self.operator.connection.copy_out(sql.count_by_group(filter, low, end)).await?;
            for group in replay::decode_group_counts(answer)? {
                let count = group.count;
                counted += if self.matches_route(filter, group) { count } else { 0 };
            }
            width.adapt(query_began.elapsed());
            low = end;
        }
        Ok(counted)
    }

    /// Whether messages of this kind have a route to an address of the filter.
    fn matches_route(&self, filter: &ReplayFilter, group: GroupCount) -> bool {
        let message = Message {
            id: relevo_core::MessageId::v7(0, [0; 10]),
            kind: group.kind,
            key: group.key,
            topic: group.topic,
            payload: bytes::Bytes::new(),
            content_type: "".into(),
            headers: relevo_core::message::Headers::new(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let address = ReplayFilter { address: filter.address.clone(), ..ReplayFilter::default() };
        self.routing.to_log_message(0, message).is_some_and(|logged: LogMessage| address.matches(&logged))
    }
}

#[async_trait]
impl ReplaySource for OutboxReplaySource {
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError> {
        let sql = self.scope().status();
        let ends = async {
            let first = seq_and_time(self.scope(), sql.oldest_from(i64::MIN)).await?;
            let last = seq_and_time(self.scope(), sql.newest_below(Sources::LOG, i64::MAX)).await?;
            Ok::<_, Error>(first.zip(last))
        };
        let ends = ends.await.map_err(StoreError::from)?;
        Ok(ends.map(|((first, _), (last, _))| LogBounds { first: first.unsigned_abs(), last: last.unsigned_abs() }))
    }

    async fn count(&self, filter: &ReplayFilter) -> Result<u64, ReplaySourceError> {
        Ok(self.count_all(filter).await.map_err(StoreError::from)?)
    }

    async fn read(&self, filter: &ReplayFilter, request: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError> {
        Ok(self.read_page(filter, request).await.map_err(StoreError::from)?)
    }
}
