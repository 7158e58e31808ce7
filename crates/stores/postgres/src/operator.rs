//! The operator ports: destinations, messages and dead letters of an outbox. They need only the grants of a relay.

mod consumers;
mod examine;
mod replay_source;
mod sample;
mod search;
mod verify;
mod why;

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetter, DeadLetterAdmin, DeadLetterFilter, MarkRequest};
use relevo_core::finding::Finding;
use relevo_core::outbox::admin::{OutboxAdmin, StartFrom};
use relevo_core::outbox::inspect::{Backlog, DestinationInfo, KeyReport, MessageDetails, OutboxInspector, ShardInfo};
use relevo_core::outbox::search::{MessageFilter, SearchPage, TimeRange, VerifyReport};
use relevo_core::store::StoreError;

use crate::classify::Error;
use crate::queries::status::{self, StatusStatements};
use crate::queries::{count_u64, dead_letters, leases, scalar};
use crate::store::Store;

pub use self::replay_source::OutboxReplaySource;

impl Store {
    /// Adopts the outbox in this database after an upgrade, or in a copy that must publish from now on.
    pub async fn adopt(&self) -> Result<(), StoreError> {
        self.operator_connection.query(leases::adopt(&self.schema)).await?;
        Ok(())
    }

    /// Assigns transaction ids of this server to all rows after a restore from a dump. Returns the number of messages
    /// that will be published.
    pub async fn rebase(&self) -> Result<i64, StoreError> {
        Ok(scalar(&self.operator_connection.query(leases::rebase(&self.schema)).await?)?)
    }

    async fn change(&self, sql: String) -> Result<bool, StoreError> {
        Ok(scalar(&self.operator_connection.query(sql).await?)?)
    }

    async fn mark_dead_letters(&self, function: &str, mark: &MarkRequest) -> Result<u64, StoreError> {
        let sql = dead_letters::mark_dead_letters(&self.schema, function, &self.destination, mark);
        Ok(count_u64(scalar(&self.operator_connection.query(sql).await?)?)?)
    }

    /// The statements about the messages of this destination.
    fn status(&self) -> StatusStatements {
        StatusStatements::new(&self.schema, &self.destination)
    }

    async fn all_destinations(&self) -> Result<Vec<DestinationInfo>, Error> {
        status::destinations(&self.operator_connection.query(status::select_destinations(&self.schema)).await?)
    }

    /// Returns the destination of this store, or an error if it does not exist.
    async fn this_destination(&self) -> Result<DestinationInfo, Error> {
        let found = self.all_destinations().await?.into_iter().find(|it| it.name == self.destination);
        found.ok_or_else(|| Error::UnknownDestination(self.destination.clone()))
    }

    async fn leased_shards(&self) -> Result<Vec<ShardInfo>, Error> {
        status::decode_shards(self.operator_connection.copy_out(self.status().shards()).await?)
    }
}

#[async_trait]
impl OutboxAdmin for Store {
    async fn add_destination(&self, shards: u16, start: StartFrom) -> Result<bool, StoreError> {
        self.change(leases::add_destination(&self.schema, &self.destination, shards, start)).await
    }

    async fn remove_destination(&self) -> Result<bool, StoreError> {
        self.change(leases::remove_destination(&self.schema, &self.destination)).await
    }

    async fn switch(&self, on: bool) -> Result<bool, StoreError> {
        self.change(leases::set_enabled(&self.schema, &self.destination, on)).await
    }

    async fn regroup(&self, shards: u16) -> Result<bool, StoreError> {
        self.change(leases::reshard_destination(&self.schema, &self.destination, shards)).await
    }
}

#[async_trait]
impl DeadLetterAdmin for Store {
    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let sql = dead_letters::select_dead_letters(&self.schema, &self.destination, filter, limit);
        Ok(dead_letters::dead_letters(self.operator_connection.copy_out(sql).await?)?)
    }

    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_dead_letters("redrive", mark).await
    }

    async fn discard(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_dead_letters("discard", mark).await
    }
}

#[async_trait]
impl OutboxInspector for Store {
    async fn destinations(&self) -> Result<Vec<DestinationInfo>, StoreError> {
        Ok(self.all_destinations().await?)
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        Ok(status::decode_backlog(&self.operator_connection.query(self.status().backlog()).await?)?)
    }

    async fn search(&self, search: &MessageFilter, limit: usize, budget: Duration) -> Result<SearchPage, StoreError> {
        self.this_destination().await?;
        Ok(search::search(self, search, limit, budget).await?)
    }

    async fn message(&self, id: MessageId) -> Result<Option<MessageDetails>, StoreError> {
        self.this_destination().await?;
        Ok(search::show(self, id).await?)
    }

    async fn key_facts(&self, key: &str) -> Result<KeyReport, StoreError> {
        Ok(why::why(self, key).await?)
    }

    async fn shards(&self) -> Result<Vec<ShardInfo>, StoreError> {
        self.this_destination().await?;
        Ok(self.leased_shards().await?)
    }

    async fn verify(&self, range: TimeRange) -> Result<VerifyReport, StoreError> {
        self.this_destination().await?;
        Ok(verify::verify(self, range).await?)
    }

    async fn retention(&self) -> Result<Duration, StoreError> {
        let rows = self.operator_connection.query(status::select_retention(&self.schema)).await?;
        Ok(Duration::from_secs(u64::try_from(scalar::<i64>(&rows)?).unwrap_or(0)))
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(examine::examine(self).await?)
    }
}
