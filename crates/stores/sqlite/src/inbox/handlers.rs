//! The connection that handlers use, one after the other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Error as DriverError, Transaction};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::classify::Error;
use crate::{config, link, migrate};

/// The transaction in which a handler works.
pub(super) type Handling = Transaction<'static, Sqlite>;

/// A single connection, because only one transaction can write at a time. Handlers of this process wait for it in
/// order.
///
/// Its commits must survive a power failure, because an acknowledgement follows them. SQLite does not change that
/// setting inside a transaction, and handlers get the connection only inside one.
pub(super) struct Handlers {
    file: PathBuf,
    options: SqliteConnectOptions,
    wait: Duration,
    pool: Mutex<Option<Open>>,
}

struct Open {
    pool: SqlitePool,
    /// Device and inode. Another file of the same name is another inbox.
    identity: (u64, u64),
}

impl Handlers {
    /// Creates a pool that connects on first use.
    pub(super) fn new(file: &Path, wait: Duration) -> Self {
        let options = config::plain_options(file)
            .busy_timeout(wait)
            .synchronous(SqliteSynchronous::Full)
            .thread_name(|number| format!("relevo-handler-{number}"));
        Self { file: file.to_owned(), options, wait, pool: Mutex::new(None) }
    }

    /// Begins a transaction with the write lock. Returns `None` if another connection held the lock for too long.
    pub(super) async fn begin(&self) -> Result<Option<Handling>, Error> {
        match self.try_begin().await {
            // An earlier transaction left the connection in an unknown state, for example because the disk was full.
            Err(Error::Driver(DriverError::InvalidSavePointStatement | DriverError::WorkerCrashed)) => {
                self.forget().await;
                self.try_begin().await
            }
            other => other,
        }
    }

    async fn try_begin(&self) -> Result<Option<Handling>, Error> {
        let pool = self.pool().await?;
        // One wait for this process's turn, and one for other processes.
        let Ok(begun) = timeout(self.wait * 2, pool.begin_with("BEGIN IMMEDIATE")).await else { return Ok(None) };
        match begun.map_err(Error::from) {
            Ok(transaction) => Ok(Some(transaction)),
            Err(Error::Busy) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn pool(&self) -> Result<SqlitePool, Error> {
        let mut open = self.pool.lock().await;
        let identity = link::identity(&self.file)?;
        match &*open {
            Some(found) if found.identity == identity => return Ok(found.pool.clone()),
            Some(_) => {
                *open = None;
                return Err(Error::Replaced);
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
        *open = Some(Open { pool: pool.clone(), identity });
        Ok(pool)
    }

    /// Closes the connection and any open transaction on it. The next handler gets a new connection.
    pub(super) async fn forget(&self) {
        *self.pool.lock().await = None;
    }
}
