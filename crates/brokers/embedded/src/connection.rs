//! The connections to the SQLite file.

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Sqlite, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep};

use crate::classify::Error;
use crate::config::Config;

/// The pause between two attempts to enable the write-ahead log while other connections use a new file.
const JOURNAL_RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How long to retry opening an existing file before the error is returned.
const REOPEN_MAX: Duration = Duration::from_secs(1);

/// The connections of one broker handle.
///
/// SQLite allows one writer at a time. Writers of this process queue on a mutex: at the file lock they would sleep and
/// poll.
#[derive(Debug)]
pub(crate) struct Connections {
    write_lock: Arc<Mutex<()>>,
    durable: SqlitePool,
    relaxed: SqlitePool,
    readers: SqlitePool,
    watch: SqlitePool,
}

/// A write transaction. If it is dropped before its end, its connection is closed, which rolls it back. After a failure
/// it is unknown whether SQLite has already rolled back.
pub(crate) struct WriteTransaction {
    connection: PoolConnection<Sqlite>,
    ended: bool,
    // Declared after the connection, so that the file is unlocked before the next writer starts.
    _write_lock: OwnedMutexGuard<()>,
}

impl Connections {
    /// Opens the file, and creates it if it does not exist.
    pub(crate) async fn open(config: &Config) -> Result<Self, Error> {
        relevo_sqlite_file::check_local(&config.path, config.allow_network_file_system)?;
        let options = SqliteConnectOptions::new()
            .filename(&config.path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .foreign_keys(true)
            .busy_timeout(config.busy_timeout)
            .row_buffer_size(1_024)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let pool = |connections: u32| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                // One wait for other callers of this process, and one for the file lock.
                .acquire_timeout(config.busy_timeout * 2)
                .test_before_acquire(false)
                .max_lifetime(None::<Duration>)
                .idle_timeout(None::<Duration>)
        };
        let started = Instant::now();
        let deadline = started + config.busy_timeout;
        let durable = loop {
            match pool(1).connect_with(options.clone()).await.map_err(Error::from) {
                // SQLite does not wait for other connections when it enables the write-ahead log: it fails at once.
                Err(Error::Locked(_)) if Instant::now() < deadline => sleep(JOURNAL_RETRY_INTERVAL).await,
                // Seen once under load, for an existing file that other processes opened and closed. The cause is unknown.
                Err(Error::CannotOpen(_)) if config.path.exists() && started.elapsed() < REOPEN_MAX => {
                    sleep(JOURNAL_RETRY_INTERVAL).await;
                }
                opened => break opened?,
            }
        };
        // If a power failure loses these writes, messages are redelivered but not lost. A killed process loses nothing.
        let relaxed = pool(1).connect_lazy_with(options.clone().synchronous(SqliteSynchronous::Normal));
        let options = options.pragma("query_only", "on");
        let readers = pool(2).connect_lazy_with(options.clone());
        let watch = pool(1).connect_lazy_with(options);
        Ok(Self { write_lock: Arc::default(), durable, relaxed, readers, watch })
    }

    /// Begins a transaction that is on disk when its commit returns.
    pub(crate) async fn begin_durable(&self) -> Result<WriteTransaction, Error> {
        self.begin(&self.durable).await
    }

    /// Begins a transaction that survives a killed process but may not survive a power failure.
    pub(crate) async fn begin_relaxed(&self) -> Result<WriteTransaction, Error> {
        self.begin(&self.relaxed).await
    }

    async fn begin(&self, pool: &SqlitePool) -> Result<WriteTransaction, Error> {
        let write_lock = Arc::clone(&self.write_lock).lock_owned().await;
        // Wrap the connection before `BEGIN`: if the caller is cancelled at the lock, `drop` must close it.
        let mut write = WriteTransaction { connection: pool.acquire().await?, ended: false, _write_lock: write_lock };
        // Take the write lock at once. Otherwise a later statement could fail because another connection wrote in
        // between.
        sqlx::query("BEGIN IMMEDIATE").execute(write.connection()).await?;
        Ok(write)
    }

    /// Connections for reading. A view is consistent only within one statement.
    pub(crate) const fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// The connection that only checks whether other connections wrote.
    pub(crate) fn watch(&self) -> SqlitePool {
        self.watch.clone()
    }

    /// Closes every connection. The last one to close removes the write-ahead log.
    pub(crate) async fn close(&self) {
        self.watch.close().await;
        self.readers.close().await;
        self.relaxed.close().await;
        self.durable.close().await;
    }
}

impl WriteTransaction {
    /// The connection, for statements of this transaction.
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }

    pub(crate) async fn commit(self) -> Result<(), Error> {
        self.end("COMMIT").await
    }

    /// Rolls back a transaction that did not fail and has nothing to write.
    pub(crate) async fn rollback(self) -> Result<(), Error> {
        self.end("ROLLBACK").await
    }

    async fn end(mut self, sql: &'static str) -> Result<(), Error> {
        sqlx::query(sql).execute(self.connection()).await?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for WriteTransaction {
    fn drop(&mut self) {
        if !self.ended {
            self.connection.close_on_drop();
        }
    }
}
