//! Dead letters of inboxes: listing, redriving and archiving.

use std::collections::BTreeSet;

use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::inbox::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterState, MarkRequest};
use relevo_core::inbox::{DedupId, InboxState as Known};

use super::tables::{ConsumerTables, InboxDeadLetterRow, QueuedRow, RetryQueue};
use crate::state::{Micros, Tables, timestamp};

/// The consumer and the message of a dead letter.
type DeadLetterName = (String, DedupId);

impl Tables {
    /// The dead letters that the filter selects, in queue order.
    fn find_dead_letters(&self, filter: &DeadLetterFilter) -> Vec<(&str, &InboxDeadLetterRow)> {
        let to_timestamp = |time| timestamp(self.config.started_at, time);
        let mut found: Vec<(&str, &InboxDeadLetterRow)> = self
            .consumers
            .iter()
            .filter(|(consumer, _)| filter.consumer.as_ref().is_none_or(|selected| selected == *consumer))
            .flat_map(|(consumer, tables)| tables.dead_letters.values().map(move |row| (consumer.as_str(), row)))
            .filter(|(_, row)| row.matches(filter, to_timestamp(row.dead_at)))
            .collect();
        found.sort_by_key(|(consumer, row)| (row.ordinal, *consumer));
        found
    }

    pub(crate) fn dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Vec<DeadLetter> {
        let to_timestamp = |time| timestamp(self.config.started_at, time);
        let mut rows = self.find_dead_letters(filter);
        rows.sort_by_key(|(_, row)| row.dead_at);
        rows.into_iter().take(limit).map(|(consumer, row)| row.to_dead_letter(consumer, to_timestamp)).collect()
    }

    /// Reopens pending dead letters. Returns `None` if a transaction locks one of the queues.
    pub(crate) fn redrive(&mut self, request: &MarkRequest) -> Option<u64> {
        let names = self.matching_dead_letters(request)?;
        let now = self.now();
        let count = names.len() as u64;
        if request.dry_run {
            return Some(count);
        }
        for (position, (consumer, dedup_id)) in names.into_iter().enumerate() {
            let wait = request.rate_per_second.map_or(0, |rate| redrive_delay(position, rate));
            if let Some(tables) = self.consumers.get_mut(&consumer) {
                tables.redrive(dedup_id, request, now, now.saturating_add(wait));
            }
        }
        Some(count)
    }

    /// Archives pending dead letters. Returns `None` if a transaction locks one of the queues.
    pub(crate) fn discard(&mut self, request: &MarkRequest) -> Option<u64> {
        let names = self.matching_dead_letters(request)?;
        let now = self.now();
        let count = names.len() as u64;
        if request.dry_run {
            return Some(count);
        }
        for (consumer, dedup_id) in names {
            if let Some(tables) = self.consumers.get_mut(&consumer) {
                tables.discard(dedup_id, request, now);
            }
        }
        Some(count)
    }

    /// The dead letters that a request changes. `None` if a transaction locks one of their queues.
    fn matching_dead_letters(&self, request: &MarkRequest) -> Option<Vec<DeadLetterName>> {
        let pending =
            self.find_dead_letters(&request.filter).into_iter().filter(|(_, row)| row.state == DeadLetterState::Dead);
        let pending: Vec<(&str, &InboxDeadLetterRow)> = pending.collect();
        let queues: BTreeSet<(&str, &ByteString)> =
            pending.iter().map(|(consumer, row)| (*consumer, &row.message.queue)).collect();
        if !request.dry_run && queues.iter().any(|(consumer, queue)| self.is_queue_locked(consumer, queue)) {
            return None;
        }
        Some(pending.into_iter().map(|(consumer, row)| (consumer.to_owned(), row.message.dedup_id)).collect())
    }
}

impl ConsumerTables {
    /// Puts a dead letter back at its position in the queue, before all later messages.
    fn redrive(&mut self, dedup_id: DedupId, request: &MarkRequest, now: Micros, next: Micros) {
        let Some(row) = self.dead_letters.get_mut(&dedup_id) else { return };
        row.mark(DeadLetterState::Redriven, request, now);
        row.redrives += 1;
        let (number, message) = (row.ordinal, row.message.clone());
        self.set_state(dedup_id, Known::Redriven, now);
        let queue = self.queues.entry(message.queue.clone()).or_insert_with(|| RetryQueue::new(next));
        queue.messages.insert(number, QueuedRow { not_before: next, ..QueuedRow::new(message) });
        let freed = queue.blocked_by.remove(&dedup_id) && queue.blocked_by.is_empty();
        if freed || queue.first() == Some(number) {
            // A member that works on the queue finds another first message now, and releases the queue.
            queue.due_at = now.max(queue.not_before());
        }
    }

    fn discard(&mut self, dedup_id: DedupId, request: &MarkRequest, now: Micros) {
        let Some(row) = self.dead_letters.get_mut(&dedup_id) else { return };
        row.mark(DeadLetterState::Discarded, request, now);
        let name = row.message.queue.clone();
        let Some(queue) = self.queues.get_mut(&name) else { return };
        if !queue.blocked_by.remove(&dedup_id) || !queue.blocked_by.is_empty() {
            return;
        }
        queue.due_at = now.max(queue.not_before());
        if queue.messages.is_empty() && !queue.is_claimed(now) {
            self.queues.remove(&name);
        }
    }
}

impl InboxDeadLetterRow {
    fn mark(&mut self, state: DeadLetterState, request: &MarkRequest, now: Micros) {
        self.state = state;
        self.marked_at = now;
        self.reason = Some(format!("{}: {}", request.by, request.reason));
    }

    fn matches(&self, filter: &DeadLetterFilter, dead_at: Timestamp) -> bool {
        (filter.ids.is_empty() || filter.ids.contains(&self.message.dedup_id.id))
            && filter.queue.as_deref().is_none_or(|queue| *queue == *self.message.queue)
            && filter.class.as_deref().is_none_or(|class| class == self.class)
            && filter.state.is_none_or(|state| state == self.state)
            && filter.since.is_none_or(|since| since <= dead_at)
            && filter.until.is_none_or(|until| dead_at < until)
    }

    fn to_dead_letter(&self, consumer: &str, to_timestamp: impl Fn(Micros) -> Timestamp) -> DeadLetter {
        DeadLetter {
            consumer: consumer.to_owned(),
            message: self.message.clone(),
            class: self.class.to_owned(),
            error: self.error.clone(),
            backtrace: self.backtrace.clone(),
            attempts: self.attempts,
            arrived_at: to_timestamp(self.arrived_at),
            dead_at: to_timestamp(self.dead_at),
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
