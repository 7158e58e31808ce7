//! Dead letters. Operators mark them, and the relay that holds the shard's lease acts.

use std::collections::BTreeSet;

use jiff::Timestamp;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterContent, DeadLetterFilter, DeadLetterPage, DeadLetterState, DeadLetterSummary, MarkRequest,
    OperatorMark,
};
use relevo_core::outbox::LogEntry;
use relevo_core::outbox::log::PublishFailure;
use relevo_core::slot::shard_of;

use crate::leases::DestinationTables;
use crate::settle::{ParkedKey, ParkedState, SlotKey};
use crate::state::{Micros, timestamp};

#[derive(Clone, Debug)]
pub(crate) struct DeadLetterRow {
    entry: LogEntry,
    error: String,
    class: &'static str,
    attempts: u32,
    route: String,
    pub(crate) state: DeadLetterState,
    dead_at: Micros,
    redrives: u32,
    mark: Option<Mark>,
}

/// An operator's mark.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) at: Micros,
    pub(crate) by: String,
    pub(crate) reason: String,
}

impl Mark {
    pub(crate) fn new(request: &MarkRequest, at: Micros) -> Self {
        Self { at, by: request.by.clone(), reason: request.reason.clone() }
    }

    pub(crate) fn to_core(&self, started_at: Timestamp) -> OperatorMark {
        OperatorMark { at: timestamp(started_at, self.at), by: self.by.clone(), reason: self.reason.clone() }
    }
}

impl DeadLetterRow {
    fn to_summary(&self, destination: &str, started_at: Timestamp) -> DeadLetterSummary {
        let message = &self.entry.message;
        DeadLetterSummary {
            owner: destination.to_owned(),
            id: message.id,
            replay: 0,
            topic: Some(message.topic.to_string()),
            key: message.key.to_string(),
            kind: Some(message.kind.to_string()),
            route: Some(self.route.clone()),
            class: self.class.to_owned(),
            error: self.error.clone(),
            attempts: self.attempts,
            entered_at: message.created_at,
            dead_at: timestamp(started_at, self.dead_at),
            redrives: self.redrives,
            state: self.state,
            mark: self.mark.as_ref().map(|mark| mark.to_core(started_at)),
        }
    }

    fn key(&self) -> SlotKey {
        SlotKey { slot: self.entry.slot, name: self.entry.message.key.clone() }
    }

    pub(crate) fn is_settled_before(&self, time: Micros) -> bool {
        matches!(self.state, DeadLetterState::Redriven | DeadLetterState::Discarded) && self.dead_at < time
    }
}

impl DestinationTables {
    /// Dead-letters a message. If it was redriven and failed again, its dead letter is reopened.
    pub(crate) fn dead_letter(&mut self, entry: LogEntry, failure: &PublishFailure, now: Micros) {
        let before = self.dead_letters.get(&entry.seq);
        let row = DeadLetterRow {
            redrives: before.map_or(0, |row| row.redrives),
            mark: before.and_then(|row| row.mark.clone()),
            error: failure.error.clone(),
            class: failure.class,
            attempts: failure.attempts,
            route: failure.route.as_ref().to_owned(),
            state: DeadLetterState::Dead,
            dead_at: now,
            entry,
        };
        self.dead_letters.insert(row.entry.seq, row);
    }

    /// The matching dead letters in log order, after the one with this number.
    fn matching<'a>(
        &'a self,
        filter: &'a DeadLetterFilter,
        after: Option<i64>,
        started_at: Timestamp,
    ) -> impl Iterator<Item = (&'a DeadLetterRow, DeadLetterSummary)> {
        let name = filter.owner_name().unwrap_or_default();
        let rows = self.dead_letters.range(after.map_or(i64::MIN, |seq| seq.saturating_add(1))..);
        let letters = rows.map(move |(_, row)| (row, row.to_summary(name, started_at)));
        letters.filter(|(_, letter)| filter.matches(letter))
    }

    pub(crate) fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<i64>,
        limit: usize,
        started_at: Timestamp,
    ) -> DeadLetterPage {
        let mut matching = self.matching(filter, after, started_at);
        let mut last = None;
        let letters: Vec<_> = matching
            .by_ref()
            .take(limit)
            .map(|(row, letter)| {
                last = Some(row.entry.seq);
                letter
            })
            .collect();
        let more = matching.next().is_some();
        DeadLetterPage { letters, next: last.filter(|_| more).map(|seq| seq.to_string()) }
    }

    pub(crate) fn get_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: usize,
        started_at: Timestamp,
    ) -> Vec<DeadLetter> {
        let letters = self.matching(filter, None, started_at).take(limit).map(|(row, summary)| DeadLetter {
            summary,
            content: DeadLetterContent::Outbox(row.entry.message.as_ref().clone()),
        });
        letters.collect()
    }

    /// Marks unmarked dead letters and returns how many.
    pub(crate) fn mark(&mut self, request: &MarkRequest, started_at: Timestamp, now: Micros) -> u64 {
        let matching = self.matching(&request.filter, None, started_at);
        let dead = matching.filter(|(_, letter)| letter.state == DeadLetterState::Dead);
        let seqs: Vec<i64> = dead.map(|(row, _)| row.entry.seq).collect();
        for seq in seqs.iter().filter(|_| !request.dry_run) {
            if let Some(row) = self.dead_letters.get_mut(seq) {
                row.state = request.action.pending_state();
                row.mark = Some(Mark::new(request, now));
            }
        }
        seqs.len() as u64
    }

    /// Applies the operator marks of these shards.
    pub(crate) fn apply_marks(&mut self, owned_shards: &BTreeSet<u16>, now: Micros) {
        let shards = self.shard_count();
        let marked =
            |row: &&mut DeadLetterRow| matches!(row.state, DeadLetterState::Redriving | DeadLetterState::Discarding);
        let ours = |row: &&mut DeadLetterRow| owned_shards.contains(&shard_of(row.entry.slot, shards));
        let mut applied = Vec::new();
        // In reverse order, because each message goes to the front of its key. The first one ends up before the others.
        for row in self.dead_letters.values_mut().rev().filter(marked).filter(ours) {
            let redrive = row.state == DeadLetterState::Redriving;
            row.state = if redrive { DeadLetterState::Redriven } else { DeadLetterState::Discarded };
            row.redrives += u32::from(redrive);
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
