//! How to reach an outbox.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

/// The name of the database schema that holds an outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema(String);

impl Schema {
    /// A schema by its name, as it stands in the catalogue.
    ///
    /// # Panics
    /// If the name is empty, longer than PostgreSQL's 63 bytes, or has other characters than ASCII letters, digits,
    /// `_` and `-`.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        assert!(
            (1..=63).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')),
            "`{name}` cannot name a schema"
        );
        Self(name)
    }

    /// The name as it stands in the catalogue.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name as SQL writes it.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0)
    }
}

impl Default for Schema {
    fn default() -> Self {
        Self("relevo".to_owned())
    }
}

/// How a relay reaches an outbox, and for which destination.
#[derive(Clone, Debug)]
pub struct Config {
    /// The database.
    pub connect: PgConnectOptions,
    /// Where the outbox is.
    pub schema: Schema,
    /// Whom the relay carries messages to.
    pub destination: String,
    /// No call takes longer; shorter than the lease.
    pub call_deadline: Duration,
}

impl Config {
    /// The defaults: schema `relevo`, calls of at most five seconds.
    pub fn new(connect: PgConnectOptions, destination: impl Into<String>) -> Self {
        Self {
            connect,
            schema: Schema::default(),
            destination: destination.into(),
            call_deadline: Duration::from_secs(5),
        }
    }
}
