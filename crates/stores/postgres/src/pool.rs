//! The connection pool of an inbox, for calls and for handlers' transactions.
//!
//! The pool of sqlx pings a connection when it is acquired and again when it is released: three round trips for one call.
//! Here BEGIN is sent with the first statement, and COMMIT with the check before it. A healthy connection returns to the
//! pool without a reset.

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
use tokio::time::{Instant, timeout};

use crate::classify::Error;
use crate::config::Schema;
use crate::connection;
use crate::queries::{COMMIT, COMMIT_STATEMENTS};

/// A connection that was idle for longer is pinged before use, because the network may have dropped it silently.
const PING_AFTER: Duration = Duration::from_secs(10);

/// A ping may take this part of the call timeout. The rest is for a new connection and the call.
const PING_SHARE: u32 = 4;

/// Timeout for rolling back a dropped transaction. Its connection counts as used until then.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(30);

/// A limited number of connections that open on first use.
pub(crate) struct ConnectionPool {
    options: PgConnectOptions,
    /// The schema of the outbox and the inbox.
    schema: Schema,
    /// Timeout of each call, with the wait for a connection.
    timeout: Duration,
    /// One permit per connection.
    permits: Arc<Semaphore>,
    /// The last one was used most recently.
    idle: Mutex<Vec<IdleConnection>>,
}

struct IdleConnection {
    connection: PgConnection,
    since: Instant,
}

impl ConnectionPool {
    pub(crate) fn new(options: PgConnectOptions, schema: Schema, connections_max: u32, timeout: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(connections_max.max(1) as usize));
        Self { options, schema, timeout, permits, idle: Mutex::default() }
    }

    /// Runs one statement as its own transaction in one round trip. Any pooler in between supports this.
    pub(crate) async fn query(&self, sql: &str) -> Result<Vec<PgRow>, Error> {
        let sql = connection::read_committed(sql);
        self.with_timeout(async {
            let _permit = self.permits.acquire().await.expect("it is never closed");
            loop {
                // The connection leaves the pool while in use, so that a cancelled call closes it.
                let (mut connection, was_idle) = self.acquire().await?;
                match run(&mut connection, sql.clone()).await {
                    // The server ended the session while it was idle, so the statement did not run.
                    Err(error) if was_idle && error.is_session_end() => {}
                    Err(error) if !error.leaves_connection_usable() => {
                        // The cause probably broke the other idle connections too.
                        self.close_idle();
                        return Err(error);
                    }
                    result => {
                        self.release(connection);
                        return result;
                    }
                }
            }
        })
        .await
    }

    /// Begins a transaction and runs its first statement. If the server returns an error, no transaction stays open.
    pub(crate) async fn begin(self: &Arc<Self>, sql: &str) -> Result<(Transaction, Vec<PgRow>), Error> {
        let sql = format!("BEGIN; {sql}");
        self.with_timeout(async {
            let permit = Arc::clone(&self.permits).acquire_owned().await.expect("it is never closed");
            loop {
                let (mut connection, was_idle) = self.acquire().await?;
                match run(&mut connection, sql.clone()).await {
                    Ok(rows) => {
                        let open = PooledConnection { connection, permit };
                        return Ok((Transaction { active: Some(open), pool: Arc::clone(self) }, rows));
                    }
                    // The connection broke while idle. Nothing was committed, so another connection can begin again.
                    Err(error) if was_idle && !error.leaves_connection_usable() => {}
                    Err(error) => {
                        if error.leaves_connection_usable() {
                            run(&mut connection, "ROLLBACK".to_owned()).await?;
                            self.release(connection);
                        }
                        return Err(error);
                    }
                }
            }
        })
        .await
    }

    /// Takes a live idle connection, or opens a new one. Also returns whether it was idle.
    async fn acquire(&self) -> Result<(PgConnection, bool), Error> {
        let idle = self.idle.lock().pop();
        if let Some(IdleConnection { mut connection, since }) = idle {
            if since.elapsed() < PING_AFTER {
                return Ok((connection, true));
            }
            if let Ok(Ok(())) = timeout(self.timeout / PING_SHARE, connection.ping()).await {
                return Ok((connection, true));
            }
            // The other connections were idle for even longer.
            self.close_idle();
        }
        Ok((open(&self.options, self.timeout).await?, false))
    }

    fn release(&self, connection: PgConnection) {
        self.idle.lock().push(IdleConnection { connection, since: Instant::now() });
    }

    fn close_idle(&self) {
        self.idle.lock().clear();
    }

    /// After a timeout the idle connections are closed too: the server or the network probably fails for all of them.
    async fn with_timeout<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        timeout(self.timeout, work).await.unwrap_or_else(|_| {
            self.close_idle();
            Err(Error::Timeout(self.timeout))
        })
    }
}

