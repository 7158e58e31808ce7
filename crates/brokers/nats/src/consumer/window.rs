//! What a consumer knows of one lane that it has: which messages are not done, and who waits for whom.
//!
//! Nothing here waits or talks to anybody. A change is planned first, so that it can be written down; only when the
//! server has kept it is it carried out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use async_nats::Subject;
use relevo_core::{Answer, Raw, Tag};

use super::settle;
use crate::lanes::{Open, Record};

/// A message's parts.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) raw: Raw,
    pub(super) address: Arc<str>,
    /// As it was stored, with the lane's word.
    pub(super) subject: Subject,
    /// Its key; what has none waits for nobody.
    pub(super) key: Option<Arc<str>>,
}

/// A message that is not done.
#[derive(Debug)]
pub(super) struct Entry {
    /// Not there until it was read again, after the lane was taken from somebody else.
    pub(super) content: Option<Arc<Content>>,
    pub(super) count: u32,
    pub(super) retries: u32,
    /// It was to be retried: not before this time, and nothing of its key passes it until it is done.
    due_ms: Option<i64>,
    state: State,
    /// Where the server expects word of this delivery.
    reply: Option<Subject>,
    /// The server was told to bring it again by itself.
    returning: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Here,
    Out(Tag),
    Dead(String),
}

/// The messages of a lane that are not done.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The last that was handed out, as the record has it.
    high: u64,
    /// The last that was seen.
    seen: u64,
    entries: BTreeMap<u64, Entry>,
    tags: HashMap<Tag, u64>,
}

/// What is about to change.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) handed: Vec<u64>,
    done: BTreeSet<u64>,
    later: BTreeMap<u64, i64>,
    pub(super) dead: BTreeMap<u64, String>,
    /// Answers to what is not out any more, by their place among those that were planned for.
    pub(super) lost: BTreeSet<usize>,
}

impl Plan {
    /// These are done with.
    pub(super) fn done(done: &[u64]) -> Self {
        Self { done: done.iter().copied().collect(), ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.handed.is_empty() && self.done.is_empty() && self.later.is_empty() && self.dead.is_empty()
    }
}

/// What the server is to be told of a delivery.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) seq: u64,
    /// Where to, if the delivery came to this consumer.
    pub(super) reply: Option<Subject>,
    pub(super) kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Done,
    Later { due_ms: i64 },
    Dead,
}

/// What a message was that the server brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    New,
    /// It is here already.
    Known,
    /// It was done with; the server does not know yet.
    Done,
}

impl Window {
    /// A lane as its record has it; what is open must be read again.
    pub(super) fn new(record: &Record) -> Self {
        let entry = |open: &Open| Entry {
            content: None,
            count: open.count,
            retries: open.retries,
            due_ms: open.due_ms,
            state: open.reason.clone().map_or(State::Here, State::Dead),
            reply: None,
            returning: false,
        };
        let entries: BTreeMap<u64, Entry> = record.open.iter().map(|open| (open.seq, entry(open))).collect();
        Self { high: record.high, seen: record.high, entries, tags: HashMap::new() }
    }

    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    pub(super) fn out(&self) -> usize {
        self.tags.len()
    }

