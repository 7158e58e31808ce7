//! Settling: parks failed messages and advances the shards.

use std::collections::BTreeMap;

use bytestring::ByteString;
use relevo_core::AfterDead;
use relevo_core::dead_letters::DeadLetterState;
use relevo_core::outbox::log::{ParkAction, ParkedMessage, PublishFailure, SettleResult, Settlement};
use relevo_core::outbox::rules::{self, ParkStep};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::store::StoreError;

use crate::leases::DestinationTables;
use crate::log::Log;
use crate::state::{Micros, micros};

/// A key at one destination. It stores the slot instead of the shard, because resharding does not change the slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotKey {
    pub(crate) slot: u16,
    pub(crate) name: ByteString,
}

/// The event that a parked key waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParkedState {
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
pub(crate) struct ParkedKey {
    pub(crate) state: ParkedState,
    /// Counted attempts of the first message.
    pub(crate) attempts: u32,
    pub(crate) due_at: Micros,
    pub(crate) queue: BTreeMap<i64, LogEntry>,
}

impl ParkedKey {
    pub(crate) const fn due_now(now: Micros) -> Self {
        Self { state: ParkedState::Retry, attempts: 0, due_at: now, queue: BTreeMap::new() }
    }

    /// Makes the next message of the queue due at once.
    pub(crate) fn retry_now(&mut self, now: Micros) {
        self.state = ParkedState::Retry;
        self.attempts = 0;
        self.due_at = now;
    }
}

/// An address that rejects every message.
#[derive(Clone, Debug)]
pub(crate) struct HoldRow {
    pub(crate) error: String,
    /// The time of the next probe.
    pub(crate) probe_at: Micros,
}

impl DestinationTables {
    /// Checks the lease of each shard and the heads that its messages wait behind. Then changes the whole shard or
    /// nothing.
    pub(crate) fn settle(
        &mut self,
        settlement: &Settlement,
        log: &Log,
        now: Micros,
    ) -> Result<SettleResult, StoreError> {
        check(settlement, log)?;
        let mut settled = SettleResult::default();
        for (lease, position) in &settlement.progress {
            if !self.is_held(lease) {
                settled.lost_shards.push(lease.shard);
                continue;
            }
            let parked = || settlement.parked.iter().filter(|message| lease.has_slot(message.slot));
            let reread = rules::reread(parked(), |message| self.parked.contains_key(&key_of(message)));
            if !reread.is_empty() {
                settled.reread.extend(reread);
                continue;
            }
            for message in parked() {
                if let Some(row) = log.rows.get(&message.seq) {
                    self.park(message, row.entry.clone(), now);
                }
            }
            self.record_progress(lease.shard, position.clone(), now);
        }
        Ok(settled)
    }

    fn record_progress(&mut self, shard: u16, position: Position, now: Micros) {
        self.shards[usize::from(shard)].progress.push((now, position));
    }

    fn park(&mut self, message: &ParkedMessage, entry: LogEntry, now: Micros) {
        let key = key_of(message);
        if let Some(failure) = &message.failure
            && let ParkAction::HoldAddress { address, after } = &failure.action
            && !self.held_addresses.contains_key(&**address)
        {
            // Only a failed probe extends the hold. Otherwise newly arriving messages could delay the probe forever.
            self.hold_address(address, &failure.error, now.saturating_add(micros(*after)));
        }
        match rules::park_step(message, self.parked.contains_key(&key)) {
            ParkStep::Queue => self.append(&key, entry),
            ParkStep::DeadLetter(failure) => self.dead_letter(entry, failure, now),
            ParkStep::ParkKey(failure) => {
                let queue = BTreeMap::from([(self.next_back(), entry)]);
                self.park_key(key, queue, message.seq, failure, now);
            }
            ParkStep::ParkKeyBehindDeadLetter(failure) => {
                self.dead_letter(entry, failure, now);
                self.park_key(key, BTreeMap::new(), message.seq, failure, now);
            }
        }
    }

    fn park_key(
        &mut self,
        key: SlotKey,
        queue: BTreeMap<i64, LogEntry>,
        seq: i64,
        failure: &PublishFailure,
        now: Micros,
    ) {
        let mut parked = ParkedKey { queue, ..ParkedKey::due_now(now) };
        parked.apply_failure(seq, failure, now);
        self.parked.insert(key, parked);
    }

    fn append(&mut self, key: &SlotKey, entry: LogEntry) {
        let number = self.next_back();
        if let Some(header) = self.parked.get_mut(key) {
            header.queue.insert(number, entry);
        }
    }

    fn next_back(&mut self) -> i64 {
        self.queue_back += 1;
        self.queue_back
    }

    pub(crate) fn next_front(&mut self) -> i64 {
        self.queue_front -= 1;
        self.queue_front
    }

    pub(crate) fn hold_address(&mut self, address: &str, error: &str, until: Micros) {
        self.held_addresses.insert(address.to_owned(), HoldRow { error: error.to_owned(), probe_at: until });
    }

    /// Releases an address: every key that waits for it continues.
    pub(crate) fn release_address(&mut self, address: &str, now: Micros) {
        self.held_addresses.remove(address);
        for header in self.parked.values_mut() {
            if matches!(&header.state, ParkedState::Address(waits_for) if waits_for == address) {
                header.state = ParkedState::Retry;
                header.due_at = now;
            }
        }
    }

    /// Returns the dead letter that holds this key, if an operator has not decided about it yet.
    pub(crate) fn holding_dead_letter(&self, header: &ParkedKey) -> Option<i64> {
        let ParkedState::Dead(seq) = header.state else { return None };
        self.dead_letters.get(&seq).filter(|row| row.state == DeadLetterState::Dead).map(|_| seq)
    }
}

impl ParkedKey {
    /// Sets what the key waits for, from the failure of its first message with number `seq`.
    pub(crate) fn apply_failure(&mut self, seq: i64, failure: &PublishFailure, now: Micros) {
        let later = |after| now.saturating_add(micros(after));
        (self.state, self.due_at) = match &failure.action {
            ParkAction::Retry { after } => (ParkedState::Retry, later(*after)),
            ParkAction::HoldAddress { address, after } => {
                (ParkedState::Address(address.as_ref().to_owned()), later(*after))
            }
            ParkAction::Quarantine { after } => (ParkedState::Quarantine, later(*after)),
            ParkAction::DeadLetter(AfterDead::Hold) => (ParkedState::Dead(seq), now),
            ParkAction::DeadLetter(AfterDead::Continue) => (ParkedState::Retry, now),
        };
        self.attempts = failure.attempts;
    }
}

fn key_of(message: &ParkedMessage) -> SlotKey {
    SlotKey { slot: message.slot, name: message.key.clone() }
}

/// Checks for requests that no correct relay sends, before anything is changed.
fn check(settlement: &Settlement, log: &Log) -> Result<(), StoreError> {
    if let Some(message) = rules::message_of_another_shard(settlement) {
        return Err(unexpected(format!("message {} is parked, and its shard is not settled", message.seq)));
    }
    for message in &settlement.parked {
        if !log.rows.contains_key(&message.seq) {
            return Err(unexpected(format!("message {} is not in the log", message.seq)));
        }
    }
    Ok(())
}

fn unexpected(reason: String) -> StoreError {
    StoreError::Unexpected(reason.into())
}
