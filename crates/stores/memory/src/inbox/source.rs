//! The outbox's log as a source of replays.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::Message;
use relevo_core::replay_source::{
    LogBounds, OutboxRouting, ReplayFilter, ReplayPage, ReplayReadRequest, ReplaySource, ReplaySourceError,
};

use crate::state::Tables;

/// The log of an outbox, with the routes and the source that its relay uses.
#[derive(Clone, Debug)]
pub struct OutboxReplaySource {
    state: Arc<Mutex<Tables>>,
    routing: OutboxRouting,
}

impl OutboxReplaySource {
    pub(crate) fn new(state: &Arc<Mutex<Tables>>, routing: OutboxRouting) -> Self {
        Self { state: Arc::clone(state), routing }
    }
}

#[async_trait]
impl ReplaySource for OutboxReplaySource {
    async fn bounds(&self) -> Result<Option<LogBounds>, ReplaySourceError> {
        let state = self.state.lock();
        let mut seqs = state.log.rows.values().filter(|row| state.log.is_committed(row)).map(|row| row.entry.seq);
        let Some(first) = seqs.next() else { return Ok(None) };
        let last = seqs.next_back().unwrap_or(first);
        Ok(Some(LogBounds { first: first.unsigned_abs(), last: last.unsigned_abs() }))
    }

    async fn count(&self, filter: &ReplayFilter) -> Result<u64, ReplaySourceError> {
        let everything = ReplayReadRequest { after: 0, limit: usize::MAX, bytes: usize::MAX };
        Ok(self.read(filter, everything).await?.messages.len() as u64)
    }

    async fn read(&self, filter: &ReplayFilter, request: ReplayReadRequest) -> Result<ReplayPage, ReplaySourceError> {
        let state = self.state.lock();
        let low = filter.start_after(request.after);
        let mut page = ReplayPage { messages: Vec::new(), next: low, ended: false };
        let mut bytes = 0;
        let rows = state.log.rows.range(low.cast_signed() + 1..).map(|(_, row)| row);
        for row in rows.filter(|row| state.log.is_committed(row)) {
            let seq = row.entry.seq.unsigned_abs();
            if filter.to.is_some_and(|to| seq > to) {
                break;
            }
            if page.messages.len() >= request.limit || bytes >= request.bytes {
                return Ok(page);
            }
            page.next = seq;
            let message = self.routing.to_log_message(row.entry.seq, Message::clone(&row.entry.message));
            if let Some(message) = message.filter(|message| filter.matches(message)) {
                bytes += message.raw.payload.len();
                page.messages.push(message);
            }
        }
        page.ended = true;
        Ok(page)
    }
}
