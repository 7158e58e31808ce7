//! One destination of an outbox, as relays and operators use it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases};
use relevo_core::outbox::log::WindowLimit;
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, SettleResult, Settlement};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::outbox::rules;
use relevo_core::store::StoreError;
use uuid::Uuid;

use crate::state::Tables;

/// One destination of an outbox. Cheap to clone. It holds no locks between calls.
#[derive(Clone, Debug)]
pub struct Store {
    tables: Arc<Mutex<Tables>>,
    name: Arc<str>,
}

impl Store {
    pub(crate) fn new(state: &Arc<Mutex<Tables>>, name: &str) -> Self {
        Self { tables: Arc::clone(state), name: name.into() }
    }
}

#[async_trait]
impl ShardLeases for Store {
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        let mut state = self.tables.lock();
        let now = state.now();
        let destination = state.destination(&self.name)?;
        if !destination.enabled {
            return Err(StoreError::Refused { reason: format!("destination `{}` is disabled", self.name) });
        }
        let mut response = destination.acquire_leases(&request, now);
        let new = |lease: &&Lease| !request.held.contains(lease);
        let new: Vec<Lease> = response.leases.iter().filter(new).copied().collect();
        response.taken = destination.taken_shards(&new);
        Ok(response)
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        self.tables.lock().destination(&self.name)?.release_leases(owner);
        Ok(())
    }
}

#[async_trait]
impl OutboxReader for Store {
    async fn read(&self, request: PageRequest<'_>) -> Result<Page, StoreError> {
        let mut state = self.tables.lock();
        state.destination(&self.name)?;
        let opens_window = rules::oldest_group(request.shards).is_some_and(|(after, _)| after.is_exhausted());
        if opens_window && request.window_limit == WindowLimit::Unlimited {
            state.insert_due_messages();
        }
        let now = state.now();
        state.log.read(&request, now)
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        let mut state = self.tables.lock();
        let now = state.now();
        let (log, destination) = state.split(&self.name)?;
        destination.settle(&settlement, log, now)
    }
}

#[async_trait]
impl ParkedReader for Store {
    async fn read_parked(
        &self,
        leases: &[Lease],
        keys: usize,
        messages: usize,
    ) -> Result<Vec<ParkedBatch>, StoreError> {
        let mut state = self.tables.lock();
        let now = state.now();
        Ok(state.destination(&self.name)?.read_parked(leases, keys, messages, now))
    }

    async fn settle_parked(&self, settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        let mut state = self.tables.lock();
        let now = state.now();
        let destination = state.destination(&self.name)?;
        Ok(settlements.iter().map(|settlement| destination.settle_parked(settlement, now)).collect())
    }
}

#[async_trait]
impl Maintenance for Store {
    async fn maintain(&self, _budget: Duration) -> Result<MaintenanceReport, StoreError> {
        Ok(self.tables.lock().maintain())
    }
}
