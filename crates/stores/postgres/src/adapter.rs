//! The registration of this store: URLs of PostgreSQL databases.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::outbox::RelayStore;
use relevo_core::outbox::admin::OutboxTakeover;
use relevo_core::replay_source::{OutboxRouting, ReplaySource};
use relevo_core::store::StoreError;
use relevo_core::store_adapter::{
    EmitFailure, EmitSession, MigrationStep, StoreAdapter, StoreConfig, StoreConfigError, StoreKind, StoreOperator,
};
use relevo_core::{Draft, MessageId};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};
use tokio::time::timeout;
use tracing::subscriber::{NoSubscriber, with_default};

use crate::classify::Error;
use crate::config::{CALL_TIMEOUT, Config, OperatorConfig, Schema};
use crate::emit::Emitter;
use crate::migrate;
use crate::operator::{Operator, OutboxReplaySource};
use crate::store::Store;

/// PostgreSQL, for the registry of stores.
pub const STORE: StoreKind = StoreKind {
    name: "PostgreSQL",
    schemes: &["postgres", "postgresql"],
    example_url: "postgres://user@host:5432/name",
    schema_version: migrate::VERSION,
    configure,
};

/// How long a server may take until a connection is open and the schema is checked.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

fn configure(config: &StoreConfig) -> Result<Arc<dyn StoreAdapter>, StoreConfigError> {
    let schema = match &config.schema {
        Some(name) => Schema::parse(name)?,
        None => Schema::default(),
    };
    let (connect_options, call_timeout) = (parse_url(&config.url)?, config.call_timeout.unwrap_or(CALL_TIMEOUT));
    Ok(Arc::new(Adapter { connect_options, schema, call_timeout }))
}

fn parse_url(url: &str) -> Result<PgConnectOptions, StoreConfigError> {
    // The parser logs parameters that it does not know, and a misspelt password is one of them.
    let options = with_default(NoSubscriber::default(), || url.parse::<PgConnectOptions>());
    let options = options.map_err(|error| {
        // The source names the problem, and repeats no part of the URL.
        let source = std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
        StoreConfigError::url(
            format!("the database URL is invalid{source}"),
            "`postgres://user:password@host:port/name`, with `@`, `:` and `/` of a password as `%40`, `%3A`, `%2F`",
        )
    })?;
    let named = options.get_application_name().is_some();
    let options = if named { options } else { options.application_name("relevo") };
    // The text of a statement may contain payloads.
    Ok(options.disable_statement_logging())
}

struct Adapter {
    connect_options: PgConnectOptions,
    schema: Schema,
    call_timeout: Duration,
}

impl Adapter {
    fn operator_config(&self, call_timeout: Duration) -> OperatorConfig {
        OperatorConfig {
            schema: self.schema.clone(),
            call_timeout,
            ..OperatorConfig::new(self.connect_options.clone())
        }
    }

    async fn operator(&self, call_timeout: Duration) -> Result<Operator, StoreError> {
        self.reach(Operator::open(self.operator_config(call_timeout))).await
    }

    async fn connect(&self) -> Result<PgConnection, StoreError> {
        self.reach(async { Ok(self.connect_options.connect().await.map_err(Error::from)?) }).await
    }

    /// Limits the time to connect, and adds advice if the server is unreachable.
    async fn reach<T>(&self, opening: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let opened = timeout(CONNECT_TIMEOUT, opening).await;
        opened.unwrap_or_else(|_| Err(Error::Timeout(CONNECT_TIMEOUT).into())).map_err(|error| match error {
            StoreError::Unavailable(source) => StoreError::Unavailable(Box::new(ConnectError(source))),
            other => other,
        })
    }
}

#[async_trait]
impl StoreAdapter for Adapter {
    fn location(&self) -> String {
        let options = &self.connect_options;
        let database = options.get_database().unwrap_or(options.get_username());
        let schema =
            if self.schema == Schema::default() { String::new() } else { format!(", schema `{}`", self.schema.name()) };
        match options.get_socket() {
            Some(socket) => format!("{}/{database}{schema}", socket.display()),
            None => format!("{}:{}/{database}{schema}", options.get_host(), options.get_port()),
        }
    }

    fn call_timeout(&self) -> Duration {
        self.call_timeout
    }

    fn migration_script(&self) -> String {
        migrate::sql_script(&self.schema)
    }

    fn migration_between(&self, from: i32, to: Option<i32>) -> Option<String> {
        let to = to.unwrap_or(migrate::VERSION);
        (0 <= from && from < to && to <= migrate::VERSION).then(|| migrate::sql_between(&self.schema, from, to))
    }

