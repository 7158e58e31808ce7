//! The connections of an inbox: some for handlers' transactions, some for calls.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::config::Config;
use super::handling::{ConnectionPool, Transaction};
use crate::classify::Error;
use crate::connection::{self, Connection};

/// Prefix of every call. Later statements of a function must see concurrent commits, whatever the database's default
/// isolation level is.
const READ_COMMITTED: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;";

/// The connections of one process to the inboxes of one schema.
pub(super) struct Links {
    handling: Arc<ConnectionPool>,
    calling: Calling,
    /// A separate connection, so that heartbeats never wait for other calls.
    beating: Connection,
    deadline: Duration,
}

impl Links {
    /// Creates connections that open on first use.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            handling: Arc::new(ConnectionPool::new(
                config.connect_options.clone(),
                config.handler_connections_max,
                config.call_timeout,
            )),
            calling: Calling::new(config.connect_options.clone(), config.call_connections_max, config.call_timeout),
            beating: beating(config.connect_options.clone(), config.call_timeout),
            deadline: config.call_timeout,
        }
    }

    /// Begins a handler's transaction and runs its first statement.
    pub(super) async fn begin(&self, sql: &str) -> Result<(Transaction, Vec<PgRow>), Error> {
        self.within(self.handling.begin(sql)).await
    }

    /// Runs one statement in a handler's transaction, in the simple protocol.
    pub(super) async fn run(&self, tx: &mut Transaction, sql: String) -> Result<Vec<PgRow>, Error> {
        self.within(tx.run(sql)).await
    }

    pub(super) async fn commit(&self, tx: Transaction) -> Result<(), Error> {
        self.within(tx.commit()).await
    }

    /// Commits and begins the next transaction. The outer error is the commit's.
    pub(super) async fn commit_and_begin(
        &self,
        tx: Transaction,
        sql: &str,
    ) -> Result<Result<(Transaction, Vec<PgRow>), Error>, Error> {
        self.within(tx.commit_and_begin(sql)).await
    }

    pub(super) async fn roll_back(&self, tx: Transaction) -> Result<(), Error> {
        self.within(tx.roll_back()).await
    }

    /// Runs one statement as its own transaction in one round trip. Any pooler in between supports this.
    pub(super) async fn call(&self, sql: String) -> Result<Vec<PgRow>, Error> {
        self.within(self.calling.call(&format!("{READ_COMMITTED} {sql}"))).await
    }

    /// Runs a heartbeat statement on its own connection.
    pub(super) async fn beat(&self, sql: &str) -> Result<Vec<PgRow>, Error> {
        self.beating.query(format!("{READ_COMMITTED} {sql}")).await
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        timeout(self.deadline, work).await.map_err(|_| Error::Timeout(self.deadline))?
    }
}

/// Prefixes a statement that needs READ COMMITTED, for connections that other modules open.
pub(super) fn read_committed(sql: &str) -> String {
    format!("{READ_COMMITTED} {sql}")
}

fn beating(options: PgConnectOptions, deadline: Duration) -> Connection {
    Connection::new(options, deadline)
}

/// The connection pool for calls. The pool of sqlx pings a connection when it is acquired and again when it is
/// released: three round trips for one call.
struct Calling {
    options: PgConnectOptions,
    deadline: Duration,
    /// One permit per connection.
    permits: Semaphore,
    idle: Mutex<Vec<PgConnection>>,
}

impl Calling {
    /// Creates a pool that connects on first use.
    fn new(options: PgConnectOptions, most: u32, deadline: Duration) -> Self {
        Self { options, deadline, permits: Semaphore::new(most.max(1) as usize), idle: Mutex::default() }
    }

    /// Runs one statement. The connection leaves the pool while in use, so that a cancelled call closes it.
    async fn call(&self, sql: &str) -> Result<Vec<PgRow>, Error> {
        let _permit = self.permits.acquire().await.expect("it is never closed");
        loop {
            let idle = self.idle.lock().pop();
            let was_idle = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => connection::connect(&self.options, self.deadline).await?,
            };
            let result = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await;
            match result.map_err(Error::from) {
                // The server ended the session while it was idle, so the statement did not run.
                Err(error) if was_idle && error.is_session_end() => {}
                Err(error) if !error.leaves_connection_usable() => {
                    // The cause probably broke the other idle connections too.
                    self.idle.lock().clear();
                    return Err(error);
                }
                result => {
                    self.idle.lock().push(connection);
                    return result;
                }
            }
        }
    }
}
