//! Keys whose first message failed: parking, retrying and freeing them.

pub(crate) mod batches;
pub(crate) mod holds;

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::AfterDead;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{ParkAction, PublishFailure};
use relevo_core::outbox::parked::{ParkedBatch, ParkedResult, ParkedSettlement, QueuedEntry};
use relevo_core::trace::ActiveSpan;
use sha2::{Digest, Sha256};
use tokio::time::Instant;
use tracing::error;
use tracing::field::display;

use crate::buffer::{BufferId, BufferedMessage, Origin};
use crate::parked::batches::ParkedBatches;
use crate::parked::holds::{HeldAddresses, held_address};
use crate::relay::{Pending, Relay};
use crate::settle::EntryState;
use crate::status::add;
use crate::store_calls::StoreReply;

/// Parked keys in memory.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    pub(crate) keys: ParkedKeySet,
    /// Messages of open pages that wait behind a parked head of their key.
    waiting_behind: BTreeMap<ByteString, Vec<BufferId>>,
    pub(crate) held: HeldAddresses,
    pub(crate) batches: ParkedBatches,
}

impl Parked {
    /// Forgets a message that waited behind a parked head.
    pub(crate) fn remove_waiting(&mut self, key: &ByteString, id: BufferId) {
        if let Some(waiting) = self.waiting_behind.get_mut(key) {
            waiting.retain(|other| *other != id);
            if waiting.is_empty() {
                self.waiting_behind.remove(key);
            }
        }
    }
}

/// Parked keys as 128-bit hashes: 16 bytes per key of any length, and collisions are practically impossible.
#[derive(Debug, Default)]
pub(crate) struct ParkedKeySet(HashSet<[u8; 16], BuildHasherDefault<DefaultHasher>>);

impl ParkedKeySet {
    pub(crate) fn insert(&mut self, key: &str) {
        self.0.insert(fingerprint(key));
    }

