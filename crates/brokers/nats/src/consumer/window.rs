//! What a consumer knows of one lane that it has: which messages are not acknowledged.
//!
//! Nothing here waits or talks to anybody. A change is planned first, so that it can be written down; only when the
//! server has kept it is it carried out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use async_nats::Subject;
use relevo_core::{DeliveryTag, Raw};

use crate::lanes::Record;

/// A message's parts.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) raw: Raw,
    pub(super) address: Arc<str>,
}

/// A message that is not acknowledged.
#[derive(Debug)]
struct Entry {
    /// Not there until it was read again, after the lane was taken from somebody else.
    content: Option<Arc<Content>>,
    /// It may have been handed out before.
    redelivered: bool,
    /// The tag of its delivery while it is out.
    out: Option<DeliveryTag>,
    /// Where the server expects its acknowledgement.
    reply: Option<Subject>,
}

/// The messages of a lane that are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The last that was handed out, as the record has it.
    high: u64,
    /// The last that was seen.
    seen: u64,
    entries: BTreeMap<u64, Entry>,
    tags: HashMap<DeliveryTag, u64>,
}

/// What is about to change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) handed: Vec<u64>,
    done: BTreeSet<u64>,
    /// Acknowledgements of what is not out any more, by their place among those that were planned for.
    pub(super) stale: BTreeSet<usize>,
}

impl Plan {
    pub(super) fn is_empty(&self) -> bool {
        self.handed.is_empty() && self.done.is_empty()
    }
}

/// An acknowledgement that the server is to get.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) seq: u64,
    /// Where to, if the delivery came to this consumer.
    pub(super) reply: Option<Subject>,
}

/// What a message was that the server brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    New,
    /// It is here already.
    Known,
    /// It was acknowledged; the server does not know yet.
    Done,
}

impl Window {
    /// A lane as its record has it; what is open must be read again.
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

    /// How many wait to be handed out.
    pub(super) fn waiting(&self) -> usize {
        self.entries.values().filter(|entry| entry.out.is_none()).count()
    }

    /// What must be read again.
    pub(super) fn unread(&self) -> Vec<u64> {
        self.entries.iter().filter(|(_, entry)| entry.content.is_none()).map(|(seq, _)| *seq).collect()
    }

    /// Takes what the server brought, or what was read again.
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

    /// The stream has it no more: its limits removed it.
    pub(super) fn vanish(&mut self, seq: u64) {
        self.entries.remove(&seq);
    }

    /// What can be handed out now, at most `limit`.
    pub(super) fn ready(&self, limit: usize) -> Plan {
        // Whatever is behind a message that is not read yet may be of its key.
        let read = self.entries.iter().take_while(|(_, entry)| entry.content.is_some());
        let ready = read.filter(|(_, entry)| entry.out.is_none()).map(|(seq, _)| *seq);
        Plan { handed: ready.take(limit).collect(), ..Plan::default() }
    }

    /// What these acknowledgements change.
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

    /// What the record is to say when the plan is carried out.
    pub(super) fn record(&self, plan: &Plan) -> (u64, Vec<u64>) {
        let high = plan.handed.iter().copied().max().unwrap_or_default().max(self.high);
        let open = self.entries.range(..=high).map(|(seq, _)| *seq).filter(|seq| !plan.done.contains(seq));
        (high, open.collect())
    }

    /// Carries the plan out, now that it is kept; what the server is to be told.
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

    /// Marks a message as out; what it is, and whether it may have been out before.
    pub(super) fn hand_out(&mut self, seq: u64, tag: DeliveryTag) -> Option<(Arc<Content>, bool)> {
        let entry = self.entries.get_mut(&seq)?;
        let content = Arc::clone(entry.content.as_ref()?);
        entry.out = Some(tag);
        self.tags.insert(tag, seq);
        Some((content, std::mem::replace(&mut entry.redelivered, true)))
    }

    /// Believes the record, after it was not known whether a plan was kept; what the server is to be told.
    pub(super) fn believe(&mut self, record: &Record) -> Vec<Word> {
        let open: HashSet<u64> = record.open.iter().copied().collect();
        let done = self.entries.range(..=record.high).map(|(seq, _)| *seq).filter(|seq| !open.contains(seq));
        let plan = Plan { done: done.collect(), ..Plan::default() };
        let words = self.carry_out(plan);
        self.high = record.high;
        for (_, entry) in self.entries.range_mut(..=record.high) {
            // It may have been handed out by a call that did not end here.
            entry.redelivered = true;
        }
        words
    }

    /// The deliveries that the server must not think forgotten.
    pub(super) fn in_progress(&self) -> Vec<(u64, Option<Subject>)> {
        self.entries.iter().map(|(seq, entry)| (*seq, entry.reply.clone())).collect()
    }
}

#[cfg(test)]
mod tests;
