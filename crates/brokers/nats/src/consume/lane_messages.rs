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
    tag: Option<DeliveryTag>,
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
    /// Messages up to this one may have been delivered before the record existed.
    redelivered_to: u64,
    messages: BTreeMap<u64, LaneMessage>,
    tags: HashMap<DeliveryTag, u64>,
}

/// A planned change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneChange {
    pub(crate) handed_out: Vec<u64>,
    acknowledged: BTreeSet<u64>,
    /// Acknowledgements of deliveries that are no longer outstanding, by their index in the request.
    pub(crate) stale: BTreeSet<usize>,
}

impl LaneChange {
    pub(crate) fn is_empty(&self) -> bool {
        self.handed_out.is_empty() && self.acknowledged.is_empty()
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
    /// It is already known.
    Duplicate,
    /// It was acknowledged; the server does not know it yet.
    Acknowledged,
}

impl LaneMessages {
    /// Creates the state from a record. Its unacknowledged messages must be read again.
    pub(crate) fn new(record: &LaneRecord) -> Self {
        let unread = || LaneMessage { content: None, redelivered: true, tag: None, reply: None };
        let messages = record.unacknowledged.iter().map(|seq| (*seq, unread())).collect();
        Self {
            handed_out_to: record.handed_out_to,
            seen_to: record.handed_out_to,
            redelivered_to: record.redelivered_to,
            messages,
            tags: HashMap::new(),
        }
    }

    pub(crate) fn seen_to(&self) -> u64 {
        self.seen_to
    }

    /// The last message that may have been delivered before the record existed; zero once all of them were delivered.
    pub(crate) fn redelivered_to(&self) -> u64 {
        if self.redelivered_to > self.handed_out_to { self.redelivered_to } else { 0 }
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.tags.len()
    }

    /// The number of messages that wait for delivery.
    pub(crate) fn ready_count(&self) -> usize {
        self.messages.values().filter(|message| message.tag.is_none()).count()
    }

    /// The messages that must be read again.
    pub(crate) fn unread(&self) -> Vec<u64> {
        self.messages.iter().filter(|(_, message)| message.content.is_none()).map(|(seq, _)| *seq).collect()
    }

    /// Adds a message that the server delivered, or that was read again.
    pub(crate) fn insert(&mut self, seq: u64, content: MessageContent, reply: Option<Subject>) -> Arrival {
        if let Some(message) = self.messages.get_mut(&seq) {
            message.content.get_or_insert_with(|| Arc::new(content));
            if reply.is_some() {
                message.reply = reply;
            }
            return Arrival::Duplicate;
        }
        if seq <= self.seen_to {
            return Arrival::Acknowledged;
        }
        self.seen_to = seq;
        let redelivered = seq <= self.redelivered_to;
        let content = Some(Arc::new(content));
        self.messages.insert(seq, LaneMessage { content, redelivered, tag: None, reply });
        Arrival::New
    }

    /// Removes a message that the limits of the stream deleted.
    pub(crate) fn drop_missing(&mut self, seq: u64) {
        self.messages.remove(&seq);
    }

    /// Plans the next deliveries, at most `limit`.
    pub(crate) fn ready(&self, limit: usize) -> LaneChange {
        // Messages after one that is not read yet may have the same key.
        let read = self.messages.iter().take_while(|(_, message)| message.content.is_some());
        let ready = read.filter(|(_, message)| message.tag.is_none()).map(|(seq, _)| *seq);
        LaneChange { handed_out: ready.take(limit).collect(), ..LaneChange::default() }
    }

    /// Plans the change for these acknowledgements.
    pub(crate) fn plan_acks(&self, tags: impl IntoIterator<Item = DeliveryTag>) -> LaneChange {
        let mut change = LaneChange::default();
        for (index, tag) in tags.into_iter().enumerate() {
            match self.tags.get(&tag) {
                Some(seq) if change.acknowledged.insert(*seq) => {}
                _ => drop(change.stale.insert(index)),
            }
        }
        change
    }

    /// The record after the change is applied.
    pub(crate) fn record(&self, change: &LaneChange) -> (u64, Vec<u64>) {
        let handed_out_to = change.handed_out.iter().copied().max().unwrap_or_default().max(self.handed_out_to);
        let unacknowledged =
            self.messages.range(..=handed_out_to).map(|(seq, _)| *seq).filter(|seq| !change.acknowledged.contains(seq));
        (handed_out_to, unacknowledged.collect())
    }

    /// Applies the change after it was stored. Returns the acknowledgements for the server.
    pub(crate) fn apply(&mut self, change: LaneChange) -> Vec<ServerAck> {
        self.handed_out_to = change.handed_out.iter().copied().max().unwrap_or_default().max(self.handed_out_to);
        let mut acks = Vec::new();
        for seq in change.acknowledged {
            if let Some(message) = self.messages.remove(&seq) {
                if let Some(tag) = message.tag {
                    self.tags.remove(&tag);
                }
                acks.push(ServerAck { seq, reply: message.reply });
            }
        }
        acks
    }

    /// Marks a message as outstanding. Returns its content, and whether it may have been delivered before.
    pub(crate) fn mark_handed_out(&mut self, seq: u64, tag: DeliveryTag) -> Option<(Arc<MessageContent>, bool)> {
        let message = self.messages.get_mut(&seq)?;
        let content = Arc::clone(message.content.as_ref()?);
        message.tag = Some(tag);
        self.tags.insert(tag, seq);
        Some((content, std::mem::replace(&mut message.redelivered, true)))
    }

    /// Adopts the record after a write with an unknown result. Returns the acknowledgements for the server.
    pub(crate) fn adopt_record(&mut self, record: &LaneRecord) -> Vec<ServerAck> {
        let unacknowledged: HashSet<u64> = record.unacknowledged.iter().copied().collect();
        let acknowledged = self
            .messages
            .range(..=record.handed_out_to)
            .map(|(seq, _)| *seq)
            .filter(|seq| !unacknowledged.contains(seq));
        let change = LaneChange { acknowledged: acknowledged.collect(), ..LaneChange::default() };
        let acks = self.apply(change);
        self.handed_out_to = record.handed_out_to;
        for (_, message) in self.messages.range_mut(..=record.handed_out_to) {
            // A call that was cancelled here may have recorded it as delivered.
            message.redelivered = true;
        }
        acks
    }

    /// The messages for which the server needs a progress signal.
    pub(crate) fn in_progress(&self) -> Vec<(u64, Option<Subject>)> {
        self.messages.iter().map(|(seq, message)| (*seq, message.reply.clone())).collect()
    }
}

#[cfg(test)]
mod tests;
