//! The operator ports: destinations, messages, dead letters and consumers. For an outbox they need only the grants of a
//! relay.

mod consumers;
mod examine;
mod replay_source;
mod sample;
mod search;
mod tail;
mod verify;
mod why;

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterAdmin, DeadLetterFilter, DeadLetterOwner, DeadLetterPage, MarkReport, MarkRequest,
};
use relevo_core::finding::Finding;
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::admin::{DestinationChange, OutboxAdmin, OutboxSettings, OutboxTakeover, RoleKind, StartFrom};
use relevo_core::outbox::inspect::{DestinationInfo, MessageDetails, OutboxInspector, ShardInfo};
use relevo_core::outbox::search::{
    MessageFilter, OutboxSearch, SearchPage, TailFilter, TailPage, TimeRange, VerifyReport,
};
use relevo_core::outbox::why::KeyFacts;
use relevo_core::store::StoreError;

use crate::classify::Error;
use crate::config::OperatorConfig;
use crate::connection::Connection;
use crate::migrate;
use crate::queries::status::{self, StatusStatements};
use crate::queries::{consumers as inboxes, count_u64, dead_letters, leases, scalar};

pub use self::replay_source::OutboxReplaySource;

/// Operator access to the outbox and the inboxes of a schema.
///
/// It has its own connection, so that slow queries cannot delay a lease.
pub struct Operator {
    schema: String,
    connection: Connection,
}

/// One destination, for the duration of a call.
#[derive(Clone, Copy)]
struct Scope<'a> {
    schema: &'a str,
    connection: &'a Connection,
    name: &'a str,
}

impl Scope<'_> {
    /// The statements about the messages of this destination.
    fn status(&self) -> StatusStatements {
        StatusStatements::new(self.schema, self.name)
    }

    /// Returns the destination, or an error if it does not exist.
    async fn destination(&self) -> Result<DestinationInfo, Error> {
        let rows = self.connection.query(status::select_destinations(self.schema, Some(self.name))).await?;
        let found = status::destinations(&rows)?.into_iter().next();
        found.ok_or_else(|| Error::UnknownDestination(self.name.to_owned()))
    }

    async fn shards(&self) -> Result<Vec<ShardInfo>, Error> {
        status::decode_shards(self.connection.copy_out(self.status().shards()).await?)
    }
}

impl Operator {
    /// Connects and checks that this program supports the schema version.
    pub async fn open(config: OperatorConfig) -> Result<Self, StoreError> {
        let connection = Connection::new(config.connect_options, config.call_timeout);
        migrate::check_connection(&connection, &config.schema).await?;
        Ok(Self { schema: config.schema.quoted(), connection })
    }

    const fn scope<'a>(&'a self, destination: &'a str) -> Scope<'a> {
        Scope { schema: self.schema.as_str(), connection: &self.connection, name: destination }
    }

    /// The same for a destination that must exist.
    async fn existing<'a>(&'a self, destination: &'a str) -> Result<Scope<'a>, Error> {
        let scope = self.scope(destination);
        scope.destination().await?;
        Ok(scope)
    }

    async fn change(&self, sql: String) -> Result<bool, StoreError> {
        Ok(scalar(&self.connection.query(sql).await?)?)
    }
}

#[async_trait]
impl OutboxAdmin for Operator {
    async fn add_destination(&self, destination: &str, shards: u16, start: StartFrom) -> Result<bool, StoreError> {
        self.change(leases::add_destination(&self.schema, destination, shards, start)).await
    }

    async fn update_destination(&self, destination: &str, change: DestinationChange) -> Result<bool, StoreError> {
        self.change(match change {
            DestinationChange::Enabled(enabled) => leases::set_enabled(&self.schema, destination, enabled),
            DestinationChange::Shards(shards) => leases::reshard_destination(&self.schema, destination, shards),
        })
        .await
    }

    async fn remove_destination(&self, destination: &str) -> Result<bool, StoreError> {
        self.change(leases::remove_destination(&self.schema, destination)).await
    }

    async fn grant(&self, kind: RoleKind, role: &str) -> Result<bool, StoreError> {
        if !self.change(leases::role_exists(role)).await? {
            return Ok(false);
        }
        self.connection.query(leases::grant(&self.schema, kind, role)).await?;
        Ok(true)
    }

