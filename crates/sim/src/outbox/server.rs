//! The store's server. It records the effect of each call at the moment of the effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use parking_lot::Mutex;
use relevo_core::AfterDead;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases};
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, ParkAction, PublishFailure, SettleResult, Settlement};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement, QueuedEntry};
use relevo_core::outbox::{LogEntry, RelayStore};
use relevo_core::store::StoreError;
use uuid::Uuid;

use crate::history::MessageName;
use crate::outbox::event::{Dead, Event, History, LeaseRef};

/// A store that records every change in the history.
pub struct Server {
    inner: Arc<dyn RelayStore>,
    history: Arc<History>,
    known: Mutex<SeenMessages>,
}

/// Names from earlier calls, to name messages in later ones.
#[derive(Default)]
struct SeenMessages {
    leases: BTreeSet<Lease>,
    by_seq: BTreeMap<i64, MessageName>,
    by_queue: BTreeMap<(ByteString, i64), MessageName>,
}

impl Server {
    /// Wraps a store.
    pub fn new(inner: Arc<dyn RelayStore>, history: Arc<History>) -> Self {
        Self { inner, history, known: Mutex::default() }
    }

    fn record_leases(&self, response: &LeaseResponse) {
        let mut known = self.known.lock();
        for lease in &response.leases {
            if known.leases.insert(*lease) {
                self.history.record(Event::LeaseTaken(LeaseRef::from(lease)));
            }
        }
    }

    fn record_freed(&self, leases: &[Lease]) {
        for lease in leases {
            self.history.record(Event::LeaseReleased(LeaseRef::from(lease)));
        }
    }

    fn record_read(&self, entries: &[LogEntry]) {
        let mut known = self.known.lock();
        for entry in entries {
            known.by_seq.entry(entry.seq).or_insert_with(|| MessageName::of(&entry.message));
        }
    }

    fn record_parked(&self, name: Option<MessageName>, failure: &PublishFailure) {
        let Some(name) = name else { return };
        let dead = match failure.action {
            ParkAction::DeadLetter(AfterDead::Hold) => Some(Dead::Hold),
            ParkAction::DeadLetter(AfterDead::Continue) => Some(Dead::Continue),
            ParkAction::Retry { .. } | ParkAction::HoldAddress { .. } | ParkAction::Quarantine { .. } => None,
        };
        self.history.record(Event::Parked { name, class: failure.class, attempts: failure.attempts, dead });
    }

    fn record_settlement(&self, settlement: &Settlement, settled: &SettleResult) {
        for (lease, _) in &settlement.progress {
            let parks = || settlement.parked.iter().filter(|message| lease.has_slot(message.slot));
            let is_passed = parks().any(|message| settled.reread.contains(&message.seq));
            if settled.lost_shards.contains(&lease.shard) || is_passed {
                continue;
            }
            self.history.record(Event::Wrote { lease: LeaseRef::from(lease), text: "settled" });
            for message in parks() {
                let name = self.known.lock().by_seq.get(&message.seq).cloned();
                if let Some(failure) = &message.failure {
                    self.record_parked(name, failure);
                }
            }
        }
    }

    fn record_parked_settlement(&self, settlements: &[ParkedSettlement], results: &[ParkedResult]) {
        for (settlement, result) in settlements.iter().zip(results) {
            if *result == ParkedResult::LeaseLost {
                continue;
            }
            self.history
                .record(Event::Wrote { lease: LeaseRef::from(&settlement.lease), text: "advanced a parked key" });
            if let Some((number, failure)) = &settlement.failed {
                let name = self.known.lock().by_queue.get(&(settlement.key.clone(), *number)).cloned();
                self.record_parked(name, failure);
            }
        }
    }
}

#[async_trait]
impl ShardLeases for Server {
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        let give_back = request.release.clone();
        let response = self.inner.acquire_leases(request).await?;
        self.record_freed(&give_back);
        self.record_leases(&response);
        Ok(response)
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.release_leases(owner).await?;
        let leases: Vec<Lease> =
            self.known.lock().leases.iter().filter(|lease| lease.owner == owner).copied().collect();
        self.record_freed(&leases);
        Ok(())
    }
}

#[async_trait]
impl OutboxReader for Server {
    async fn read(&self, read: PageRequest<'_>) -> Result<Page, StoreError> {
        let page = self.inner.read(read).await?;
        self.record_read(&page.entries);
        Ok(page)
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        let settled = self.inner.settle(settlement.clone()).await?;
        self.record_settlement(&settlement, &settled);
        Ok(settled)
    }
}

#[async_trait]
impl ParkedReader for Server {
    async fn read_parked(
        &self,
        leases: &[Lease],
        keys: usize,
        messages: usize,
    ) -> Result<Vec<ParkedBatch>, StoreError> {
        let batches = self.inner.read_parked(leases, keys, messages).await?;
        let mut known = self.known.lock();
        for batch in &batches {
            for QueuedEntry { ordinal, entry } in &batch.messages {
                known.by_queue.insert((batch.key.clone(), *ordinal), MessageName::of(&entry.message));
            }
        }
        drop(known);
        Ok(batches)
    }

    async fn settle_parked(&self, settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        let results = self.inner.settle_parked(settlements.clone()).await?;
        self.record_parked_settlement(&settlements, &results);
        Ok(results)
    }
}

#[async_trait]
impl Maintenance for Server {
    async fn maintain(&self, budget: Duration) -> Result<MaintenanceReport, StoreError> {
        self.inner.maintain(budget).await
    }
}
