//! The unacknowledged messages of a lane that this consumer owns.
//!
//! This module does no I/O. A change is planned first, so that it can be written to the record. It is applied only when
//! the server has stored the record.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use async_nats::Subject;
use relevo_core::{DeliveryTag, RawMessage};

use super::lane_store::LaneRecord;

/// The content of a message.
#[derive(Debug)]
pub(crate) struct MessageContent {
    pub(crate) raw: RawMessage,
    pub(crate) address: Arc<str>,
}

/// An unacknowledged message.
#[derive(Debug)]
struct LaneMessage {
    /// `None` until it is read again, after the lane was claimed from another consumer.
    content: Option<Arc<MessageContent>>,
    /// It may have been delivered before.
    redelivered: bool,
    /// The tag of its delivery while it is outstanding.
    out: Option<DeliveryTag>,
    /// The reply subject for its acknowledgement.
    reply: Option<Subject>,
}

/// The unacknowledged messages of a lane.
#[derive(Debug, Default)]
pub(crate) struct LaneMessages {
    /// The last message that was delivered, according to the record.
    handed_out_to: u64,
    /// The last message that was seen.
    seen_to: u64,
    messages: BTreeMap<u64, LaneMessage>,
    tags: HashMap<DeliveryTag, u64>,
}

/// A planned change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneChange {
    pub(crate) handed_out: Vec<u64>,
    done: BTreeSet<u64>,
    /// Acknowledgements of deliveries that are no longer outstanding, by their index in the request.
    pub(crate) stale: BTreeSet<usize>,
}

impl LaneChange {
    pub(crate) fn is_empty(&self) -> bool {
        self.handed_out.is_empty() && self.done.is_empty()
    }
}

/// An acknowledgement to send to the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServerAck {
    pub(crate) seq: u64,
    /// The reply subject, if this consumer received the delivery.
    pub(crate) reply: Option<Subject>,
}

/// The state of a message that the server delivered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    New,
    /// It is already in the window.
    Duplicate,
    /// It was acknowledged; the server does not know it yet.
    Done,
}

impl LaneMessages {
    /// Creates the window from a record. Its unacknowledged messages must be read again.
    pub(crate) fn new(record: &LaneRecord) -> Self {
        let entry = || LaneMessage { content: None, redelivered: true, out: None, reply: None };
        let messages = record.open.iter().map(|seq| (*seq, entry())).collect();
        Self { handed_out_to: record.high, seen_to: record.high, messages, tags: HashMap::new() }
    }

    pub(crate) fn seen_to(&self) -> u64 {
        self.seen_to
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.tags.len()
    }

    /// The number of messages that wait for delivery.
    pub(crate) fn ready_count(&self) -> usize {
        self.messages.values().filter(|entry| entry.out.is_none()).count()
    }

    /// The messages that must be read again.
    pub(crate) fn unread(&self) -> Vec<u64> {
        self.messages.iter().filter(|(_, entry)| entry.content.is_none()).map(|(seq, _)| *seq).collect()
    }

    /// Adds a message that the server delivered, or that was read again.
    pub(crate) fn insert(&mut self, seq: u64, content: MessageContent, reply: Option<Subject>) -> Arrival {
        if let Some(entry) = self.messages.get_mut(&seq) {
            entry.content.get_or_insert_with(|| Arc::new(content));
            if reply.is_some() {
                entry.reply = reply;
            }
            return Arrival::Duplicate;
        }
        if seq <= self.seen_to {
            return Arrival::Done;
        }
        self.seen_to = seq;
        let content = Some(Arc::new(content));
        self.messages.insert(seq, LaneMessage { content, redelivered: false, out: None, reply });
        Arrival::New
    }

    /// Removes a message that the limits of the stream deleted.
    pub(crate) fn drop_missing(&mut self, seq: u64) {
        self.messages.remove(&seq);
    }

    /// Plans the next deliveries, at most `limit`.
    pub(crate) fn ready(&self, limit: usize) -> LaneChange {
        // Messages after one that is not read yet may have the same key.
        let read = self.messages.iter().take_while(|(_, entry)| entry.content.is_some());
        let ready = read.filter(|(_, entry)| entry.out.is_none()).map(|(seq, _)| *seq);
        LaneChange { handed_out: ready.take(limit).collect(), ..LaneChange::default() }
    }

    /// Plans the change for these acknowledgements.
    pub(crate) fn plan_acks(&self, tags: impl IntoIterator<Item = DeliveryTag>) -> LaneChange {
        let mut plan = LaneChange::default();
        for (place, tag) in tags.into_iter().enumerate() {
            match self.tags.get(&tag) {
                Some(seq) if plan.done.insert(*seq) => {}
                _ => drop(plan.stale.insert(place)),
            }
        }
        plan
    }

    /// The record after the plan is applied.
    pub(crate) fn record(&self, plan: &LaneChange) -> (u64, Vec<u64>) {
        let high = plan.handed_out.iter().copied().max().unwrap_or_default().max(self.handed_out_to);
        let open = self.messages.range(..=high).map(|(seq, _)| *seq).filter(|seq| !plan.done.contains(seq));
        (high, open.collect())
    }

    /// Applies the plan after it was stored. Returns the acknowledgements for the server.
    pub(crate) fn apply(&mut self, plan: LaneChange) -> Vec<ServerAck> {
        self.handed_out_to = plan.handed_out.iter().copied().max().unwrap_or_default().max(self.handed_out_to);
        let mut words = Vec::new();
        for seq in plan.done {
            if let Some(entry) = self.messages.remove(&seq) {
                if let Some(tag) = entry.out {
                    self.tags.remove(&tag);
                }
                words.push(ServerAck { seq, reply: entry.reply });
            }
        }
        words
    }

    /// Marks a message as outstanding. Returns its content, and whether it may have been delivered before.
    pub(crate) fn mark_handed_out(&mut self, seq: u64, tag: DeliveryTag) -> Option<(Arc<MessageContent>, bool)> {
        let entry = self.messages.get_mut(&seq)?;
        let content = Arc::clone(entry.content.as_ref()?);
        entry.out = Some(tag);
        self.tags.insert(tag, seq);
        Some((content, std::mem::replace(&mut entry.redelivered, true)))
    }

    /// Adopts the record after a write with an unknown result. Returns the acknowledgements for the server.
    pub(crate) fn adopt_record(&mut self, record: &LaneRecord) -> Vec<ServerAck> {
        let open: HashSet<u64> = record.open.iter().copied().collect();
        let done = self.messages.range(..=record.high).map(|(seq, _)| *seq).filter(|seq| !open.contains(seq));
        let plan = LaneChange { done: done.collect(), ..LaneChange::default() };
        let words = self.apply(plan);
        self.handed_out_to = record.high;
        for (_, entry) in self.messages.range_mut(..=record.high) {
            // A call that was cancelled here may have recorded it as delivered.
            entry.redelivered = true;
        }
        words
    }

    /// The messages for which the server needs a progress signal.
    pub(crate) fn in_progress(&self) -> Vec<(u64, Option<Subject>)> {
        self.messages.iter().map(|(seq, entry)| (*seq, entry.reply.clone())).collect()
    }
}

#[cfg(test)]
mod tests;
