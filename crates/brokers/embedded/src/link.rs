//! The connections to the file.

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Sqlite, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep};

use crate::classify::Error;
use crate::config::Config;

/// Between two tries to use the write-ahead log while others use a new file.
const JOURNAL_PAUSE: Duration = Duration::from_millis(20);

/// The connections of one broker handle.
///
/// SQLite has one writer at a time. Within the process, writers queue here and not at the file's lock, where they would
/// sleep and try again.
#[derive(Debug)]
pub(crate) struct Link {
    turn: Arc<Mutex<()>>,
    durable: SqlitePool,
    relaxed: SqlitePool,
    readers: SqlitePool,
    watch: SqlitePool,
}

/// A write transaction. One that is dropped before its end is rolled back by closing its connection: after a failure
/// nobody can tell whether SQLite has already rolled back by itself.
pub(crate) struct Write {
    connection: PoolConnection<Sqlite>,
    ended: bool,
    // After the connection, so that the next writer finds the file unlocked.
    _turn: OwnedMutexGuard<()>,
}

impl Link {
    /// Opens the file, and makes it if need be.
    pub(crate) async fn open(config: &Config) -> Result<Self, Error> {
        relevo_sqlite_file::check_local(&config.path, config.allow_network_file_system)?;
        let options = SqliteConnectOptions::new()
            .filename(&config.path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .foreign_keys(true)
            .busy_timeout(config.lock_wait)
            .row_buffer_size(1_024)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let pool = |connections: u32| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                // Those who wait here wait for their turn at the file, which may itself take as long as a lock.
                .acquire_timeout(config.lock_wait * 2)
                .test_before_acquire(false)
                .max_lifetime(None::<Duration>)
                .idle_timeout(None::<Duration>)
        };
        let deadline = Instant::now() + config.lock_wait;
        let durable = loop {
            match pool(1).connect_with(options.clone()).await.map_err(Error::from) {
                // SQLite makes a file a write-ahead log at once or not at all: it does not wait for others that do.
                Err(Error::Locked(_)) if Instant::now() < deadline => sleep(JOURNAL_PAUSE).await,
                tried => break tried?,
            }
        };
        // Losing what these wrote in a power failure means a repeat, never a loss; a kill loses nothing.
        let relaxed = pool(1).connect_lazy_with(options.clone().synchronous(SqliteSynchronous::Normal));
        let options = options.pragma("query_only", "on");
        let readers = pool(2).connect_lazy_with(options.clone());
        let watch = pool(1).connect_lazy_with(options);
        Ok(Self { turn: Arc::default(), durable, relaxed, readers, watch })
    }

    /// A transaction that is on the disk when its commit returns.
    pub(crate) async fn write(&self) -> Result<Write, Error> {
        self.begin(&self.durable).await
    }

    /// A transaction that a kill does not undo, but a power failure may.
    pub(crate) async fn write_relaxed(&self) -> Result<Write, Error> {
        self.begin(&self.relaxed).await
    }

    async fn begin(&self, pool: &SqlitePool) -> Result<Write, Error> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        // Before it begins: whoever gives up waiting for the lock must not leave it to the next one.
        let mut write = Write { connection: pool.acquire().await?, ended: false, _turn: turn };
        // At once the writer, or a later statement could find that somebody else wrote in between.
        sqlx::query("BEGIN IMMEDIATE").execute(write.sql()).await?;
        Ok(write)
    }

    /// Connections for reading; one that is lent gives a consistent view only within one statement.
    pub(crate) const fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// One connection that only looks whether others wrote.
    pub(crate) fn watch(&self) -> SqlitePool {
        self.watch.clone()
    }

    /// Closes every connection; the last one to close tidies the write-ahead log away.
    pub(crate) async fn close(&self) {
        self.watch.close().await;
        self.readers.close().await;
        self.relaxed.close().await;
        self.durable.close().await;
    }
}

impl Write {
    /// The connection, for statements of this transaction.
    pub(crate) fn sql(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        self.end("COMMIT").await
    }

    /// Ends it where nothing went wrong and nothing is to be written.
    pub(crate) async fn abandon(self) -> Result<(), Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, how: &'static str) -> Result<(), Error> {
        sqlx::query(how).execute(self.sql()).await?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}
