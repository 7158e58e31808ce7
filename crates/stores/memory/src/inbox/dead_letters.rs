//! Dead letters of inboxes: listing, redriving and archiving.

use std::collections::BTreeSet;

use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::inbox::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterState, MarkRequest};
use relevo_core::inbox::{DedupId, InboxState as Known};

use super::tables::{ConsumerTables, InboxDeadLetterRow, QueuedRow, RetryQueue};
use crate::state::{Micros, Tables, timestamp};

/// The consumer and the message of a dead letter.
type LetterName = (String, DedupId);

impl Tables {
    /// The dead letters that the filter selects, in queue order.
    fn find_letters(&self, filter: &DeadLetterFilter) -> Vec<(&str, &InboxDeadLetterRow)> {
        let told = |time| timestamp(self.config.started_at, time);
        let mut found: Vec<(&str, &InboxDeadLetterRow)> = self
            .consumers
            .iter()
            .filter(|(consumer, _)| filter.consumer.as_ref().is_none_or(|wanted| wanted == *consumer))
            .flat_map(|(consumer, desk)| desk.dead_letters.values().map(move |letter| (consumer.as_str(), letter)))
            .filter(|(_, letter)| letter.matches(filter, told(letter.dead_at)))
            .collect();
        found.sort_by_key(|(consumer, letter)| (letter.ordinal, *consumer));
        found
    }

    pub(crate) fn dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Vec<DeadLetter> {
        let told = |time| timestamp(self.config.started_at, time);
        let mut letters = self.find_letters(filter);
        letters.sort_by_key(|(_, letter)| letter.dead_at);
        letters.into_iter().take(limit).map(|(consumer, letter)| letter.to_dead_letter(consumer, told)).collect()
    }

    /// Reopens pending dead letters. Returns `None` if a transaction locks one of the queues.
    pub(crate) fn redrive(&mut self, mark: &MarkRequest) -> Option<u64> {
        let names = self.matching_letters(mark)?;
        let now = self.now();
        let count = names.len() as u64;
        if mark.dry_run {
            return Some(count);
        }
        for (position, (consumer, entry)) in names.into_iter().enumerate() {
            let wait = mark.rate_per_second.map_or(0, |rate| redrive_delay(position, rate));
            if let Some(desk) = self.consumers.get_mut(&consumer) {
                desk.redrive(entry, mark, now, now.saturating_add(wait));
            }
        }
        Some(count)
    }

    /// Archives pending dead letters. Returns `None` if a transaction locks one of the queues.
    pub(crate) fn discard(&mut self, mark: &MarkRequest) -> Option<u64> {
        let names = self.matching_letters(mark)?;
        let now = self.now();
        let count = names.len() as u64;
        if mark.dry_run {
            return Some(count);
        }
        for (consumer, entry) in names {
            if let Some(desk) = self.consumers.get_mut(&consumer) {
                desk.discard(entry, mark, now);
            }
        }
        Some(count)
    }

    /// The dead letters that a request changes. `None` if a transaction locks one of their queues.
    fn matching_letters(&self, mark: &MarkRequest) -> Option<Vec<LetterName>> {
        let pending =
            self.find_letters(&mark.filter).into_iter().filter(|(_, letter)| letter.state == DeadLetterState::Dead);
        let pending: Vec<(&str, &InboxDeadLetterRow)> = pending.collect();
        let queues: BTreeSet<(&str, &ByteString)> =
            pending.iter().map(|(consumer, letter)| (*consumer, &letter.message.queue)).collect();
        if !mark.dry_run && queues.iter().any(|(consumer, queue)| self.is_queue_locked(consumer, queue)) {
            return None;
        }
        Some(pending.into_iter().map(|(consumer, letter)| (consumer.to_owned(), letter.message.dedup_id)).collect())
    }
}

impl ConsumerTables {
    /// Puts a dead letter back at its place in the queue, before everything that came after it.
    fn redrive(&mut self, entry: DedupId, mark: &MarkRequest, now: Micros, next: Micros) {
        let Some(letter) = self.dead_letters.get_mut(&entry) else { return };
        letter.mark(DeadLetterState::Redriven, mark, now);
        letter.redrives += 1;
        let (number, arrival) = (letter.ordinal, letter.message.clone());
        self.set_state(entry, Known::Redriven, now);
        if let Some(trace) = self.traces.get_mut(&entry) {
            trace.state = Known::Redriven;
            trace.at = now;
        }
        let queue = self.queues.entry(arrival.queue.clone()).or_insert_with(|| RetryQueue::new(next));
        queue.messages.insert(number, QueuedRow { not_before: next, ..QueuedRow::new(arrival) });
        let freed = queue.blocked_by.remove(&entry) && queue.blocked_by.is_empty();
        if freed || queue.first() == Some(number) {
            // A member that works on the queue finds another first message now, and releases the queue.
            queue.due_at = now.max(queue.not_before());
        }
    }

    fn discard(&mut self, entry: DedupId, mark: &MarkRequest, now: Micros) {
        let Some(letter) = self.dead_letters.get_mut(&entry) else { return };
        letter.mark(DeadLetterState::Discarded, mark, now);
        let name = letter.message.queue.clone();
        let Some(queue) = self.queues.get_mut(&name) else { return };
        if !queue.blocked_by.remove(&entry) || !queue.blocked_by.is_empty() {
            return;
        }
        queue.due_at = now.max(queue.not_before());
        if queue.messages.is_empty() && !queue.is_claimed(now) {
            self.queues.remove(&name);
        }
    }
}

impl InboxDeadLetterRow {
    fn mark(&mut self, fate: DeadLetterState, mark: &MarkRequest, now: Micros) {
        self.state = fate;
        self.marked_at = now;
        self.reason = Some(format!("{}: {}", mark.by, mark.reason));
    }

    fn matches(&self, filter: &DeadLetterFilter, dead_at: Timestamp) -> bool {
        (filter.ids.is_empty() || filter.ids.contains(&self.message.dedup_id.id))
            && filter.queue.as_deref().is_none_or(|queue| *queue == *self.message.queue)
            && filter.class.as_deref().is_none_or(|class| class == self.class)
            && filter.state.is_none_or(|fate| fate == self.state)
            && filter.since.is_none_or(|since| since <= dead_at)
            && filter.until.is_none_or(|until| dead_at < until)
    }

    fn to_dead_letter(&self, consumer: &str, told: impl Fn(Micros) -> Timestamp) -> DeadLetter {
        DeadLetter {
            consumer: consumer.to_owned(),
            message: self.message.clone(),
            class: self.class.to_owned(),
            error: self.error.clone(),
            backtrace: self.backtrace.clone(),
            attempts: self.attempts,
            arrived_at: told(self.arrived_at),
            dead_at: told(self.dead_at),
            redrives: self.redrives,
            state: self.state,
            reason: self.reason.clone(),
        }
    }
}

/// The delay of the dead letter at this position, for `rate` messages per second.
fn redrive_delay(position: usize, rate: u32) -> Micros {
    Micros::try_from(position).unwrap_or(Micros::MAX).saturating_mul(1_000_000) / Micros::from(rate.max(1))
}
