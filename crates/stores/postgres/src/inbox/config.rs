//! Connection settings of an inbox.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

use crate::config::Schema;

/// Connection settings and time limits of an inbox.
///
/// The inbox prepares no statements, and neither does emitting through its transaction. Behind a pooler in transaction
/// mode handlers must not prepare any either: use `persistent(false)` for queries.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connection options of the database.
    pub connect_options: PgConnectOptions,
    /// The schema of the inbox.
    pub schema: Schema,
    /// Maximum number of open handler transactions. Each uses its own connection. Set it slightly above the consumer's
    /// concurrency, because an aborted handler keeps its connection until its rollback completes.
    pub handler_connections_max: u32,
    /// Maximum number of connections for all other calls: claims, failures, due queues.
    pub call_connections_max: u32,
    /// How long a message waits for another worker's transaction before it is reported as busy. The handler's own
    /// statements use the lock timeout of their session.
    pub lock_timeout: Duration,
    /// Longest statement or idle period in a handler's transaction. The server then aborts it, because its locks block
    /// the lane. It must be longer than any handler takes. Zero disables it. A session that sets `statement_timeout` or
    /// `idle_in_transaction_session_timeout` keeps its own value.
    pub stall_timeout: Duration,
    /// Timeout of each call.
    pub call_timeout: Duration,
}

impl Config {
    /// Creates the default configuration: schema `relevo`, twenty concurrent handlers, a lock timeout of 100 ms, a
    /// stall timeout of five minutes, and a call timeout of five seconds.
    pub fn new(connect_options: PgConnectOptions) -> Self {
        Self {
            connect_options,
            schema: Schema::default(),
            handler_connections_max: 20,
            call_connections_max: 4,
            lock_timeout: Duration::from_millis(100),
            stall_timeout: Duration::from_mins(5),
            call_timeout: Duration::from_secs(5),
        }
    }
}