    /// How many wait to be handed out, now that it is this time.
    pub(super) fn waiting(&self, now_ms: i64) -> usize {
        let is_due = |entry: &&Entry| entry.due_ms.is_none_or(|due| due <= now_ms);
        self.entries.values().filter(|entry| entry.state == State::Here).filter(is_due).count()
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
                entry.returning = false;
            }
            return Arrival::Known;
        }
        if seq <= self.seen {
            return Arrival::Done;
        }
        self.seen = seq;
        let content = Some(Arc::new(content));
        let entry = Entry { content, count: 0, retries: 0, due_ms: None, state: State::Here, reply, returning: false };
        self.entries.insert(seq, entry);
        Arrival::New
    }

    /// The stream has it no more: its limits removed it.
    pub(super) fn vanish(&mut self, seq: u64) {
        self.entries.remove(&seq);
    }

    /// What can be handed out now, at most `limit`; and when the next one is due.
    pub(super) fn ready(&self, limit: usize, now_ms: i64) -> (Plan, Option<i64>) {
        let mut plan = Plan::default();
        let mut held: HashSet<&str> = HashSet::new();
        let mut next_due: Option<i64> = None;
        for (seq, entry) in &self.entries {
            // Whatever is behind a message that is not read yet may be of its key.
            let Some(content) = &entry.content else { break };
            let key = content.key.as_deref();
            let is_held = key.is_some_and(|key| held.contains(key));
            if entry.due_ms.is_some() && !matches!(entry.state, State::Dead(_)) {
                held.extend(key);
            }
            if is_held || entry.state != State::Here {
                continue;
            }
            match entry.due_ms {
                Some(due) if due > now_ms => next_due = Some(next_due.map_or(due, |next| next.min(due))),
                _ if plan.handed.len() < limit => plan.handed.push(*seq),
                _ => break,
            }
        }
        (plan, next_due)
    }

    /// What these answers change.
    pub(super) fn plan<'a>(&self, answers: impl IntoIterator<Item = (Tag, &'a Answer)>, now_ms: i64) -> Plan {
        let mut plan = Plan::default();
        // Key and first number of what is retried: what is out behind it is taken back.
        let mut retried: HashMap<&str, u64> = HashMap::new();
        for (place, (tag, answer)) in answers.into_iter().enumerate() {
            let Some((seq, entry)) = self.tags.get(&tag).and_then(|seq| Some((*seq, self.entries.get(seq)?))) else {
                plan.lost.insert(place);
                continue;
            };
            let key = entry.content.as_ref().and_then(|content| content.key.as_deref());
            let settled = plan.done.contains(&seq) || plan.later.contains_key(&seq) || plan.dead.contains_key(&seq);
            let behind = key.and_then(|key| retried.get(key)).is_some_and(|first| *first < seq);
            if settled || behind {
                plan.lost.insert(place);
                continue;
            }
            match answer {
                Answer::Acknowledge => drop(plan.done.insert(seq)),
                Answer::Reject { reason } => {
                    plan.dead.insert(seq, settle::cut(reason, settle::REASON_BYTES_MAX).0);
                }
                Answer::RetryLater { after } => {
                    if let Some(key) = key {
                        retried.entry(key).and_modify(|first| *first = seq.min(*first)).or_insert(seq);
                    }
                    let after = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
                    plan.later.insert(seq, now_ms.saturating_add(after));
                }
            }
        }
        plan
    }

    /// What the record is to say when the plan is carried out. Reasons that do not fit into so many bytes are cut: they
    /// are for the next owner only.
    pub(super) fn record(&self, plan: &Plan, mut reason_bytes: usize) -> (u64, Vec<Open>) {
        let high = plan.handed.iter().copied().max().unwrap_or_default().max(self.high);
        let handed: HashSet<u64> = plan.handed.iter().copied().collect();
        let open = |(seq, entry): (&u64, &Entry)| {
            let own = match &entry.state {
                State::Dead(reason) => Some(reason.clone()),
                State::Here | State::Out(_) => None,
            };
            (!plan.done.contains(seq)).then(|| Open {
                seq: *seq,
                count: entry.count + u32::from(handed.contains(seq)),
                retries: entry.retries + u32::from(plan.later.contains_key(seq)),
                due_ms: plan.later.get(seq).copied().or(entry.due_ms),
                reason: plan.dead.get(seq).cloned().or(own).map(|reason| {
                    let (cut, bytes) = settle::cut(&reason, reason_bytes);
                    reason_bytes -= bytes;
                    cut
                }),
            })
        };
        (high, self.entries.range(..=high).filter_map(open).collect())
    }

    /// Carries the plan out, now that it is kept; what the server is to be told.
    pub(super) fn carry_out(&mut self, plan: Plan) -> Vec<Word> {
        self.high = plan.handed.iter().copied().max().unwrap_or_default().max(self.high);
        for seq in &plan.handed {
            if let Some(entry) = self.entries.get_mut(seq) {
                entry.count += 1;
            }
        }
        let mut words = Vec::new();
        for seq in plan.done {
            if let Some(entry) = self.entries.remove(&seq) {
                let kind = if matches!(entry.state, State::Dead(_)) { Kind::Dead } else { Kind::Done };
                self.forget_tag(&entry.state);
                words.push(Word { seq, reply: entry.reply, kind });
            }
        }
        for (seq, reason) in plan.dead {
            self.set_state(seq, State::Dead(reason));
        }
        for (seq, due_ms) in plan.later {
            if let Some(entry) = self.entries.get_mut(&seq) {
                entry.retries += 1;
            }
            let reply = self.retry_later(seq, due_ms);
            words.push(Word { seq, reply, kind: Kind::Later { due_ms } });
        }
        words
    }

    /// Makes it wait, and takes back what is out of its key behind it.
    fn retry_later(&mut self, seq: u64, due_ms: i64) -> Option<Subject> {
        self.set_state(seq, State::Here);
        let entry = self.entries.get_mut(&seq)?;
        entry.due_ms = Some(due_ms);
        entry.returning = true;
        let reply = entry.reply.clone();
        let key = entry.content.as_ref().and_then(|content| content.key.clone());
        if let Some(key) = key {
            for (_, later) in self.entries.range_mut(seq + 1..) {
                let same = later.content.as_ref().is_some_and(|content| content.key.as_ref() == Some(&key));
                if let State::Out(tag) = later.state
                    && same
                {
                    self.tags.remove(&tag);
                    later.state = State::Here;
                }
            }
        }
        reply
    }

    fn set_state(&mut self, seq: u64, state: State) {
        if let Some(entry) = self.entries.get_mut(&seq) {
            let old = std::mem::replace(&mut entry.state, state);
            self.forget_tag(&old);
        }
    }

    fn forget_tag(&mut self, state: &State) {
        if let State::Out(tag) = state {
            self.tags.remove(tag);
        }
    }

    /// Marks a message as out; what it is, how often it has been, and how often it was to be retried.
    pub(super) fn hand_out(&mut self, seq: u64, tag: Tag) -> Option<(Arc<Content>, u32, u32)> {
        let entry = self.entries.get_mut(&seq)?;
        entry.state = State::Out(tag);
        self.tags.insert(tag, seq);
        Some((Arc::clone(entry.content.as_ref()?), entry.count, entry.retries))
    }

    /// Believes the record, after it was not known whether a plan was kept; what the server is to be told.
    pub(super) fn believe(&mut self, record: &Record) -> Vec<Word> {
        let open: HashMap<u64, &Open> = record.open.iter().map(|open| (open.seq, open)).collect();
        let done: Vec<u64> = self.entries.range(..=record.high).map(|(seq, _)| *seq).collect();
        let done: Vec<u64> = done.into_iter().filter(|seq| !open.contains_key(seq)).collect();
        let words = self.carry_out(Plan::done(&done));
        self.high = record.high;
        for (seq, open) in open {
            let Some(entry) = self.entries.get_mut(&seq) else { continue };
            (entry.count, entry.retries) = (open.count, open.retries);
            let is_dead = matches!(entry.state, State::Dead(_));
            match (&open.reason, open.due_ms) {
                (Some(reason), _) if !is_dead => self.set_state(seq, State::Dead(reason.clone())),
                (None, Some(due_ms)) if entry.due_ms != Some(due_ms) => drop(self.retry_later(seq, due_ms)),
                _ => {}
            }
        }
        words
    }

    /// What was rejected and is not written as a dead letter yet.
    pub(super) fn dead(&self) -> Vec<(u64, String, u32, Arc<Content>)> {
        let dead = |(seq, entry): (&u64, &Entry)| match (&entry.state, &entry.content) {
            (State::Dead(reason), Some(content)) => Some((*seq, reason.clone(), entry.count, Arc::clone(content))),
            _ => None,
        };
        self.entries.iter().filter_map(dead).collect()
    }

    /// The deliveries that the server must not think forgotten.
    pub(super) fn in_progress(&self) -> Vec<(u64, Option<Subject>)> {
        let kept = self.entries.iter().filter(|(_, entry)| !entry.returning);
        kept.map(|(seq, entry)| (*seq, entry.reply.clone())).collect()
    }
}

#[cfg(test)]
mod tests;
