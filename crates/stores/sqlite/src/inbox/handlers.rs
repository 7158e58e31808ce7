//! The connection that handlers work on, one after the other.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Error as DriverError, Transaction};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::classify::Error;
use crate::{config, link, migrate};

/// The transaction that a handler works in.
pub(super) type Handling = Transaction<'static, Sqlite>;

/// One connection, because one transaction at a time can write: those of this process wait for it in their order.
///
/// Its commits survive a power failure, for they are followed by an acknowledgement. SQLite refuses to change that inside of
/// a transaction, and handlers have the connection in no other way.
pub(super) struct Handlers {
    file: PathBuf,
    options: SqliteConnectOptions,
    wait: Duration,
    pool: Mutex<Option<Open>>,
}

struct Open {
    pool: SqlitePool,
    /// Device and inode: another file of the same name is another inbox.
    identity: (u64, u64),
}

impl Handlers {
    /// Connects when it is first used.
    pub(super) fn new(file: &Path, wait: Duration) -> Self {
        let options = config::plain_options(file)
            .busy_timeout(wait)
            .synchronous(SqliteSynchronous::Full)
            .thread_name(|number| format!("relevo-handler-{number}"));
        Self { file: file.to_owned(), options, wait, pool: Mutex::new(None) }
    }

    /// A transaction that has the write lock; `None` if somebody else had it for too long.
    pub(super) async fn begin(&self) -> Result<Option<Handling>, Error> {
        match self.try_begin().await {
            // A transaction before it left the connection in no known state, as a full disk does.
            Err(Error::Driver(DriverError::InvalidSavePointStatement | DriverError::WorkerCrashed)) => {
                self.forget().await;
                self.try_begin().await
            }
            other => other,
        }
    }

    async fn try_begin(&self) -> Result<Option<Handling>, Error> {
        let pool = self.pool().await?;
        // Once to come to its turn in this process, and once more for the other processes.
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

    /// Closes the connection, and with it a transaction that may still be open on it. The next handler has another one.
    pub(super) async fn forget(&self) {
        *self.pool.lock().await = None;
    }
}
