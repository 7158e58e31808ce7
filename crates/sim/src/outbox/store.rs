//! A relay's link to the store: a network that loses, repeats and delays calls, and a server that can be down.

use std::sync::Arc;

use async_trait::async_trait;
use relevo_core::store::{
    Advance, Advanced, Ask, Lease, Leased, Leases, Maintained, OutboxReader, Page, ParkedKeys, Read, Run, Settled,
    Settlement, Standing, StoreError, Upkeep,
};
use uuid::Uuid;

use crate::line::Line;
use crate::outbox::event::Event;
use crate::outbox::server::Server;

/// One relay's access to the store.
pub struct FaultyStore {
    server: Arc<Server>,
    line: Line<Event>,
}

impl FaultyStore {
    /// Creates a store behind a link.
    pub const fn new(server: Arc<Server>, line: Line<Event>) -> Self {
        Self { server, line }
    }

    async fn call<T: Send + 'static>(
        &self,
        effect: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.line.call(effect).await
    }
}

#[async_trait]
impl Leases for FaultyStore {
    async fn lease(&self, ask: Ask) -> Result<Leased, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.lease(ask).await }).await
    }

    async fn standing(&self, leases: &[Lease]) -> Result<Vec<Standing>, StoreError> {
        let (server, leases) = (Arc::clone(&self.server), leases.to_vec());
        self.call(async move { server.standing(&leases).await }).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.leave(owner).await }).await
    }
}

#[async_trait]
impl OutboxReader for FaultyStore {
    async fn read(&self, read: Read<'_>) -> Result<Page, StoreError> {
        let (server, leases) = (Arc::clone(&self.server), read.leases.to_vec());
        let Read { after, limit, bytes, ceiling, .. } = read;
        self.call(
            async move { OutboxReader::read(&*server, Read { leases: &leases, after, limit, bytes, ceiling }).await },
        )
        .await
    }

    async fn settle(&self, settlement: Settlement) -> Result<Settled, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.settle(settlement).await }).await
    }
}

#[async_trait]
impl ParkedKeys for FaultyStore {
    async fn due(&self, leases: &[Lease], keys: usize, messages: usize) -> Result<Vec<Run>, StoreError> {
        let (server, leases) = (Arc::clone(&self.server), leases.to_vec());
        self.call(async move { server.due(&leases, keys, messages).await }).await
    }

    async fn advance(&self, advances: Vec<Advance>) -> Result<Vec<Advanced>, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.advance(advances).await }).await
    }
}

#[async_trait]
impl Upkeep for FaultyStore {
    async fn maintain(&self) -> Result<Maintained, StoreError> {
        let server = Arc::clone(&self.server);
        self.call(async move { server.maintain().await }).await
    }
}
