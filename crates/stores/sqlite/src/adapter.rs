//! The registration of this store: URLs of SQLite files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::outbox::RelayStore;
use relevo_core::replay_source::{OutboxRouting, ReplaySource};
use relevo_core::store::StoreError;
use relevo_core::store_adapter::{
    EmitFailure, EmitSession, MigrationStep, StoreAdapter, StoreConfig, StoreConfigError, StoreKind, StoreOperator,
};
use relevo_core::{Draft, EmitError, MessageId};
use relevo_sqlite_file::canonical_path;
use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions as _, Sqlite, Transaction};

use crate::config::{BUSY_TIMEOUT, Config, OperatorConfig, connect_options};
use crate::emit::{begin, cancel, describe_error, emit};
use crate::migrate;
use crate::operator::Operator;
use crate::operator::replay_source::OutboxReplaySource;
use crate::store::Store;

/// SQLite, for the registry of stores.
pub const STORE: StoreKind = StoreKind {
    name: "SQLite",
    schemes: &["sqlite"],
    example_url: "sqlite:FILE",
    schema_version: migrate::VERSION,
    configure,
};

fn configure(config: &StoreConfig) -> Result<Arc<dyn StoreAdapter>, StoreConfigError> {
    if config.schema.is_some() {
        return Err(StoreConfigError::schema(
            "a SQLite file has no schemas",
            "leave `schema` out, a file has one outbox",
        ));
    }
    Ok(Arc::new(Adapter { file: file_of(&config.url)?, allow_network_file_system: config.allow_network_file_system }))
}

/// The file of a `sqlite:` URL. It takes no parameters, and a database in memory has no other reader.
fn file_of(url: &str) -> Result<PathBuf, StoreConfigError> {
    let path = url.split_once(':').map_or(url, |(_, path)| path);
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path.starts_with(':') || path.contains('?') {
        let hint = "`sqlite:relevo.db`, or `sqlite:///var/lib/relevo/relevo.db`, without parameters";
        return Err(StoreConfigError::url("the database URL does not name a SQLite file", hint));
    }
    Ok(PathBuf::from(path))
}

struct Adapter {
    file: PathBuf,
    allow_network_file_system: bool,
}

impl Adapter {
    /// A call waits for another writer for as long as the call may take, and never longer than by default.
    async fn operator(&self, call_timeout: Duration) -> Result<Operator, StoreError> {
        let config = OperatorConfig {
            busy_timeout: call_timeout.min(BUSY_TIMEOUT),
            allow_network_file_system: self.allow_network_file_system,
            ..OperatorConfig::new(&self.file)
        };
        Operator::open(config).await
    }
}

#[async_trait]
impl StoreAdapter for Adapter {
    fn location(&self) -> String {
        self.file.display().to_string()
    }

    /// Two spellings of one file are one outbox.
    fn identity(&self) -> String {
        canonical_path(&self.file).display().to_string()
    }

    fn call_timeout(&self) -> Duration {
        BUSY_TIMEOUT
    }

    fn migration_script(&self) -> String {
        migrate::sql_script()
    }

    fn migration_between(&self, from: i32, to: Option<i32>) -> Option<String> {
        let to = to.unwrap_or(migrate::VERSION);
        (0 <= from && from < to && to <= migrate::VERSION).then(|| migrate::sql_between(from, to))
    }

    async fn pending_migrations(&self) -> Result<Vec<MigrationStep>, StoreError> {
        Ok(migrate::steps(&migrate::pending(&self.file).await?))
    }

    async fn migrate(&self) -> Result<Vec<MigrationStep>, StoreError> {
        Ok(migrate::steps(&migrate::migrate(&self.file).await?))
    }

    async fn open_relay(&self, destination: &str) -> Result<Arc<dyn RelayStore>, StoreError> {
        let config = Config {
            allow_network_file_system: self.allow_network_file_system,
            ..Config::new(&self.file, destination)
        };
        Ok(Arc::new(Store::open(config).await?))
    }

