//! Handlers' transactions and their connection pool.
//!
//! This crate has its own pool because every round trip counts here. BEGIN is sent with the first statement, and COMMIT
//! with the check before it. A healthy connection returns to the pool without a reset.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Either};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::classify::Error;
use crate::connection;

/// Timeout for rolling back a dropped transaction. Its connection counts as used until then.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(30);

/// In an aborted transaction the server answers COMMIT with a rollback, and the client treats that as success. The
/// SELECT fails in such a transaction, and the server then ignores the COMMIT.
const COMMIT: &str = "SELECT 1; COMMIT";
const COMMIT_STATEMENTS: u32 = 2;

/// The connection pool of handlers.
pub(super) struct ConnectionPool {
    options: PgConnectOptions,
    deadline: Duration,
    /// One permit per connection.
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<PgConnection>>,
}

impl ConnectionPool {
    /// Creates a pool that connects on first use.
    pub(super) fn new(options: PgConnectOptions, most: u32, deadline: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(most.max(1) as usize));
        Self { options, deadline, permits, idle: Mutex::default() }
    }

    /// Begins a transaction and runs its first statement. If the server returns an error, no transaction stays open.
    pub(super) async fn begin(self: &Arc<Self>, sql: &str) -> Result<(Transaction, Vec<PgRow>), Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("it is never closed");
        let sql = format!("BEGIN; {sql}");
        loop {
            let idle = self.idle.lock().pop();
            let was_idle = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => connect(&self.options, self.deadline).await?,
            };
            match run(&mut connection, sql.clone()).await {
                Ok(rows) => {
                    let open = PooledConnection { connection, permit };
                    return Ok((Transaction { active: Some(open), pool: Arc::clone(self) }, rows));
                }
                // The connection broke while idle, so nothing ran on it. Try another one.
                Err(error) if was_idle && !error.leaves_connection_usable() => {}
                Err(error) => {
                    if error.leaves_connection_usable() {
                        run(&mut connection, "ROLLBACK".to_owned()).await?;
                        self.idle.lock().push(connection);
                    }
                    return Err(error);
                }
            }
        }
    }
}

/// Opens a connection on which sqlx always counts a transaction as open. A handler's own `begin` therefore creates a
/// savepoint. BEGIN and COMMIT are sent as text.
async fn connect(options: &PgConnectOptions, deadline: Duration) -> Result<PgConnection, Error> {
    let mut connection = connection::connect(options, deadline).await?;
    std::mem::forget(connection.begin().await?);
    run(&mut connection, "ROLLBACK".to_owned()).await?;
    Ok(connection)
}

/// Uses the simple protocol, which has no prepared statements.
async fn run(connection: &mut PgConnection, sql: String) -> Result<Vec<PgRow>, Error> {
    Ok(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?)
}

/// The transaction in which a handler works.
///
/// A handler uses it as an sqlx connection: `sqlx::query(…).execute(&mut **transaction)`. A `begin` on it creates a
/// savepoint. Dropping it rolls it back.
pub struct Transaction {
    /// `None` after the transaction has ended.
    active: Option<PooledConnection>,
    pool: Arc<ConnectionPool>,
}

struct PooledConnection {
    connection: PgConnection,
    permit: OwnedSemaphorePermit,
}

impl Transaction {
    /// Runs one more statement.
    pub(super) async fn run(&mut self, sql: String) -> Result<Vec<PgRow>, Error> {
        run(self, sql).await
    }

    pub(super) async fn commit(self) -> Result<(), Error> {
        self.end(COMMIT).await
    }

    /// Commits and begins the next transaction in one round trip. The outer error is the commit's.
    pub(super) async fn commit_and_begin(mut self, sql: &str) -> Result<Result<(Self, Vec<PgRow>), Error>, Error> {
        let statement = format!("{COMMIT}; BEGIN; {sql}");
        let (mut ended, mut rows) = (0, Vec::new());
        let mut answers = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_many(&mut *self);
        let error = loop {
            match answers.try_next().await {
                Ok(Some(Either::Left(_))) => ended += 1,
                Ok(Some(Either::Right(row))) if ended >= COMMIT_STATEMENTS => rows.push(row),
                Ok(Some(Either::Right(_))) => {}
                Ok(None) => break None,
                Err(error) => break Some(Error::from(error)),
            }
        };
        drop(answers);
        match error {
            None => Ok(Ok((self, rows))),
            Some(error) if ended < COMMIT_STATEMENTS => Err(error),
            Some(error) => {
                if error.leaves_connection_usable() {
                    self.roll_back().await.ok();
                }
                Ok(Err(error))
            }
        }
    }

    pub(super) async fn roll_back(self) -> Result<(), Error> {
        self.end("ROLLBACK").await
    }

    /// A connection on which this fails is not reused.
    async fn end(mut self, sql: &str) -> Result<(), Error> {
        self.run(sql.to_owned()).await?;
        if let Some(PooledConnection { connection, permit }) = self.active.take() {
            self.pool.idle.lock().push(connection);
            drop(permit);
        }
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.active.as_ref().expect("it is taken out only at the end").connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.active.as_mut().expect("it is taken out only at the end").connection
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction")
    }
}

impl Drop for Transaction {
    /// The connection may be in the middle of a statement, so it is rolled back and closed.
    fn drop(&mut self) {
        let Some(PooledConnection { mut connection, permit }) = self.active.take() else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            // Even if the server cannot be reached, uncommitted changes are lost.
            _ = timeout(ROLLBACK_TIMEOUT, run(&mut connection, "ROLLBACK".to_owned())).await;
            drop((connection, permit));
        });
    }
}