    async fn pending_migrations(&self) -> Result<Vec<MigrationStep>, StoreError> {
        let pending = migrate::pending(&mut self.connect().await?, &self.schema).await.map_err(Error::from)?;
        Ok(pending.into_iter().map(|(version, name)| MigrationStep { version, name }).collect())
    }

    async fn migrate(&self) -> Result<Vec<MigrationStep>, StoreError> {
        let applied = migrate::migrate(&mut self.connect().await?, &self.schema).await.map_err(Error::from)?;
        if applied.is_empty() {
            // A schema that is newer than this program fails to open.
            self.operator(self.call_timeout).await?;
        }
        Ok(migrate::steps(&applied))
    }

    async fn open_relay(&self, destination: &str) -> Result<Arc<dyn RelayStore>, StoreError> {
        let config = Config {
            schema: self.schema.clone(),
            call_timeout: self.call_timeout,
            ..Config::new(self.connect_options.clone(), destination)
        };
        Ok(Arc::new(self.reach(Store::open(config)).await?))
    }

    async fn open_operator(&self, call_timeout: Duration) -> Result<Arc<dyn StoreOperator>, StoreError> {
        Ok(Arc::new(self.operator(call_timeout).await?))
    }

    async fn open_takeover(&self, call_timeout: Duration) -> Result<Option<Arc<dyn OutboxTakeover>>, StoreError> {
        Ok(Some(Arc::new(self.operator(call_timeout).await?)))
    }

    async fn open_emitter(&self) -> Result<Box<dyn EmitSession>, StoreError> {
        // A missing schema is reported here, and not as a missing function.
        self.operator(self.call_timeout).await?;
        Ok(Box::new(Session { connection: self.connect().await?, emitter: Emitter::new(&self.schema) }))
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

/// The server is unreachable.
#[derive(Debug)]
struct ConnectError(Box<dyn std::error::Error + Send + Sync>);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; hint: check host and port, and that the server runs and accepts connections from here", self.0)
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

struct Session {
    connection: PgConnection,
    emitter: Emitter,
}

#[async_trait]
impl EmitSession for Session {
    async fn emit(&mut self, drafts: Vec<Draft>) -> Result<Vec<MessageId>, EmitFailure> {
        let last = drafts.len().saturating_sub(1);
        let mut tx =
            self.connection.begin().await.map_err(|error| EmitFailure::before_commit(0, store_error(error)))?;
        let mut ids = Vec::with_capacity(drafts.len());
        for (index, draft) in drafts.into_iter().enumerate() {
            let id = self.emitter.emit(&mut tx, draft).await;
            ids.push(id.map_err(|error| EmitFailure::before_commit(index, error))?);
        }
        tx.commit().await.map_err(|error| EmitFailure::in_commit(last, store_error(error)))?;
        Ok(ids)
    }

    async fn cancel(&mut self, id: MessageId) -> Result<bool, EmitFailure> {
        let mut tx =
            self.connection.begin().await.map_err(|error| EmitFailure::before_commit(0, store_error(error)))?;
        let cancelled = self.emitter.cancel(&mut tx, id).await;
        let cancelled = cancelled.map_err(|error| EmitFailure::before_commit(0, error))?;
        tx.commit().await.map_err(|error| EmitFailure::in_commit(0, store_error(error)))?;
        Ok(cancelled)
    }
}

fn store_error(error: sqlx::Error) -> StoreError {
    Error::from(error).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(url: &str) -> Result<Arc<dyn StoreAdapter>, StoreConfigError> {
        configure(&StoreConfig::from_url(url))
    }

    #[test]
    fn a_location_has_no_credentials() {
        let adapter = adapter("postgres://me:sesame@db.example:5433/shop?sslmode=disable").expect("a valid URL");
        assert_eq!(adapter.location(), "db.example:5433/shop");
        assert_eq!(format!("{adapter:?}"), "db.example:5433/shop");
    }

    #[test]
    fn a_schema_other_than_the_default_is_part_of_the_location() {
        let config = |schema: &str| StoreConfig {
            schema: Some(schema.to_owned()),
            ..StoreConfig::from_url("postgres://me@db.example/shop")
        };
        let location = |schema| configure(&config(schema)).expect("a valid configuration").location();
        assert_eq!(location("relevo"), "db.example:5432/shop");
        assert_eq!(location("billing"), "db.example:5432/shop, schema `billing`");
        for name in ["", "a b", "a\"b", &"x".repeat(64)] {
            assert!(configure(&config(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn an_invalid_url_is_not_printed() {
        for url in ["postgres://me:sesame@db:port/shop", "postgres://me:sesame@[::/shop"] {
            let error = adapter(url).expect_err("an invalid URL").to_string();
            assert!(!error.contains("sesame"), "{error}");
        }
    }
}