    async fn open_operator(&self, call_timeout: Duration) -> Result<Arc<dyn StoreOperator>, StoreError> {
        Ok(Arc::new(self.operator(call_timeout).await?))
    }

    async fn open_emitter(&self) -> Result<Box<dyn EmitSession>, StoreError> {
        // A missing schema is reported here, and not as a missing table.
        self.operator(BUSY_TIMEOUT).await?;
        let connection = connect_options(&self.file).disable_statement_logging().connect().await;
        let connection = connection.map_err(|error| describe_error(error, &self.file))?;
        Ok(Box::new(Session { connection, file: self.file.clone() }))
    }

    async fn replay_source(
        &self,
        routing: OutboxRouting,
        call_timeout: Duration,
    ) -> Result<Box<dyn ReplaySource>, StoreError> {
        Ok(Box::new(OutboxReplaySource::new(Arc::new(self.operator(call_timeout).await?), routing)))
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.location())
    }
}

/// A transaction that fails leaves nothing in the file, even in its commit.
struct Session {
    connection: SqliteConnection,
    file: PathBuf,
}

impl Session {
    async fn begin<'c>(
        connection: &'c mut SqliteConnection,
        file: &Path,
    ) -> Result<Transaction<'c, Sqlite>, EmitFailure> {
        begin(connection).await.map_err(|error| EmitFailure::before_commit(0, describe_error(error, file)))
    }
}

#[async_trait]
impl EmitSession for Session {
    async fn emit(&mut self, drafts: Vec<Draft>) -> Result<Vec<MessageId>, EmitFailure> {
        let Self { connection, file } = self;
        let last = drafts.len().saturating_sub(1);
        let mut tx = Self::begin(connection, file).await?;
        let mut ids = Vec::with_capacity(drafts.len());
        for (index, draft) in drafts.into_iter().enumerate() {
            ids.push(emit(&mut tx, draft).await.map_err(|error| emit_failure(index, error, file))?);
        }
        tx.commit().await.map_err(|error| EmitFailure::before_commit(last, describe_error(error, file)))?;
        Ok(ids)
    }

    async fn cancel(&mut self, id: MessageId) -> Result<bool, EmitFailure> {
        let Self { connection, file } = self;
        let mut tx = Self::begin(connection, file).await?;
        let cancelled = cancel(&mut tx, id).await.map_err(|error| emit_failure(0, error, file))?;
        tx.commit().await.map_err(|error| EmitFailure::before_commit(0, describe_error(error, file)))?;
        Ok(cancelled)
    }
}

/// Names the file in errors of the driver.
fn emit_failure(index: usize, error: EmitError, file: &Path) -> EmitFailure {
    let driver = match error {
        EmitError::Busy(error) => error.downcast().map_err(EmitError::Busy),
        EmitError::Store(error) => error.downcast().map_err(EmitError::Store),
        EmitError::Invalid(_) | EmitError::DuplicateId(_) | EmitError::NotInMainFile => Err(error),
    };
    match driver {
        Ok(error) => EmitFailure::before_commit(index, describe_error(*error, file)),
        Err(error) => EmitFailure::before_commit(index, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_file() {
        let file = |url| file_of(url).expect("a file").display().to_string();
        assert_eq!(file("sqlite:shop.db"), "shop.db");
        assert_eq!(file("sqlite://shop.db"), "shop.db");
        assert_eq!(file("sqlite:///var/shop.db"), "/var/shop.db");
    }

    #[test]
    fn a_url_without_a_file_or_with_parameters_is_rejected() {
        for url in ["sqlite:", "sqlite://", "sqlite::memory:", "sqlite:shop.db?mode=ro"] {
            assert!(file_of(url).is_err(), "{url}");
        }
    }

    #[test]
    fn a_schema_is_rejected() {
        let config = StoreConfig { schema: Some("billing".to_owned()), ..StoreConfig::from_url("sqlite:shop.db") };
        assert!(configure(&config).is_err());
    }
}
