//! Dead letters of inboxes: listing, redriving and archiving.

use std::collections::BTreeSet;

use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::inbox::operate::{DeadFilter, DeadLetter, Fate, Mark};
use relevo_core::inbox::{Entry, State as Known};

use super::desk::{Desk, Letter, Queue, Waiting};
use crate::state::{Micros, State, timestamp};

/// The consumer and the message of a dead letter.
type Name = (String, Entry);

impl State {
    /// The dead letters that the filter selects, in queue order.
    fn find_letters(&self, filter: &DeadFilter) -> Vec<(&str, &Letter)> {
        let told = |time| timestamp(self.settings.started_at, time);
        let mut found: Vec<(&str, &Letter)> = self
            .desks
            .iter()
            .filter(|(consumer, _)| filter.consumer.as_ref().is_none_or(|wanted| wanted == *consumer))
            .flat_map(|(consumer, desk)| desk.letters.values().map(move |letter| (consumer.as_str(), letter)))
            .filter(|(_, letter)| letter.matches(filter, told(letter.dead)))
            .collect();
        found.sort_by_key(|(consumer, letter)| (letter.number, *consumer));
        found
    }

    pub(crate) fn dead_letters(&self, filter: &DeadFilter, limit: usize) -> Vec<DeadLetter> {
        let told = |time| timestamp(self.settings.started_at, time);
        let mut letters = self.find_letters(filter);
        letters.sort_by_key(|(_, letter)| letter.dead);
        letters.into_iter().take(limit).map(|(consumer, letter)| letter.show(consumer, told)).collect()
    }

    /// Reopens pending dead letters. Returns `None` if a transaction locks one of the queues.
    pub(crate) fn redrive(&mut self, mark: &Mark) -> Option<u64> {
        let names = self.marked(mark)?;
        let now = self.now();
        let count = names.len() as u64;
        if mark.dry_run {
            return Some(count);
        }
        for (position, (consumer, entry)) in names.into_iter().enumerate() {
            let wait = mark.rate.map_or(0, |rate| pace(position, rate));
            if let Some(desk) = self.desks.get_mut(&consumer) {
                desk.reopen(entry, mark, now, now.saturating_add(wait));
            }
        }
        Some(count)
    }

    /// Archives pending dead letters. Returns `None` if a transaction locks one of the queues.
    pub(crate) fn archive(&mut self, mark: &Mark) -> Option<u64> {
        let names = self.marked(mark)?;
        let now = self.now();
        let count = names.len() as u64;
        if mark.dry_run {
            return Some(count);
        }
        for (consumer, entry) in names {
            if let Some(desk) = self.desks.get_mut(&consumer) {
                desk.put_aside(entry, mark, now);
            }
        }
        Some(count)
    }

    /// The dead letters that a request changes. `None` if a transaction locks one of their queues.
    fn marked(&self, mark: &Mark) -> Option<Vec<Name>> {
        let pending = self.find_letters(&mark.filter).into_iter().filter(|(_, letter)| letter.fate == Fate::Pending);
        let pending: Vec<(&str, &Letter)> = pending.collect();
        let queues: BTreeSet<(&str, &ByteString)> =
            pending.iter().map(|(consumer, letter)| (*consumer, &letter.arrival.queue)).collect();
        if !mark.dry_run && queues.iter().any(|(consumer, queue)| self.is_queue_locked(consumer, queue)) {
            return None;
        }
        Some(pending.into_iter().map(|(consumer, letter)| (consumer.to_owned(), letter.arrival.entry)).collect())
    }
}

impl Desk {
    /// Puts a dead letter back at its place in the queue, before everything that came after it.
    fn reopen(&mut self, entry: Entry, mark: &Mark, now: Micros, next: Micros) {
        let Some(letter) = self.letters.get_mut(&entry) else { return };
        letter.mark(Fate::Replayed, mark, now);
        letter.redriven += 1;
        let (number, arrival) = (letter.number, letter.arrival.clone());
        self.know(entry, Known::Reopened, now);
        if let Some(trace) = self.traces.get_mut(&entry) {
            trace.state = Known::Reopened;
            trace.at = now;
        }
        let queue = self.queues.entry(arrival.queue.clone()).or_insert_with(|| Queue::new(next));
        queue.messages.insert(number, Waiting { not_before: next, ..Waiting::fresh(arrival) });
        let freed = queue.held.remove(&entry) && queue.held.is_empty();
        if freed || queue.first() == Some(number) {
            // A member that works on the queue finds another first message now, and releases the queue.
            queue.next = now.max(queue.not_before());
        }
    }

    fn put_aside(&mut self, entry: Entry, mark: &Mark, now: Micros) {
        let Some(letter) = self.letters.get_mut(&entry) else { return };
        letter.mark(Fate::Archived, mark, now);
        let name = letter.arrival.queue.clone();
        let Some(queue) = self.queues.get_mut(&name) else { return };
        if !queue.held.remove(&entry) || !queue.held.is_empty() {
            return;
        }
        queue.next = now.max(queue.not_before());
        if queue.messages.is_empty() && !queue.is_claimed(now) {
            self.queues.remove(&name);
        }
    }
}

impl Letter {
    fn mark(&mut self, fate: Fate, mark: &Mark, now: Micros) {
        self.fate = fate;
        self.marked = now;
        self.note = Some(format!("{}: {}", mark.by, mark.note));
    }

    fn matches(&self, filter: &DeadFilter, dead_at: Timestamp) -> bool {
        (filter.ids.is_empty() || filter.ids.contains(&self.arrival.entry.id))
            && filter.queue.as_deref().is_none_or(|queue| *queue == *self.arrival.queue)
            && filter.class.as_deref().is_none_or(|class| class == self.class)
            && filter.fate.is_none_or(|fate| fate == self.fate)
            && filter.since.is_none_or(|since| since <= dead_at)
            && filter.until.is_none_or(|until| dead_at < until)
    }

    fn show(&self, consumer: &str, told: impl Fn(Micros) -> Timestamp) -> DeadLetter {
        DeadLetter {
            consumer: consumer.to_owned(),
            arrival: self.arrival.clone(),
            class: self.class.to_owned(),
            error: self.error.clone(),
            backtrace: self.backtrace.clone(),
            attempts: self.attempts,
            arrived_at: told(self.arrived),
            dead_at: told(self.dead),
            redriven: self.redriven,
            fate: self.fate,
            note: self.note.clone(),
        }
    }
}

/// The delay of the dead letter at this position, for `rate` messages per second.
fn pace(position: usize, rate: u32) -> Micros {
    Micros::try_from(position).unwrap_or(Micros::MAX).saturating_mul(1_000_000) / Micros::from(rate.max(1))
}
