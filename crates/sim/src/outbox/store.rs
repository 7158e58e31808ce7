//! A relay's link to the store: a network that loses, repeats and delays calls, and a server that can be down.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases};
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, SettleResult, Settlement};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::store::StoreError;
use uuid::Uuid;

use crate::link::FaultyLink;
use crate::outbox::event::Event;
use crate::outbox::server::Server;

/// One relay's access to the store.
pub struct FaultyStore {
    server: Arc<Server>,
    link: FaultyLink<Event>,
}

impl FaultyStore {
    /// Creates a store behind a link.
    pub const fn new(server: Arc<Server>, link: FaultyLink<Event>) -> Self {
        Self { server, link }
    }

    async fn call<T: Send + 'static>(
        &self,
        effect: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.link.call(effect).await
    }
}

#[async_trait]
impl ShardLeases for FaultyStore {
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.acquire_leases(request).await }).await
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.release_leases(owner).await }).await
    }
}

#[async_trait]
impl OutboxReader for FaultyStore {
    async fn read(&self, read: PageRequest<'_>) -> Result<Page, StoreError> {
        let (server, shards) = (Arc::clone(&self.server), read.shards.to_vec());
        let PageRequest { messages_max, bytes_max, window_limit, .. } = read;
        self.call(async move {
            let read = PageRequest { shards: &shards, messages_max, bytes_max, window_limit };
            OutboxReader::read(&*server, read).await
        })
        .await
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.settle(settlement).await }).await
    }
}

#[async_trait]
impl ParkedReader for FaultyStore {
    async fn read_parked(
        &self,
        leases: &[Lease],
        keys: usize,
        messages: usize,
    ) -> Result<Vec<ParkedBatch>, StoreError> {
        let (server, leases) = (Arc::clone(&self.server), leases.to_vec());
        self.call(async move { server.read_parked(&leases, keys, messages).await }).await
    }

    async fn settle_parked(&self, settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.settle_parked(settlements).await }).await
    }
}

#[async_trait]
impl Maintenance for FaultyStore {
    async fn maintain(&self, budget: Duration) -> Result<MaintenanceReport, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.maintain(budget).await }).await
    }
}
