//! Dead letters of inboxes: listing, redriving and discarding.

use std::collections::BTreeSet;

use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterContent, DeadLetterFilter, DeadLetterPage, DeadLetterState, DeadLetterSummary, MarkAction,
    MarkRequest,
};
use relevo_core::inbox::{DedupId, InboxMessage, InboxState as Known};
use relevo_core::store::StoreError;

use super::tables::{ConsumerTables, InboxDeadLetterRow, QueuedRow, RetryQueue};
use crate::dead_letters::Mark;
use crate::operator::invalid_cursor;
use crate::state::{Micros, Tables, timestamp};

/// The consumer and the message of a dead letter.
type DeadLetterName = (String, DedupId);
/// The position of a dead letter in a list.
type Cursor = (Micros, i64, String);

impl Tables {
    /// The dead letters that the filter selects, oldest first.
    fn find_dead_letters(&self, filter: &DeadLetterFilter) -> Vec<(&InboxDeadLetterRow, DeadLetterSummary)> {
        let started_at = self.config.started_at;
        let mut found: Vec<(&InboxDeadLetterRow, DeadLetterSummary)> = self
            .consumers
            .iter()
            .filter(|(consumer, _)| filter.owner_name().is_none_or(|selected| selected == *consumer))
            .flat_map(|(consumer, tables)| tables.dead_letters.values().map(move |row| (consumer, row)))
            .map(|(consumer, row)| (row, row.to_summary(consumer, started_at)))
            .filter(|(_, letter)| filter.matches(letter))
            .collect();
        found.sort_by_cached_key(|(row, letter)| row.cursor(&letter.owner));
        found
    }

    pub(crate) fn list_inbox_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeadLetterPage, StoreError> {
        let after = after.map(|after| parse_cursor(after).ok_or_else(|| invalid_cursor(after))).transpose()?;
        let mut found = self.find_dead_letters(filter);
        found.retain(|(row, letter)| after.as_ref().is_none_or(|after| row.cursor(&letter.owner) > *after));
        let more = found.len() > limit;
        found.truncate(limit);
        let last = found.last().filter(|_| more).map(|(row, letter)| row.cursor(&letter.owner));
        let next = last.map(|(dead_at, ordinal, consumer)| format!("{dead_at}/{ordinal}/{consumer}"));
        Ok(DeadLetterPage { letters: found.into_iter().map(|(_, letter)| letter).collect(), next })
    }

    pub(crate) fn get_inbox_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Vec<DeadLetter> {
        let found = self.find_dead_letters(filter).into_iter().take(limit);
        let letters = found.map(|(row, summary)| DeadLetter {
            summary,
            content: DeadLetterContent::Inbox { message: row.message.clone(), backtrace: row.backtrace.clone() },
        });
        letters.collect()
    }

    /// Redrives or discards pending dead letters. Returns `None` if a transaction locks one of the queues.
    pub(crate) fn mark_inbox_dead_letters(&mut self, request: &MarkRequest) -> Option<u64> {
        let names = self.matching_dead_letters(request)?;
        let now = self.now();
        let count = names.len() as u64;
        if request.dry_run {
            return Some(count);
        }
        for (position, (consumer, dedup_id)) in names.into_iter().enumerate() {
            let Some(tables) = self.consumers.get_mut(&consumer) else { continue };
            match request.action {
                MarkAction::Redrive => {
                    let wait = request.rate_per_second.map_or(0, |rate| redrive_delay(position, rate));
                    tables.redrive(dedup_id, request, now, now.saturating_add(wait));
                }
                MarkAction::Discard => tables.discard(dedup_id, request, now),
            }
        }
        Some(count)
    }

    /// The dead letters that a request changes, in queue order. `None` if a transaction locks one of their queues.
    fn matching_dead_letters(&self, request: &MarkRequest) -> Option<Vec<DeadLetterName>> {
        let mut pending = self.find_dead_letters(&request.filter);
        pending.retain(|(row, _)| row.state == DeadLetterState::Dead);
        pending.sort_by(|(a, a_letter), (b, b_letter)| (a.ordinal, &a_letter.owner).cmp(&(b.ordinal, &b_letter.owner)));
        let queues: BTreeSet<(&str, &ByteString)> =
            pending.iter().map(|(row, letter)| (letter.owner.as_str(), &row.message.queue)).collect();
        if !request.dry_run && queues.iter().any(|(consumer, queue)| self.is_queue_locked(consumer, queue)) {
            return None;
        }
        Some(pending.into_iter().map(|(row, letter)| (letter.owner, row.message.dedup_id)).collect())
    }
}

/// Parses what [`Tables::list_inbox_dead_letters`] returned.
fn parse_cursor(text: &str) -> Option<Cursor> {
    let mut parts = text.splitn(3, '/');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.to_owned()))
}

impl ConsumerTables {
    /// Puts a dead letter back at its position in the queue, before all later messages.
    fn redrive(&mut self, dedup_id: DedupId, request: &MarkRequest, now: Micros, next: Micros) {
        let Some(row) = self.dead_letters.get_mut(&dedup_id) else { return };
        row.mark(request, now);
        row.redrives += 1;
        let (number, message) = (row.ordinal, InboxMessage { attempts: 0, ..row.message.clone() });
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
        row.mark(request, now);
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
    fn mark(&mut self, request: &MarkRequest, now: Micros) {
        self.state = request.action.final_state();
        self.mark = Some(Mark::new(request, now));
    }

    fn cursor(&self, consumer: &str) -> Cursor {
        (self.dead_at, self.ordinal, consumer.to_owned())
    }

    fn to_summary(&self, consumer: &str, started_at: Timestamp) -> DeadLetterSummary {
        let received = self.message.raw.decode().ok().map(|received| received.message);
        DeadLetterSummary {
            owner: consumer.to_owned(),
            id: self.message.dedup_id.id,
            replay: self.message.dedup_id.replay,
            topic: received.as_ref().map(|message| message.topic.to_string()),
            key: self.message.queue.to_string(),
            kind: received.as_ref().map(|message| message.kind.to_string()),
            route: None,
            class: self.class.to_owned(),
            error: self.error.clone(),
            attempts: self.message.attempts,
            entered_at: timestamp(started_at, self.arrived_at),
            dead_at: timestamp(started_at, self.dead_at),
            redrives: self.redrives,
            state: self.state,
            mark: self.mark.as_ref().map(|mark| mark.to_core(started_at)),
        }
    }
}

/// The delay of the dead letter at this position, for `rate` messages per second.
fn redrive_delay(position: usize, rate: u32) -> Micros {
    Micros::try_from(position).unwrap_or(Micros::MAX).saturating_mul(1_000_000) / Micros::from(rate.max(1))
}