    async fn settings(&self) -> Result<OutboxSettings, StoreError> {
        Ok(status::settings(&self.connection.query(status::select_settings(&self.schema)).await?)?)
    }

    async fn set_settings(&self, settings: &OutboxSettings) -> Result<(), StoreError> {
        self.connection.query(status::update_settings(&self.schema, settings)).await?;
        Ok(())
    }
}

#[async_trait]
impl DeadLetterAdmin for Operator {
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeadLetterPage, StoreError> {
        match &filter.owner {
            DeadLetterOwner::Destination(name) => {
                let after = after.map(dead_letters::parse_cursor).transpose()?;
                let sql = dead_letters::list(&self.schema, self.existing(name).await?.name, filter, after, limit);
                Ok(dead_letters::page(self.connection.copy_out(sql).await?, name, limit)?)
            }
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => {
                filter.check_for_consumer()?;
                let after = after.map(inboxes::parse_cursor).transpose()?;
                let rows = self.call_inbox(inboxes::list_dead_letters(&self.schema, filter, after, limit)).await?;
                Ok(inboxes::dead_letter_page(&rows, limit)?)
            }
        }
    }

    async fn get_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        match &filter.owner {
            DeadLetterOwner::Destination(name) => {
                let sql = dead_letters::get(&self.schema, self.existing(name).await?.name, filter, limit);
                Ok(dead_letters::dead_letters(self.connection.copy_out(sql).await?, name)?)
            }
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => {
                filter.check_for_consumer()?;
                let rows = self.call_inbox(inboxes::get_dead_letters(&self.schema, filter, limit)).await?;
                Ok(rows.iter().map(inboxes::dead_letter).collect::<Result<_, _>>()?)
            }
        }
    }

    async fn mark_dead_letters(&self, request: &MarkRequest) -> Result<MarkReport, StoreError> {
        request.check()?;
        let rows = match &request.filter.owner {
            DeadLetterOwner::Destination(name) => {
                let sql = dead_letters::mark(&self.schema, self.existing(name).await?.name, request);
                self.connection.query(sql).await?
            }
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => {
                self.call_inbox(inboxes::mark_dead_letters(&self.schema, request)).await?
            }
        };
        Ok(MarkReport::complete(count_u64(scalar(&rows)?)?))
    }
}

#[async_trait]
impl OutboxInspector for Operator {
    async fn destinations(&self) -> Result<Vec<DestinationInfo>, StoreError> {
        Ok(status::destinations(&self.connection.query(status::select_destinations(&self.schema, None)).await?)?)
    }

    async fn shards(&self, destination: &str) -> Result<Vec<ShardInfo>, StoreError> {
        Ok(self.existing(destination).await?.shards().await?)
    }

    async fn message(&self, destination: &str, id: MessageId) -> Result<Option<MessageDetails>, StoreError> {
        Ok(search::show(self.existing(destination).await?, id).await?)
    }

    async fn key_facts(&self, destination: &str, key: &str) -> Result<KeyFacts, StoreError> {
        Ok(why::key_facts(self.scope(destination), key).await?)
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(examine::examine(self).await?)
    }
}

#[async_trait]
impl OutboxSearch for Operator {
    async fn search(
        &self,
        destination: &str,
        filter: &MessageFilter,
        limit: usize,
        budget: Duration,
    ) -> Result<SearchPage, StoreError> {
        Ok(search::search(self.existing(destination).await?, filter, limit, budget).await?)
    }

    async fn tail(&self, filter: &TailFilter, cursor: Option<&str>, limit: usize) -> Result<TailPage, StoreError> {
        Ok(tail::tail(&self.connection, &self.schema, filter, cursor, limit).await?)
    }

    async fn verify(&self, destination: &str, range: TimeRange) -> Result<VerifyReport, StoreError> {
        Ok(verify::verify(self.existing(destination).await?, range).await?)
    }
}

#[async_trait]
impl OutboxTakeover for Operator {
    async fn adopt(&self) -> Result<(), StoreError> {
        self.connection.query(leases::adopt(&self.schema)).await?;
        Ok(())
    }

    async fn rebase(&self) -> Result<u64, StoreError> {
        Ok(count_u64(scalar(&self.connection.query(leases::rebase(&self.schema)).await?)?)?)
    }
}

impl OutboxOperator for Operator {
    fn as_search(&self) -> Option<&dyn OutboxSearch> {
        Some(self)
    }
}
