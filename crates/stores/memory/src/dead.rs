//! Dead letters. Operators mark them, and the relay that holds the shard's lease acts.

use std::collections::BTreeSet;

use jiff::Timestamp;
use relevo_core::slot::shard_of;
use relevo_core::store::{DeadFilter, DeadLetter, Entry, Mark, Marked, Stopped};

use crate::leases::Destination;
use crate::parking::{Header, Key, Waiting};
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
    const fn word(self) -> &'static str {
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
pub(crate) struct Letter {
    entry: Entry,
    error: String,
    class: &'static str,
    attempts: u32,
    route: String,
    pub(crate) state: DeadState,
    buried: Micros,
    marked: Option<(Micros, String, String)>,
}

impl Letter {
    fn matches(&self, filter: &DeadFilter) -> bool {
        (filter.ids.is_empty() || filter.ids.contains(&self.entry.message.id))
            && filter.key.as_deref().is_none_or(|key| key == &*self.entry.message.key)
            && filter.route.as_deref().is_none_or(|route| route == self.route)
            && (!filter.unmarked || self.state == DeadState::Dead)
    }

    fn key(&self) -> Key {
        Key { slot: self.entry.slot, name: self.entry.message.key.clone() }
    }

    pub(crate) fn is_settled_before(&self, time: Micros) -> bool {
        matches!(self.state, DeadState::Redriven | DeadState::Discarded) && self.buried < time
    }
}

impl Destination {
    /// Dead-letters a message. If it was redriven and failed again, its dead letter is reopened.
    pub(crate) fn bury(&mut self, entry: Entry, stopped: &Stopped, now: Micros) {
        let letter = Letter {
            error: stopped.error.clone(),
            class: stopped.class,
            attempts: stopped.attempts,
            route: stopped.route.as_ref().to_owned(),
            state: DeadState::Dead,
            buried: now,
            marked: None,
            entry,
        };
        self.dead.insert(letter.entry.seq, letter);
    }

    pub(crate) fn dead_letters(&self, filter: &DeadFilter, limit: usize, started_at: Timestamp) -> Vec<DeadLetter> {
        let timestamp = |time| timestamp(started_at, time);
        let letters = self.dead.values().filter(|letter| letter.matches(filter)).take(limit);
        letters
            .map(|letter| DeadLetter {
                message: letter.entry.message.as_ref().clone(),
                error: letter.error.clone(),
                class: letter.class.to_owned(),
                attempts: letter.attempts,
                route: letter.route.clone(),
                dead_at: timestamp(letter.buried),
                state: letter.state.word().to_owned(),
                marked: letter.marked.clone().map(|(at, by, reason)| Marked { at: timestamp(at), by, reason }),
            })
            .collect()
    }

    /// Marks unmarked dead letters and returns how many.
    pub(crate) fn mark(&mut self, mark: &Mark, state: DeadState, now: Micros) -> u64 {
        let mut count = 0;
        for letter in self.dead.values_mut().filter(|letter| letter.state == DeadState::Dead) {
            if letter.matches(&mark.filter) {
                count += 1;
                if !mark.dry_run {
                    letter.state = state;
                    letter.marked = Some((now, mark.by.clone(), mark.reason.clone()));
                }
            }
        }
        count
    }

    /// Applies the operator marks of these shards.
    pub(crate) fn carry_out_marks(&mut self, held: &BTreeSet<u16>, now: Micros) {
        let shards = self.count();
        let marked = |letter: &&mut Letter| matches!(letter.state, DeadState::Redrive | DeadState::Discard);
        let ours = |letter: &&mut Letter| held.contains(&shard_of(letter.entry.slot, shards));
        let mut carried = Vec::new();
        // In reverse order, because each message goes to the front of its key. The first one ends up before the others.
        for letter in self.dead.values_mut().rev().filter(marked).filter(ours) {
            let redrive = letter.state == DeadState::Redrive;
            letter.state = if redrive { DeadState::Redriven } else { DeadState::Discarded };
            carried.push((letter.key(), letter.entry.clone(), redrive));
        }
        for (key, entry, redrive) in carried {
            if redrive {
                self.redrive(key, entry, now);
            } else {
                self.let_go(&key, now);
            }
        }
    }

    fn redrive(&mut self, key: Key, entry: Entry, now: Micros) {
        let number = self.front();
        let held = self.parked.get(&key).is_some_and(|header| self.is_held_by(header).is_some());
        let header = self.parked.entry(key).or_insert_with(|| Header::due_now(now));
        header.queue.insert(number, entry);
        // If another dead letter holds the key, the key waits for an operator to handle that one too.
        if !held {
            header.go_on(now);
        }
    }

    /// Lets the key continue that waited for a discarded message.
    fn let_go(&mut self, key: &Key, now: Micros) {
        let Some(header) = self.parked.get(key) else { return };
        if !matches!(header.waiting, Waiting::Dead(_)) || self.is_held_by(header).is_some() {
            return;
        }
        if header.queue.is_empty() {
            self.parked.remove(key);
        } else if let Some(header) = self.parked.get_mut(key) {
            header.go_on(now);
        }
    }
}
