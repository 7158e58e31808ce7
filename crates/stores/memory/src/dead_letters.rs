//! Dead letters. Operators mark them, and the relay that holds the shard's lease acts.

use std::collections::BTreeSet;

use jiff::Timestamp;
use relevo_core::dead_letters::{DeadLetter, DeadLetterFilter, MarkRequest, OperatorMark};
use relevo_core::outbox::LogEntry;
use relevo_core::outbox::log::PublishFailure;
use relevo_core::slot::shard_of;

use crate::leases::DestinationTables;
use crate::settle::{ParkedKey, ParkedState, SlotKey};
use crate::state::{Micros, timestamp};

/// The state of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeadState {
    Dead,
    Redrive,
    Discard,
    Redriven,
    Discarded,
}

impl DeadState {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Redrive => "redriving",
            Self::Discard => "discarding",
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct DeadLetterRow {
    entry: LogEntry,
    error: String,
    class: &'static str,
    attempts: u32,
    route: String,
    pub(crate) state: DeadState,
    dead_at: Micros,
    marked: Option<(Micros, String, String)>,
}

impl DeadLetterRow {
    fn matches(&self, filter: &DeadLetterFilter) -> bool {
        (filter.ids.is_empty() || filter.ids.contains(&self.entry.message.id))
            && filter.key.as_deref().is_none_or(|key| key == &*self.entry.message.key)
            && filter.route.as_deref().is_none_or(|route| route == self.route)
            && (!filter.unmarked || self.state == DeadState::Dead)
    }

    fn key(&self) -> SlotKey {
        SlotKey { slot: self.entry.slot, name: self.entry.message.key.clone() }
    }

    pub(crate) fn is_settled_before(&self, time: Micros) -> bool {
        matches!(self.state, DeadState::Redriven | DeadState::Discarded) && self.dead_at < time
    }
}

impl DestinationTables {
    /// Dead-letters a message. If it was redriven and failed again, its dead letter is reopened.
    pub(crate) fn dead_letter(&mut self, entry: LogEntry, failure: &PublishFailure, now: Micros) {
        let row = DeadLetterRow {
            error: failure.error.clone(),
            class: failure.class,
            attempts: failure.attempts,
            route: failure.route.as_ref().to_owned(),
            state: DeadState::Dead,
            dead_at: now,
            marked: None,
            entry,
        };
        self.dead_letters.insert(row.entry.seq, row);
    }

    pub(crate) fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: usize,
        started_at: Timestamp,
    ) -> Vec<DeadLetter> {
        let timestamp = |time| timestamp(started_at, time);
        let rows = self.dead_letters.values().filter(|row| row.matches(filter)).take(limit);
        rows.map(|row| DeadLetter {
            message: row.entry.message.as_ref().clone(),
            error: row.error.clone(),
            class: row.class.to_owned(),
            attempts: row.attempts,
            route: row.route.clone(),
            dead_at: timestamp(row.dead_at),
            state: row.state.as_str().to_owned(),
            marked: row.marked.clone().map(|(at, by, reason)| OperatorMark { at: timestamp(at), by, reason }),
        })
        .collect()
    }

    /// Marks unmarked dead letters and returns how many.
    pub(crate) fn mark(&mut self, request: &MarkRequest, state: DeadState, now: Micros) -> u64 {
        let mut count = 0;
        for row in self.dead_letters.values_mut().filter(|row| row.state == DeadState::Dead) {
            if row.matches(&request.filter) {
                count += 1;
                if !request.dry_run {
                    row.state = state;
                    row.marked = Some((now, request.by.clone(), request.reason.clone()));
                }
            }
        }
        count
    }

    /// Applies the operator marks of these shards.
    pub(crate) fn apply_marks(&mut self, owned_shards: &BTreeSet<u16>, now: Micros) {
        let shards = self.shard_count();
        let marked = |row: &&mut DeadLetterRow| matches!(row.state, DeadState::Redrive | DeadState::Discard);
        let ours = |row: &&mut DeadLetterRow| owned_shards.contains(&shard_of(row.entry.slot, shards));
        let mut applied = Vec::new();
        // In reverse order, because each message goes to the front of its key. The first one ends up before the others.
        for row in self.dead_letters.values_mut().rev().filter(marked).filter(ours) {
            let redrive = row.state == DeadState::Redrive;
            row.state = if redrive { DeadState::Redriven } else { DeadState::Discarded };
            applied.push((row.key(), row.entry.clone(), redrive));
        }
        for (key, entry, redrive) in applied {
            if redrive {
                self.redrive(key, entry, now);
            } else {
                self.free_key(&key, now);
            }
        }
    }

    fn redrive(&mut self, key: SlotKey, entry: LogEntry, now: Micros) {
        let number = self.next_front();
        let on_hold = self.parked.get(&key).is_some_and(|header| self.holding_dead_letter(header).is_some());
        let header = self.parked.entry(key).or_insert_with(|| ParkedKey::due_now(now));
        header.queue.insert(number, entry);
        // If another dead letter holds the key, the key waits for an operator to handle that one too.
        if !on_hold {
            header.retry_now(now);
        }
    }

    /// Lets the key continue that waited for a discarded message.
    fn free_key(&mut self, key: &SlotKey, now: Micros) {
        let Some(header) = self.parked.get(key) else { return };
        if !matches!(header.state, ParkedState::Dead(_)) || self.holding_dead_letter(header).is_some() {
            return;
        }
        if header.queue.is_empty() {
            self.parked.remove(key);
        } else if let Some(header) = self.parked.get_mut(key) {
            header.retry_now(now);
        }
    }
}