/// Opens a connection on which sqlx always counts a transaction as open. A handler's own `begin` therefore creates a
/// savepoint. BEGIN and COMMIT are sent as text.
async fn open(options: &PgConnectOptions, timeout: Duration) -> Result<PgConnection, Error> {
    let mut connection = connection::connect(options, timeout).await?;
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
/// A handler uses it as an sqlx connection: `sqlx::query(…).execute(&mut **transaction)`. It emits with
/// [`StoreTransaction`](relevo_core::StoreTransaction). A `begin` on it creates a savepoint. Dropping it rolls it back.
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
    pub(crate) fn schema(&self) -> &Schema {
        &self.pool.schema
    }

    /// Runs one more statement.
    pub(crate) async fn run(&mut self, sql: String) -> Result<Vec<PgRow>, Error> {
        let pool = Arc::clone(&self.pool);
        pool.with_timeout(run(self, sql)).await
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        self.end(COMMIT).await
    }

    pub(crate) async fn roll_back(self) -> Result<(), Error> {
        self.end("ROLLBACK").await
    }

    /// A connection on which this fails is not reused.
    async fn end(mut self, sql: &str) -> Result<(), Error> {
        self.run(sql.to_owned()).await?;
        if let Some(PooledConnection { connection, permit }) = self.active.take() {
            self.pool.release(connection);
            drop(permit);
        }
        Ok(())
    }

    /// Commits and begins the next transaction in one round trip. The outer error is the commit's.
    pub(crate) async fn commit_and_begin(self, sql: &str) -> Result<Result<(Self, Vec<PgRow>), Error>, Error> {
        let pool = Arc::clone(&self.pool);
        pool.with_timeout(self.try_commit_and_begin(sql)).await
    }

    async fn try_commit_and_begin(mut self, sql: &str) -> Result<Result<(Self, Vec<PgRow>), Error>, Error> {
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
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.active.as_ref().expect("the connection is taken out only at the end").connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.active.as_mut().expect("the connection is taken out only at the end").connection
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

#[cfg(test)]
mod tests {
    use relevo_testkit::PgVersion;
    use relevo_testkit::postgres::{Database, Server};
    use relevo_testkit::proxy::CutProxy;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(4);

    /// A pool with three idle connections through a proxy. It opens new connections without the proxy.
    async fn pool(database: &Database) -> (Arc<ConnectionPool>, CutProxy) {
        let options = database.options();
        let upstream = format!("127.0.0.1:{}", options.get_port()).parse().expect("a loopback address");
        let proxy = CutProxy::start(upstream).await;
        let pool = ConnectionPool::new(options.clone(), Schema::default(), 4, TIMEOUT);
        let options = options.host("127.0.0.1").port(proxy.addr().port());
        for _ in 0..3 {
            pool.release(open(&options, TIMEOUT).await.expect("a server"));
        }
        (Arc::new(pool), proxy)
    }

    fn age_idle_connections(pool: &ConnectionPool) {
        pool.idle.lock().iter_mut().for_each(|idle| idle.since -= PING_AFTER);
    }

    #[tokio::test]
    async fn a_connection_that_was_lost_while_idle_fails_no_call() {
        let database = Server::shared(PgVersion::V15).database().await;
        let (pool, proxy) = pool(&database).await;
        age_idle_connections(&pool);
        proxy.freeze();
        pool.query("SELECT 1").await.expect("a new connection");
        assert_eq!(pool.idle.lock().len(), 1, "the others are lost too");
    }

    #[tokio::test]
    async fn a_connection_that_was_lost_while_idle_fails_no_transaction() {
        let database = Server::shared(PgVersion::V15).database().await;
        let (pool, proxy) = pool(&database).await;
        age_idle_connections(&pool);
        proxy.freeze();
        let (transaction, _) = pool.begin("SELECT 1").await.expect("a new connection");
        transaction.commit().await.expect("a live connection");
        assert_eq!(pool.idle.lock().len(), 1);
    }

    #[tokio::test]
    async fn a_connection_that_was_idle_for_long_is_kept_if_it_answers() {
        let database = Server::shared(PgVersion::V15).database().await;
        let (pool, _proxy) = pool(&database).await;
        age_idle_connections(&pool);
        let pid = async || {
            let rows = pool.query("SELECT pg_backend_pid()").await.expect("a server");
            sqlx::Row::try_get::<i32, _>(&rows[0], 0).expect("a number")
        };
        let first = pid().await;
        age_idle_connections(&pool);
        assert_eq!(pid().await, first);
    }

    #[tokio::test]
    async fn a_timeout_closes_the_idle_connections() {
        let database = Server::shared(PgVersion::V15).database().await;
        let (pool, proxy) = pool(&database).await;
        proxy.freeze();
        let error = pool.query("SELECT 1").await.expect_err("the network is frozen");
        assert!(matches!(error, Error::Timeout(TIMEOUT)), "{error:?}");
        assert_eq!(pool.idle.lock().len(), 0);
        pool.query("SELECT 1").await.expect("a new connection");
    }

    #[tokio::test]
    async fn a_connection_that_the_server_ended_is_not_reused() {
        let database = Server::shared(PgVersion::V18).database().await;
        let (pool, _proxy) = pool(&database).await;
        let error = pool.query("SET LOCAL transaction_timeout = 50; SELECT pg_sleep(3)").await.expect_err("a timeout");
        assert!(matches!(&error, Error::Server(server) if server.code() == "25P04"), "{error:?}");
        assert_eq!(pool.idle.lock().len(), 0);
        pool.query("SELECT 1").await.expect("a new connection");
    }
}