    fn remove(&mut self, key: &str) {
        self.0.remove(&fingerprint(key));
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        !self.0.is_empty() && self.0.contains(&fingerprint(key))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

fn fingerprint(key: &str) -> [u8; 16] {
    let hash = Sha256::digest(key.as_bytes());
    let mut short = [0; 16];
    short.copy_from_slice(&hash[..16]);
    short
}

impl Relay {
    /// Parked keys are not read while the broker is down, or while too many batches are in flight.
    pub(crate) fn can_read_parked(&self, now: Instant) -> bool {
        self.publisher.health.is_worth_trying(now)
            && 2 * self.parked.batches.len() <= self.config.advanced.parked_keys_per_poll
    }

    pub(crate) fn read_parked_call(&self) -> Pending<StoreReply> {
        let store = Arc::clone(&self.store);
        let leases: Vec<Lease> = self.leases.kept_shards().map(|shard| shard.lease).collect();
        // Keys in flight are still due and are returned first. Request enough keys to get others too.
        let (keys, messages) =
            (self.config.advanced.parked_keys_per_poll, self.config.advanced.parked_messages_per_key);
        Box::pin(async move { StoreReply::Parked(store.read_parked(&leases, keys, messages).await) })
    }

    pub(crate) fn take_parked_batches(&mut self, batches: Vec<ParkedBatch>) {
        for batch in batches {
            if self.parked.batches.holds_key(&batch.key) {
                continue;
            }
            let Some(lease) = self.leases.of_slot(batch.slot) else { continue };
            // Many keys may be due, so poll again at once while there are new ones.
            self.store_calls.schedule.parked = Instant::now();
            self.take_parked_batch(batch, lease);
        }
    }

    fn take_parked_batch(&mut self, mut batch: ParkedBatch, lease: Lease) {
        self.parked.keys.insert(&batch.key);
        let number = self.parked.batches.start(lease, batch.key.clone(), batch.messages.len());
        for (index, QueuedEntry { ordinal, entry }) in batch.messages.into_iter().enumerate() {
            let route = self.route(&entry.message);
            let address = route.as_ref().map(|route| route.address_of(&entry.message));
            let is_head = index == 0;
            if is_head && batch.probe_address.as_deref() != address.as_deref() {
                // The routes changed while it waited. Other messages that wait for the address may have a new address
                // too.
                self.release_address(number, batch.probe_address.take());
            }
            let (Some(route), Some(address)) = (route, address) else {
                self.parked.batches.delivered(number, ordinal, None); // no route matches it any more
                continue;
            };
            self.buffer.push(BufferedMessage {
                entry,
                lease,
                route,
                address,
                origin: Origin::Parked { batch: number, ordinal },
                attempts: if is_head { batch.attempts } else { 0 },
                lost_confirms: if is_head && batch.quarantined {
                    self.config.advanced.lost_confirms_max - 1
                } else {
                    0
                },
                is_probe: batch.probe_address.is_some(),
                span: None,
                // Only the head was passed to the broker before. The messages behind it were not.
                was_sent: is_head,
            });
        }
    }

    /// Releases the address that the batch should probe.
    fn release_address(&mut self, batch: u64, address: Option<String>) {
        if let Some(address) = address {
            self.parked.held.release(&address);
            self.parked.batches.release(batch, address.into());
        }
    }

    /// Records the results of finished batches, if there are any.
    pub(crate) fn settle_parked_call(&mut self) -> Option<Pending<StoreReply>> {
        if !self.parked.batches.has_finished() {
            return None;
        }
        let settlements = self.parked.batches.take_finished();
        let spans = self.parked.batches.take_spans();
        let store = Arc::clone(&self.store);
        Some(Box::pin(async move {
            let result = store.settle_parked(settlements.clone()).await;
            StoreReply::ParkedSettlement { settlements, spans, result }
        }))
    }

    pub(crate) fn apply_parked_settlement(
        &mut self,
        settlements: &[ParkedSettlement],
        spans: Vec<ActiveSpan>,
        results: &[ParkedResult],
    ) {
        if results.contains(&ParkedResult::LeaseLost) {
            self.status.count_lost_leases(1);
            self.discard_unsettled();
            return;
        }
        spans.into_iter().for_each(ActiveSpan::end);
        for (settlement, result) in settlements.iter().zip(results) {
            if let Some(address) = &settlement.released_address {
                self.parked.held.confirm_release(address);
            }
            let held = settlement.failed.as_ref().and_then(|(_, failure)| held_address(failure));
            self.parked.held.mark_settled(held.map(|address| &**address));
            // A message from the log that failed meanwhile and is not settled yet still blocks the key.
            if *result == ParkedResult::KeyFreed && !self.pages.has_failed_entry(&settlement.key) {
                self.unpark(&settlement.key);
            }
        }
    }

    /// Parks or dead-letters a message. Its key waits behind it or continues without it.
    pub(crate) fn park_or_dead_letter(&mut self, id: BufferId, failure: PublishFailure) {
        let message = self.buffer.remove(id);
        let key = message.entry.message.key.clone();
        let continues = failure.action == ParkAction::DeadLetter(AfterDead::Continue);
        if matches!(failure.action, ParkAction::DeadLetter(_)) {
            add(&self.status.counters.dead_lettered, 1);
            let message_id = message.entry.message.id;
            let trace_id = self.config.tracer.trace_id(&message.entry.message).map(display);
            error!(%message_id, trace_id, attempts = failure.attempts, error = %failure.error, "message dead-lettered");
        } else {
            add(&self.status.counters.parked, 1);
        }
        match message.origin {
            Origin::Log { page, index } => {
                self.pages.resolve(page, index, EntryState::Failed(Box::new(failure)));
                if continues {
                    self.buffer.release_next(&key);
                    return;
                }
                self.parked.keys.insert(&key);
            }
            Origin::Parked { batch, ordinal } => self.parked.batches.failed(batch, ordinal, failure),
        }
        for waiting in self.buffer.take_waiting(&key) {
            let message = self.buffer.remove(waiting);
            match message.origin {
                Origin::Log { .. } => self.wait_behind(&key, message),
                // The remaining messages of the batch are still in the store's queue.
                Origin::Parked { batch, .. } => self.parked.batches.abandon(batch),
            }
        }
    }

    /// Records that a message of the log waits behind a parked head of its key. It stays in memory until this is
    /// settled.
    pub(crate) fn wait_behind(&mut self, key: &ByteString, message: BufferedMessage) {
        let Origin::Log { page, index } = message.origin else { unreachable!("only messages of the log wait behind") };
        add(&self.status.counters.parked, 1);
        let id = self.buffer.insert(message);
        self.parked.waiting_behind.entry(key.clone()).or_default().push(id);
        self.pages.resolve(page, index, EntryState::WaitsBehind(id));
    }

    /// Frees a key whose parked head was removed. Messages that wait behind it in memory are published directly, before
    /// later messages of the key.
    fn unpark(&mut self, key: &ByteString) {
        self.parked.keys.remove(key);
        let mut waiting = self.parked.waiting_behind.remove(key).unwrap_or_default();
        waiting.sort_by_key(|id| self.buffer[*id].origin.order());
        for id in waiting {
            let mut message = self.buffer.remove(id);
            let Origin::Log { page, index } = message.origin else {
                unreachable!("only messages of the log wait behind")
            };
            // The routes may have changed while it waited.
            let Some(route) = self.route(&message.entry.message) else {
                self.pages.resolve(page, index, EntryState::Done);
                continue;
            };
            message.address = route.address_of(&message.entry.message);
            message.route = route;
            self.pages.resolve(page, index, EntryState::Pending);
            self.buffer.push(message);
        }
    }
}
