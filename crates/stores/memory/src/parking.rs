//! Settling: parks failed messages and advances the shards.

use std::collections::{BTreeMap, BTreeSet};

use bytestring::ByteString;
use relevo_core::slot::shard_of;
use relevo_core::store::{Entry, Lease, Park, Position, Settled, Settlement, Stop, Stopped, StoreError};

use crate::dead::DeadState;
use crate::leases::Destination;
use crate::log::Log;
use crate::state::{Micros, micros};

/// A key at one destination. It stores the slot instead of the shard, because resharding does not change the slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) slot: u16,
    pub(crate) name: ByteString,
}

/// What a parked key waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The time of its next attempt.
    Retry,
    /// Its held address.
    Address(String),
    /// The time of its next attempt, when it is sent alone.
    Quarantine,
    /// An operator, who decides about the message with this number.
    Dead(i64),
}

/// A parked key and its waiting messages.
#[derive(Clone, Debug)]
pub(crate) struct Header {
    pub(crate) waiting: Waiting,
    /// Counted attempts of the first message.
    pub(crate) attempts: u32,
    pub(crate) due: Micros,
    pub(crate) queue: BTreeMap<i64, Entry>,
}

impl Header {
    pub(crate) const fn due_now(now: Micros) -> Self {
        Self { waiting: Waiting::Retry, attempts: 0, due: now, queue: BTreeMap::new() }
    }

    /// Makes the next message of the queue due at once.
    pub(crate) fn go_on(&mut self, now: Micros) {
        self.waiting = Waiting::Retry;
        self.attempts = 0;
        self.due = now;
    }
}

/// An address that rejects every message.
#[derive(Clone, Debug)]
pub(crate) struct HeldAddress {
    pub(crate) error: String,
    /// The time of the next probe.
    pub(crate) until: Micros,
}

impl Destination {
    /// Checks the lease of each shard and the heads that its messages wait behind. Then changes the whole shard or
    /// nothing.
    pub(crate) fn settle(&mut self, settlement: &Settlement, log: &Log, now: Micros) -> Result<Settled, StoreError> {
        check(settlement, log)?;
        let mut settled = Settled::default();
        for (lease, position) in &settlement.progress {
            if !self.is_held(lease) {
                settled.lost.push(lease.shard);
                continue;
            }
            let parks = || settlement.parks.iter().filter(|park| is_of(park, lease));
            let passed = self.passed(parks());
            if !passed.is_empty() {
                settled.passed.extend(passed);
                continue;
            }
            for park in parks() {
                if let Some(row) = log.rows.get(&park.seq) {
                    self.park(park, row.entry.clone(), now);
                }
            }
            self.record(lease.shard, *position, now);
        }
        Ok(settled)
    }

    fn record(&mut self, shard: u16, position: Position, now: Micros) {
        self.shards[usize::from(shard)].progress.push((now, position));
    }

    /// Messages that should wait behind a head that is no longer parked.
    fn passed<'a>(&self, parks: impl Iterator<Item = &'a Park>) -> Vec<i64> {
        let mut created = BTreeSet::new();
        let mut passed = Vec::new();
        for park in parks {
            let key = key_of(park);
            match &park.stopped {
                None if !self.parked.contains_key(&key) && !created.contains(&key) => passed.push(park.seq),
                Some(Stopped { stop: Stop::DeadContinue, .. }) | None => {}
                Some(_) => {
                    created.insert(key);
                }
            }
        }
        passed
    }

    fn park(&mut self, park: &Park, entry: Entry, now: Micros) {
        let key = key_of(park);
        let Some(stopped) = &park.stopped else { return self.append(&key, entry) };
        if let Stop::Address { address, after } = &stopped.stop
            && !self.holds.contains_key(&**address)
        {
            // Only a failed probe extends the hold. Otherwise newly arriving messages could delay the probe forever.
            self.hold(address, &stopped.error, now.saturating_add(micros(*after)));
        }
        if stopped.stop == Stop::DeadContinue {
            self.bury(entry, stopped, now);
        } else if self.parked.contains_key(&key) {
            // Even a permanently failed message waits its turn. Dead-lettered now, it would free the key when the head
            // leaves.
            self.append(&key, entry);
        } else {
            let mut header = Header::due_now(now);
            if stopped.stop == Stop::DeadHold {
                self.bury(entry, stopped, now);
            } else {
                header.queue.insert(self.back(), entry);
            }
            header.stop(park.seq, stopped, now);
            self.parked.insert(key, header);
        }
    }

    fn append(&mut self, key: &Key, entry: Entry) {
        let number = self.back();
        if let Some(header) = self.parked.get_mut(key) {
            header.queue.insert(number, entry);
        }
    }

    fn back(&mut self) -> i64 {
        self.queue_back += 1;
        self.queue_back
    }

    pub(crate) fn front(&mut self) -> i64 {
        self.queue_front -= 1;
        self.queue_front
    }

    pub(crate) fn hold(&mut self, address: &str, error: &str, until: Micros) {
        self.holds.insert(address.to_owned(), HeldAddress { error: error.to_owned(), until });
    }

    /// Releases an address: every key that waits for it continues.
    pub(crate) fn release(&mut self, address: &str, now: Micros) {
        self.holds.remove(address);
        for header in self.parked.values_mut() {
            if matches!(&header.waiting, Waiting::Address(held) if held == address) {
                header.waiting = Waiting::Retry;
                header.due = now;
            }
        }
    }

    /// Returns the dead letter that holds this key, if an operator has not decided about it yet.
    pub(crate) fn is_held_by(&self, header: &Header) -> Option<i64> {
        let Waiting::Dead(seq) = header.waiting else { return None };
        self.dead.get(&seq).filter(|letter| letter.state == DeadState::Dead).map(|_| seq)
    }
}

impl Header {
    /// Sets what the key waits for, from the failure of its first message with number `seq`.
    pub(crate) fn stop(&mut self, seq: i64, stopped: &Stopped, now: Micros) {
        let later = |after| now.saturating_add(micros(after));
        (self.waiting, self.due) = match &stopped.stop {
            Stop::Retry { after } => (Waiting::Retry, later(*after)),
            Stop::Address { address, after } => (Waiting::Address(address.as_ref().to_owned()), later(*after)),
            Stop::Quarantine { after } => (Waiting::Quarantine, later(*after)),
            Stop::DeadHold => (Waiting::Dead(seq), now),
            Stop::DeadContinue => (Waiting::Retry, now),
        };
        self.attempts = stopped.attempts;
    }
}

fn key_of(park: &Park) -> Key {
    Key { slot: park.slot, name: park.key.clone() }
}

fn is_of(park: &Park, lease: &Lease) -> bool {
    shard_of(park.slot, lease.shards) == lease.shard
}

/// Checks for requests that no correct relay sends, before anything is changed.
fn check(settlement: &Settlement, log: &Log) -> Result<(), StoreError> {
    for park in &settlement.parks {
        if !settlement.progress.iter().any(|(lease, _)| is_of(park, lease)) {
            return Err(broken(format!("message {} is parked, and its shard is not settled", park.seq)));
        }
        if !log.rows.contains_key(&park.seq) {
            return Err(broken(format!("message {} is not in the log", park.seq)));
        }
    }
    Ok(())
}

fn broken(what: String) -> StoreError {
    StoreError::Broken(what.into())
}
