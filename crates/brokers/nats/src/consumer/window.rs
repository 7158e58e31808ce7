//! The unacknowledged messages of a lane that this consumer owns.
//!
//! This module does no I/O. A change is planned first, so that it can be written to the record. It is applied only when
//! the server has stored the record.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use async_nats::Subject;
use relevo_core::{DeliveryTag, Raw};

use crate::lanes::Record;

/// The content of a message.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) raw: Raw,
    pub(super) address: Arc<str>,
}

/// An unacknowledged message.
#[derive(Debug)]
struct Entry {
    /// `None` until it is read again, after the lane was claimed from another consumer.
    content: Option<Arc<Content>>,
    /// It may have been delivered before.
    redelivered: bool,
    /// The tag of its delivery while it is outstanding.
    out: Option<DeliveryTag>,
    /// The reply subject for its acknowledgement.
    reply: Option<Subject>,
}

/// The unacknowledged messages of a lane.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The last message that was delivered, according to the record.
    high: u64,
    /// The last message that was seen.
    seen: u64,
    entries: BTreeMap<u64, Entry>,
    tags: HashMap<DeliveryTag, u64>,
}

/// A planned change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) handed: Vec<u64>,
    done: BTreeSet<u64>,
    /// Acknowledgements of deliveries that are no longer outstanding, by their index in the request.
    pub(super) stale: BTreeSet<usize>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.handed.is_empty() && self.done.is_empty()
    }
}

/// An acknowledgement to send to the server.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) seq: u64,
    /// The reply subject, if this consumer received the delivery.
    pub(super) reply: Option<Subject>,
}

/// The state of a message that the server delivered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    New,
    /// It is already in the window.
    Known,
    /// It was acknowledged; the server does not know it yet.
    Done,
}

impl Window {
    /// Creates the window from a record. Its unacknowledged messages must be read again.
    pub(super) fn new(record: &Record) -> Self {
        let entry = || Entry { content: None, redelivered: true, out: None, reply: None };
        let entries = record.open.iter().map(|seq| (*seq, entry())).collect();
        Self { high: record.high, seen: record.high, entries, tags: HashMap::new() }
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn out(&self) -> usize {
        self.tags.len()
    }

    /// The number of messages that wait for delivery.
    pub(super) fn waiting(&self) -> usize {
        self.entries.values().filter(|entry| entry.out.is_none()).count()
    }

    /// The messages that must be read again.
    pub(super) fn unread(&self) -> Vec<u64> {
        self.entries.iter().filter(|(_, entry)| entry.content.is_none()).map(|(seq, _)| *seq).collect()
    }

    /// Adds a message that the server delivered, or that was read again.
    pub(super) fn take(&mut self, seq: u64, content: Content, reply: Option<Subject>) -> Arrival {
        if let Some(entry) = self.entries.get_mut(&seq) {
            entry.content.get_or_insert_with(|| Arc::new(content));
            if reply.is_some() {
                entry.reply = reply;
            }
            return Arrival::Known;
        }
        if seq <= self.seen {
            return Arrival::Done;
        }
        self.seen = seq;
        let content = Some(Arc::new(content));
        self.entries.insert(seq, Entry { content, redelivered: false, out: None, reply });
        Arrival::New
    }

    /// Removes a message that the limits of the stream deleted.
    pub(super) fn vanish(&mut self, seq: u64) {
        self.entries.remove(&seq);
    }

    /// Plans the next deliveries, at most `limit`.
    pub(super) fn ready(&self, limit: usize) -> Plan {
        // Messages after one that is not read yet may have the same key.
        let read = self.entries.iter().take_while(|(_, entry)| entry.content.is_some());
        let ready = read.filter(|(_, entry)| entry.out.is_none()).map(|(seq, _)| *seq);
        Plan { handed: ready.take(limit).collect(), ..Plan::default() }
    }

    /// Plans the change for these acknowledgements.
    pub(super) fn plan(&self, tags: impl IntoIterator<Item = DeliveryTag>) -> Plan {
        let mut plan = Plan::default();
        for (place, tag) in tags.into_iter().enumerate() {
            match self.tags.get(&tag) {
                Some(seq) if plan.done.insert(*seq) => {}
                _ => drop(plan.stale.insert(place)),
            }
        }
        plan
    }

    /// The record after the plan is applied.
    pub(super) fn record(&self, plan: &Plan) -> (u64, Vec<u64>) {
        let high = plan.handed.iter().copied().max().unwrap_or_default().max(self.high);
        let open = self.entries.range(..=high).map(|(seq, _)| *seq).filter(|seq| !plan.done.contains(seq));
        (high, open.collect())
    }

    /// Applies the plan after it was stored. Returns the acknowledgements for the server.
    pub(super) fn carry_out(&mut self, plan: Plan) -> Vec<Word> {
        self.high = plan.handed.iter().copied().max().unwrap_or_default().max(self.high);
        let mut words = Vec::new();
        for seq in plan.done {
            if let Some(entry) = self.entries.remove(&seq) {
                if let Some(tag) = entry.out {
                    self.tags.remove(&tag);
                }
                words.push(Word { seq, reply: entry.reply });
            }
        }
        words
    }

    /// Marks a message as outstanding. Returns its content, and whether it may have been delivered before.
    pub(super) fn hand_out(&mut self, seq: u64, tag: DeliveryTag) -> Option<(Arc<Content>, bool)> {
        let entry = self.entries.get_mut(&seq)?;
        let content = Arc::clone(entry.content.as_ref()?);
        entry.out = Some(tag);
        self.tags.insert(tag, seq);
        Some((content, std::mem::replace(&mut entry.redelivered, true)))
    }

    /// Adopts the record after a write with an unknown result. Returns the acknowledgements for the server.
    pub(super) fn believe(&mut self, record: &Record) -> Vec<Word> {
        let open: HashSet<u64> = record.open.iter().copied().collect();
        let done = self.entries.range(..=record.high).map(|(seq, _)| *seq).filter(|seq| !open.contains(seq));
        let plan = Plan { done: done.collect(), ..Plan::default() };
        let words = self.carry_out(plan);
        self.high = record.high;
        for (_, entry) in self.entries.range_mut(..=record.high) {
            // A call that was cancelled here may have recorded it as delivered.
            entry.redelivered = true;
        }
        words
    }

    /// The messages for which the server needs a progress signal.
    pub(super) fn in_progress(&self) -> Vec<(u64, Option<Subject>)> {
        self.entries.iter().map(|(seq, entry)| (*seq, entry.reply.clone())).collect()
    }
}

#[cfg(test)]
mod tests;
