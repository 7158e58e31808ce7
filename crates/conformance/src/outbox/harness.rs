//! The operations that the suite needs from a store, beyond the ports: writers, time, and a server that can be killed.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use relevo_core::dead_letters::DeadLetterAdmin;
use relevo_core::outbox::admin::{DestinationChange, OutboxAdmin, StartFrom};
use relevo_core::outbox::leases::ShardLeases;
use relevo_core::outbox::log::OutboxReader;
use relevo_core::outbox::maintenance::Maintenance;
use relevo_core::outbox::parked::ParkedReader;
use relevo_core::{Draft, EmitError, MessageId};

use crate::outbox::test_relay::must;

/// The destination that every harness starts with, at the beginning of an empty outbox.
pub const MAIN: &str = "main";
/// Number of shards of [`MAIN`].
pub const SHARDS: u16 = 8;
/// Retention of settled messages in a harness's outbox.
pub const RETENTION: Duration = Duration::from_hours(1);

/// An outbox for one case, with all operations that cases need.
///
/// Harness calls panic on failure, because cases test the ports, not the harness.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A session of a relay.
    type Store: ShardLeases + OutboxReader + ParkedReader + Maintenance;
    /// A session of an operator.
    type Operator: DeadLetterAdmin + OutboxAdmin;
    /// A transaction of an application.
    type Writer: WriteTransaction;

    /// Opens a new, independent session for the destination [`MAIN`].
    async fn store(&self) -> Self::Store {
        self.store_for(MAIN).await
    }

    /// Opens a new, independent session for the destination `name`.
    async fn store_for(&self, name: &str) -> Self::Store;

    /// Opens a new, independent session of an operator.
    async fn operator(&self) -> Self::Operator;

    /// Begins a transaction. Several may be open at once, unless the store allows only one writer at a time.
    async fn begin(&self) -> Self::Writer;

    /// Begins a transaction while another one is open. Returns `None` if the store allows only one writer: a second
    /// writer gets a busy error.
    async fn try_begin_second(&self) -> Option<Self::Writer> {
        Some(self.begin().await)
    }

    /// Adds a destination with its own progress.
    async fn add_destination(&self, name: &str, shards: u16, start: StartFrom) {
        assert!(must(self.operator().await.add_destination(name, shards, start).await), "`{name}` exists");
    }

    /// Removes a destination with all its data.
    async fn remove_destination(&self, name: &str) {
        assert!(must(self.operator().await.remove_destination(name).await), "no destination `{name}`");
    }

    /// Requests another number of shards; relays apply it through their leases.
    async fn reshard(&self, name: &str, shards: u16) {
        let change = DestinationChange::Shards(shards);
        assert!(must(self.operator().await.update_destination(name, change).await), "no destination `{name}`");
    }

    /// Disables or enables a destination. No relay gets leases of a disabled one.
    async fn set_enabled(&self, name: &str, on: bool) {
        let change = DestinationChange::Enabled(on);
        assert!(must(self.operator().await.update_destination(name, change).await), "no destination `{name}`");
    }

    /// Kills the server without warning and restarts it. Open transactions are lost, committed data stays. Cases do not
    /// use earlier sessions and writers again.
    async fn crash(&mut self);

    /// The time of the database's clock, for scheduled messages.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    /// Advances time for leases, retries, holds and schedules. A harness waits, moves a clock, or makes the stored
    /// times earlier. Cases request minutes, but only a few seconds while a writer is open.
    async fn advance_time(&self, time: Duration);

    /// Makes everything that retention checks older: messages, progress and ticks. Leases and retries stay unchanged.
    async fn age_records(&self, time: Duration);

    /// Begins a new partition of the log, so that later messages are dropped separately from existing ones. A store
    /// that drops single messages does nothing.
    async fn next_partition(&self);

    /// Number of committed messages in the log, settled or not. Scheduled messages are not in the log yet.
    async fn stored_messages(&self) -> usize;

    /// Differences between stores. They determine what a case expects, never whether it runs.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
}

/// Differences between stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// No other application uses the server. Otherwise foreign transactions may move positions without messages.
    pub exclusive_server: bool,
    /// Progress settled just before a crash survives it. Otherwise those messages may be read again; nothing else
    /// changes.
    pub durable_progress: bool,
    /// Only one transaction writes at a time, from its first write to its end. Meanwhile no other session can emit,
    /// settle or lease; reading continues.
    pub single_writer: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self { exclusive_server: true, durable_progress: true, single_writer: false }
    }
}

/// A transaction of an application that emits messages. Dropping it rolls it back.
#[async_trait]
pub trait WriteTransaction: Send {
    /// Emits a message in this transaction and returns its id. After an error the transaction can only be rolled back.
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError>;

    /// Cancels a scheduled message; returns whether it was still waiting.
    async fn cancel(&mut self, id: MessageId) -> bool;

    /// Sets a savepoint with this name.
    async fn savepoint(&mut self, name: &str);

    /// Rolls back to that savepoint, which stays valid.
    async fn rollback_to(&mut self, name: &str);

    /// Commits.
    async fn commit(self);

    /// Rolls back.
    async fn rollback(self);
}

/// An ordinary message of this key.
pub fn draft(key: &str) -> Draft {
    Draft::json("orders", key, "OrderPlaced", "{}")
}
