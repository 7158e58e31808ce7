//! Connection settings of an outbox.

use std::time::Duration;

use relevo_core::store_adapter::StoreConfigError;
use sqlx::postgres::PgConnectOptions;

/// The timeout of a call by default.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of the database schema that holds an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(String);

impl Schema {
    /// Creates a schema name, spelled as in the catalogue.
    ///
    /// # Panics
    /// If the name is empty, longer than PostgreSQL's 63 bytes, or has other characters than ASCII letters, digits,
    /// `_` and `-`.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        assert!(is_schema_name(&name), "`{name}` cannot name a schema");
        Self(name)
    }

    /// Like [`new`](Self::new), with an error instead of a panic.
    pub(crate) fn parse(name: &str) -> Result<Self, StoreConfigError> {
        if is_schema_name(name) {
            return Ok(Self(name.to_owned()));
        }
        let hint = "a schema's name has 1 to 63 ASCII letters, digits, `_` and `-`";
        Err(StoreConfigError::schema("the name of the schema is invalid", hint))
    }

    /// The name as spelled in the catalogue.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name as a quoted SQL identifier.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

fn is_schema_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=63).contains(&name.len()) && name.bytes().all(allowed)
}

impl Default for Schema {
    fn default() -> Self {
        Self("relevo".to_owned())
    }
}

/// Connection settings of a relay for one destination.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connection options of the database.
    pub connect_options: PgConnectOptions,
    /// The schema of the outbox.
    pub schema: Schema,
    /// The destination that the relay serves.
    pub destination: String,
    /// Timeout of each call. It must be shorter than the lease.
    pub call_timeout: Duration,
}

impl Config {
    /// Creates the default configuration: schema `relevo`, a call timeout of five seconds.
    pub fn new(connect_options: PgConnectOptions, destination: impl Into<String>) -> Self {
        Self { connect_options, schema: Schema::default(), destination: destination.into(), call_timeout: CALL_TIMEOUT }
    }
}

/// Connection settings of an operator.
#[derive(Clone, Debug)]
pub struct OperatorConfig {
    /// Connection options of the database.
    pub connect_options: PgConnectOptions,
    /// The schema of the outbox and of the inboxes.
    pub schema: Schema,
    /// Timeout of each call.
    pub call_timeout: Duration,
}

impl OperatorConfig {
    /// Creates the default configuration: schema `relevo`, a call timeout of five seconds.
    pub fn new(connect_options: PgConnectOptions) -> Self {
        Self { connect_options, schema: Schema::default(), call_timeout: CALL_TIMEOUT }
    }
}
