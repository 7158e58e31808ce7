//! The port between the configuration and a store adapter: everything that a program does with a configured database.
//!
//! A program reads a [`StoreConfig`], finds the [`StoreKind`] of its URL, and from then on knows only [`StoreAdapter`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::draft::Draft;
use crate::inbox::ConsumerOperator;
use crate::message::MessageId;
use crate::outbox::admin::OutboxTakeover;
use crate::outbox::transaction::EmitError;
use crate::outbox::{OutboxOperator, RelayStore};
use crate::replay_source::{OutboxRouting, ReplaySource};
use crate::store::StoreError;

/// A database as configured. `Debug` output omits the URL, which may contain a password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// The URL. Its scheme selects the adapter.
    pub url: String,
    /// The database schema of the outbox and the inboxes. `None` for the store's default.
    pub schema: Option<String>,
    /// The timeout of each call of a relay. `None` for the store's default.
    pub call_timeout: Option<Duration>,
    /// Accepts a database file on a network file system, where several machines would corrupt it.
    pub allow_network_file_system: bool,
}

impl StoreConfig {
    /// The defaults for a URL.
    pub fn from_url(url: impl Into<String>) -> Self {
        Self { url: url.into(), schema: None, call_timeout: None, allow_network_file_system: false }
    }
}

impl fmt::Debug for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreConfig")
            .field("schema", &self.schema)
            .field("call_timeout", &self.call_timeout)
            .field("allow_network_file_system", &self.allow_network_file_system)
            .finish_non_exhaustive()
    }
}

/// Why a [`StoreConfig`] cannot be used. Neither text contains the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; hint: {hint}")]
pub struct StoreConfigError {
    /// The field of [`StoreConfig`].
    pub field: &'static str,
    /// The problem.
    pub reason: String,
    /// A valid example.
    pub hint: String,
}

impl StoreConfigError {
    /// The URL is invalid.
    pub fn url(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { field: "url", reason: reason.into(), hint: hint.into() }
    }

    /// The schema is invalid.
    pub fn schema(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { field: "schema", reason: reason.into(), hint: hint.into() }
    }
}

/// One kind of store, as an adapter registers it.
#[derive(Clone, Copy, Debug)]
pub struct StoreKind {
    /// Its name for operators.
    pub name: &'static str,
    /// The URL schemes that select it.
    pub schemes: &'static [&'static str],
    /// A URL with placeholders, for hints.
    pub example_url: &'static str,
    /// The newest schema version that this program knows.
    pub schema_version: i32,
    /// Validates all settings. It opens nothing.
    pub configure: fn(&StoreConfig) -> Result<Arc<dyn StoreAdapter>, StoreConfigError>,
}

/// One version of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationStep {
    /// Versions are applied in ascending order.
    pub version: i32,
    /// A short name for operators.
    pub name: &'static str,
}

/// A configured database. Nothing is open yet. `Debug` output shows no secret.
///
/// If the server does not answer, every call that opens something fails within seconds.
#[async_trait]
pub trait StoreAdapter: fmt::Debug + Send + Sync {
    /// The file, or host, port, database and a schema other than the default. It contains no credentials.
    fn location(&self) -> String;

    /// Equal for two configurations of the same outbox, as far as the configurations show it.
    fn identity(&self) -> String {
        self.location()
    }

    /// The timeout of each call of a relay.
    fn call_timeout(&self) -> Duration;

    /// All migrations as one script for an empty database, for a DBA to read and run.
    fn migration_script(&self) -> String;

    /// The migrations after version `from` up to `to`, or up to the newest one, as a script for a migration tool that runs
    /// each of its files in a transaction. Version 0 is an empty database. `None` if there is no such migration.
    fn migration_between(&self, from: i32, to: Option<i32>) -> Option<String>;

    /// Returns the versions that [`migrate`](Self::migrate) would apply now. It changes nothing.
    async fn pending_migrations(&self) -> Result<Vec<MigrationStep>, StoreError>;

    /// Migrates the schema to the newest version that this program knows, and returns the versions that it applied.
    ///
    /// A second process waits for the first and then applies nothing. A failure changes nothing. A schema that is too
    /// new for this program is an error.
    async fn migrate(&self) -> Result<Vec<MigrationStep>, StoreError>;

    /// Opens the outbox for the relay of one destination. The destination need not exist.
    async fn open_relay(&self, destination: &str) -> Result<Arc<dyn RelayStore>, StoreError>;

    /// Opens the outbox and the inboxes for operators. Each call ends after `call_timeout` at the latest.
    async fn open_operator(&self, call_timeout: Duration) -> Result<Arc<dyn StoreOperator>, StoreError>;

    /// Opens the outbox to take over rows that another database wrote. `None` if the store needs nothing for that. Each
    /// call ends after `call_timeout` at the latest.
    async fn open_takeover(&self, _call_timeout: Duration) -> Result<Option<Arc<dyn OutboxTakeover>>, StoreError> {
        Ok(None)
    }

    /// Opens a connection that emits. It fails if the database has no outbox.
    async fn open_emitter(&self) -> Result<Box<dyn EmitSession>, StoreError>;

    /// Opens the log of the outbox as a source of replays. Each call ends after `call_timeout` at the latest.
    async fn replay_source(
        &self,
        routing: OutboxRouting,
        call_timeout: Duration,
    ) -> Result<Box<dyn ReplaySource>, StoreError>;
}

/// All operator ports of a database.
pub trait StoreOperator: OutboxOperator + ConsumerOperator {}

impl<T: OutboxOperator + ConsumerOperator> StoreOperator for T {}

/// A connection that emits, one transaction per call.
#[async_trait]
pub trait EmitSession: Send {
    /// Emits all messages in one transaction, or none of them.
    async fn emit(&mut self, drafts: Vec<Draft>) -> Result<Vec<MessageId>, EmitFailure>;

    /// Cancels a scheduled message. Returns whether it was still scheduled.
    async fn cancel(&mut self, id: MessageId) -> Result<bool, EmitFailure>;
}

/// Why a transaction of an [`EmitSession`] failed.
#[derive(Debug)]
pub struct EmitFailure {
    /// The index of the message that was not emitted.
    pub index: usize,
    /// Whether it is certain that nothing was committed. After a failed commit over a network it is not.
    pub rolled_back: bool,
    /// The error.
    pub error: EmitSessionError,
}

/// The error of an [`EmitFailure`].
#[derive(Debug, thiserror::Error)]
pub enum EmitSessionError {
    /// The database failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// One message was rejected.
    #[error(transparent)]
    Message(#[from] EmitError),
}

impl EmitFailure {
    /// A failure before the commit.
    pub fn before_commit(index: usize, error: impl Into<EmitSessionError>) -> Self {
        Self { index, rolled_back: true, error: error.into() }
    }

    /// A failed commit, whose outcome is unknown.
    pub fn in_commit(index: usize, error: impl Into<EmitSessionError>) -> Self {
        Self { index, rolled_back: false, error: error.into() }
    }
}
