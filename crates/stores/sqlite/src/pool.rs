//! The connection that handlers use, one after the other.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::Error as DriverError;
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::classify::Error;
use crate::{config, connection, migrate};

/// The transaction in which a handler works.
///
/// A handler uses it as an sqlx connection: `sqlx::query(…).execute(&mut **transaction)`. It emits with
/// [`StoreTransaction`](relevo_core::StoreTransaction). A `begin` on it creates a savepoint. Dropping it rolls it back.
pub struct Transaction(sqlx::Transaction<'static, Sqlite>);

impl Transaction {
    pub(crate) async fn commit(self) -> Result<(), DriverError> {
        self.0.commit().await
    }

    pub(crate) async fn rollback(self) -> Result<(), DriverError> {
        self.0.rollback().await
    }
}

impl Deref for Transaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.0
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.0
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction")
    }
}

/// A single connection, because only one transaction can write at a time. Handlers of this process wait for it in
/// order.
///
/// Its commits must survive a power failure, because an acknowledgement follows them. SQLite does not change that
/// setting inside a transaction, and handlers get the connection only inside one.
pub(crate) struct HandlerConnection {
    file: PathBuf,
    options: SqliteConnectOptions,
    lock_timeout: Duration,
    pool: Mutex<Option<OpenPool>>,
}

struct OpenPool {
    pool: SqlitePool,
    /// Device and inode. Another file of the same name is another inbox.
    identity: (u64, u64),
}

impl HandlerConnection {
    /// Creates a pool that connects on first use.
    pub(crate) fn new(file: &Path, lock_timeout: Duration) -> Self {
        let options = config::connect_options_without_wal(file)
            .busy_timeout(lock_timeout)
            .synchronous(SqliteSynchronous::Full)
            .thread_name(|number| format!("relevo-handler-{number}"));
        Self { file: file.to_owned(), options, lock_timeout, pool: Mutex::new(None) }
    }

    /// Begins a transaction with the write lock. Returns `None` if another connection held the lock for too long.
    pub(crate) async fn begin(&self) -> Result<Option<Transaction>, Error> {
        match self.try_begin().await {
            // An earlier transaction left the connection in an unknown state, for example because the disk was full.
            Err(Error::Driver(DriverError::InvalidSavePointStatement | DriverError::WorkerCrashed)) => {
                self.close().await;
                self.try_begin().await
            }
            other => other,
        }
    }

    async fn try_begin(&self) -> Result<Option<Transaction>, Error> {
        let pool = self.pool().await?;
        // One wait for this process's turn, and one for other processes.
        let Ok(begun) = timeout(self.lock_timeout * 2, pool.begin_with("BEGIN IMMEDIATE")).await else {
            return Ok(None);
        };
        match begun.map_err(Error::from) {
            Ok(transaction) => Ok(Some(Transaction(transaction))),
            Err(Error::Busy) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn pool(&self) -> Result<SqlitePool, Error> {
        let mut open = self.pool.lock().await;
        let identity = connection::file_identity(&self.file)?;
        match &*open {
            Some(found) if found.identity == identity => return Ok(found.pool.clone()),
            Some(_) => {
                *open = None;
                return Err(Error::FileReplaced);
            }
            None => {}
        }
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(self.options.clone());
        migrate::check(&mut *pool.acquire().await?).await?;
        *open = Some(OpenPool { pool: pool.clone(), identity });
        Ok(pool)
    }

    /// Closes the connection and any open transaction on it. The next handler gets a new connection.
    pub(crate) async fn close(&self) {
        *self.pool.lock().await = None;
    }
}
