//! Due messages of parked keys, and their results.

use std::collections::BTreeSet;

use relevo_core::AfterDead;
use relevo_core::outbox::LogEntry;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{ParkAction, PublishFailure};
use relevo_core::outbox::parked::{ParkedBatch, ParkedResult, ParkedSettlement, QueuedEntry};
use relevo_core::slot::{shard_of, slot_of};

use crate::leases::DestinationTables;
use crate::settle::{ParkedKey, ParkedState, SlotKey};
use crate::state::{Micros, micros};

impl DestinationTables {
    pub(crate) fn read_parked(
        &mut self,
        leases: &[Lease],
        keys: usize,
        messages: usize,
        now: Micros,
    ) -> Vec<ParkedBatch> {
        let owned_shards = self.held_shards(leases);
        self.apply_marks(&owned_shards, now);
        let shards = self.shard_count();
        let parked = self.parked.iter().filter(|(key, _)| owned_shards.contains(&shard_of(key.slot, shards)));
        let mut due: Vec<(&SlotKey, &ParkedKey)> = parked.filter(|(_, header)| self.is_due(header, now)).collect();
        due.sort_by_key(|(key, header)| (header.due_at, *key));
        let mut probed = BTreeSet::new();
        due.retain(|(_, header)| match &header.state {
            // One probe per address, because while it is held the others would fail too.
            ParkedState::Address(address) => probed.insert(address),
            ParkedState::Retry | ParkedState::Quarantine | ParkedState::Dead(_) => true,
        });
        let due = due.into_iter().take(keys);
        due.map(|(key, header)| parked_batch(key, header, messages)).collect()
    }

    fn is_due(&self, header: &ParkedKey, now: Micros) -> bool {
        match &header.state {
            ParkedState::Retry | ParkedState::Quarantine => header.due_at <= now,
            ParkedState::Address(address) => self.held_addresses.get(address).is_none_or(|hold| hold.probe_at <= now),
            ParkedState::Dead(_) => false,
        }
    }

    pub(crate) fn settle_parked(&mut self, settlement: &ParkedSettlement, now: Micros) -> ParkedResult {
        if !self.is_held(&settlement.lease) {
            return ParkedResult::LeaseLost;
        }
        if let Some(address) = &settlement.released_address {
            self.release_address(address, now);
        }
        let key = SlotKey { slot: slot_of(&settlement.key), name: settlement.key.clone() };
        let Some(mut header) = self.parked.remove(&key) else { return ParkedResult::KeyFreed };
        for number in &settlement.delivered {
            header.queue.remove(number);
        }
        match &settlement.failed {
            Some((number, failure)) => self.apply_failure(&mut header, *number, failure, now),
            None if !settlement.delivered.is_empty() => header.retry_now(now),
            // The result is unknown, as in an outage. The key keeps waiting as before.
            None => {}
        }
        if header.queue.is_empty() && !matches!(header.state, ParkedState::Dead(_)) {
            return ParkedResult::KeyFreed;
        }
        self.parked.insert(key, header);
        ParkedResult::StillParked
    }

    fn apply_failure(&mut self, header: &mut ParkedKey, number: i64, failure: &PublishFailure, now: Micros) {
        // A message that comes before the probe is due was not tried, so it does not delay the probe.
        if let ParkAction::HoldAddress { address, after } = &failure.action
            && self.held_addresses.get(&**address).is_none_or(|hold| hold.probe_at <= now)
        {
            self.hold_address(address, &failure.error, now.saturating_add(micros(*after)));
        }
        let is_head = header.queue.keys().next() == Some(&number);
        match failure.action {
            ParkAction::DeadLetter(_) => {
                let Some(entry) = header.queue.remove(&number) else { return };
                let seq = entry.seq;
                self.dead_letter(entry, failure, now);
                header.retry_now(now);
                if failure.action == ParkAction::DeadLetter(AfterDead::Hold) {
                    header.apply_failure(seq, failure, now);
                }
            }
            ParkAction::Retry { .. } | ParkAction::HoldAddress { .. } | ParkAction::Quarantine { .. } if is_head => {
                header.apply_failure(number, failure, now);
            }
            // A redriven message is at the front now. It goes first, with its own attempt count.
            ParkAction::Retry { .. } | ParkAction::HoldAddress { .. } | ParkAction::Quarantine { .. } => {
                header.retry_now(now);
            }
        }
    }
}

fn parked_batch(key: &SlotKey, header: &ParkedKey, messages: usize) -> ParkedBatch {
    // A probe or a quarantined message is sent alone.
    let (address, limit) = match &header.state {
        ParkedState::Address(address) => (Some(address.clone()), 1),
        ParkedState::Quarantine => (None, 1),
        ParkedState::Retry | ParkedState::Dead(_) => (None, messages.max(1)),
    };
    ParkedBatch {
        key: key.name.clone(),
        slot: key.slot,
        attempts: header.attempts,
        quarantined: header.state == ParkedState::Quarantine,
        probe_address: address,
        messages: header.queue.iter().take(limit).map(queued_entry).collect(),
    }
}

fn queued_entry((ordinal, entry): (&i64, &LogEntry)) -> QueuedEntry {
    QueuedEntry { ordinal: *ordinal, entry: entry.clone() }
}
