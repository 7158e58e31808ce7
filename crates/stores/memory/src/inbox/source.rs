//! The outbox's log as a source of replays.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use relevo_core::Message;
use relevo_core::inbox::source::{Ask, Extent, Filter, Read, ReplaySource, Sending, SourceError};

use crate::outbox::lock;
use crate::state::State;

/// The log of an outbox, with the routes and the source that its relay uses.
#[derive(Clone, Debug)]
pub struct OutboxLog {
    state: Arc<Mutex<State>>,
    sending: Sending,
}

impl OutboxLog {
    pub(crate) fn new(state: &Arc<Mutex<State>>, sending: Sending) -> Self {
        Self { state: Arc::clone(state), sending }
    }
}

#[async_trait]
impl ReplaySource for OutboxLog {
    async fn extent(&self) -> Result<Option<Extent>, SourceError> {
        let state = lock(&self.state);
        let mut seqs = state.log.rows.values().filter(|row| state.log.is_committed(row)).map(|row| row.entry.seq);
        let Some(first) = seqs.next() else { return Ok(None) };
        let last = seqs.next_back().unwrap_or(first);
        Ok(Some(Extent { first: first.unsigned_abs(), last: last.unsigned_abs() }))
    }

    async fn count(&self, filter: &Filter) -> Result<u64, SourceError> {
        let everything = Ask { after: 0, limit: usize::MAX, bytes: usize::MAX };
        Ok(self.read(filter, everything).await?.messages.len() as u64)
    }

    async fn read(&self, filter: &Filter, ask: Ask) -> Result<Read, SourceError> {
        let state = lock(&self.state);
        let low = filter.start(ask.after);
        let mut read = Read { messages: Vec::new(), next: low, ended: false };
        let mut bytes = 0;
        let rows = state.log.rows.range(low.cast_signed() + 1..).map(|(_, row)| row);
        for row in rows.filter(|row| state.log.is_committed(row)) {
            let seq = row.entry.seq.unsigned_abs();
            if filter.to.is_some_and(|to| seq > to) {
                break;
            }
            if read.messages.len() >= ask.limit || bytes >= ask.bytes {
                return Ok(read);
            }
            read.next = seq;
            let logged = self.sending.logged(row.entry.seq, Message::clone(&row.entry.message));
            if let Some(logged) = logged.filter(|logged| filter.admits(logged)) {
                bytes += logged.raw.payload.len();
                read.messages.push(logged);
            }
        }
        read.ended = true;
        Ok(read)
    }
}
