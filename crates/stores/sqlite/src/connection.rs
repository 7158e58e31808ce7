//! One connection that is reopened after any failure.

use std::ops::{Deref, DerefMut};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _};
use tokio::sync::{Mutex, MutexGuard};

use crate::classify::Error;
use crate::{config, migrate};

/// The number of rows that the driver reads ahead. A row that does not fit costs a thread switch.
const PREFETCHED_ROWS: usize = 256;

/// Which failures a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// A process crash. A power failure may undo the commit and everything after it.
    Normal,
    /// A power failure too.
    Full,
}

/// A connection that serves one call at a time.
pub(crate) struct Connection {
    file: PathBuf,
    busy_timeout: Duration,
    options: SqliteConnectOptions,
    slot: Mutex<Option<OpenConnection>>,
}

struct OpenConnection {
    connection: SqliteConnection,
    /// Device and inode. Another file of the same name is another outbox.
    identity: (u64, u64),
    durability: Durability,
}

impl Connection {
    pub(crate) fn new(file: &Path, busy_timeout: Duration) -> Self {
        // A file that is not in WAL mode is rejected by the check, not converted, because its users may need that mode.
        let options = config::connect_options_without_wal(file)
            .busy_timeout(busy_timeout)
            .synchronous(SqliteSynchronous::Normal)
            .row_buffer_size(PREFETCHED_ROWS)
            .thread_name(|number| format!("relevo-sqlite-{number}"));
        Self { file: file.to_owned(), busy_timeout, options, slot: Mutex::new(None) }
    }

    /// Runs `work` without a transaction: each statement sees its own state of the file. An error closes the connection.
    pub(crate) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut guard = self.acquire().await?;
        let result = work(&mut guard).await?;
        guard.release();
        Ok(result)
    }

    /// Runs `work` in one transaction that holds the write lock. An error closes the connection, which rolls back.
    pub(crate) async fn write<T>(
        &self,
        durability: Durability,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut guard = self.begin(durability).await?;
        let result = work(&mut guard).await?;
        guard.commit().await?;
        Ok(result)
    }

    /// Acquires the connection for one call. Dropping it without releasing it closes it and rolls back an open
    /// transaction. Errors and cancelled calls do this.
    pub(crate) async fn acquire(&self) -> Result<ConnectionGuard<'_>, Error> {
        let mut slot = self.slot.lock().await;
        let identity = file_identity(&self.file)?;
        let open = match slot.take() {
            Some(open) if open.identity == identity => open,
            Some(_) => return Err(Error::FileReplaced),
            None => self.connect(identity).await?,
        };
        Ok(ConnectionGuard { slot, open })
    }

    /// Acquires the connection and begins a transaction that holds the write lock.
    pub(crate) async fn begin(&self, durability: Durability) -> Result<ConnectionGuard<'_>, Error> {
        let mut guard = self.with_durability(durability).await?;
        match sqlx::query("BEGIN IMMEDIATE").execute(&mut *guard).await.map_err(Error::from) {
            Ok(_) => Ok(guard),
            Err(error) => {
                // No transaction began, so the connection is reusable.
                if matches!(error, Error::Busy) {
                    guard.release();
                }
                Err(error)
            }
        }
    }

    /// Like `begin`, but does not wait for another writer. Returns `None` if there is one.
    pub(crate) async fn try_begin(&self, durability: Durability) -> Result<Option<ConnectionGuard<'_>>, Error> {
        let mut guard = self.with_durability(durability).await?;
        sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *guard).await?;
        let begun = sqlx::query("BEGIN IMMEDIATE").execute(&mut *guard).await.map_err(Error::from);
        let restore = format!("PRAGMA busy_timeout = {}", self.busy_timeout.as_millis());
        sqlx::query(AssertSqlSafe(restore)).execute(&mut *guard).await?;
        match begun {
            Ok(_) => Ok(Some(guard)),
            Err(Error::Busy) => {
                guard.release();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn with_durability(&self, durability: Durability) -> Result<ConnectionGuard<'_>, Error> {
        let mut guard = self.acquire().await?;
        if guard.open.durability != durability {
            let pragma = match durability {
                Durability::Normal => "PRAGMA main.synchronous = NORMAL",
                Durability::Full => "PRAGMA main.synchronous = FULL",
            };
            sqlx::query(pragma).execute(&mut *guard).await?;
            guard.open.durability = durability;
        }
        Ok(guard)
    }

    async fn connect(&self, identity: (u64, u64)) -> Result<OpenConnection, Error> {
        let mut connection = self.options.connect().await?;
        migrate::check(&mut connection).await?;
        Ok(OpenConnection { connection, identity, durability: Durability::Normal })
    }
}

/// A connection in use.
pub(crate) struct ConnectionGuard<'a> {
    slot: MutexGuard<'a, Option<OpenConnection>>,
    open: OpenConnection,
}

impl ConnectionGuard<'_> {
    /// Ends a call that changed nothing.
    pub(crate) fn release(mut self) {
        *self.slot = Some(self.open);
    }

    /// Commits and ends the call.
    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        sqlx::query("COMMIT").execute(&mut *self).await?;
        self.release();
        Ok(())
    }
}

impl Deref for ConnectionGuard<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.open.connection
    }
}

impl DerefMut for ConnectionGuard<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.open.connection
    }
}

pub(crate) fn file_identity(file: &Path) -> Result<(u64, u64), Error> {
    match std::fs::metadata(file) {
        Ok(found) if found.is_file() => Ok((found.dev(), found.ino())),
        Ok(_) => Err(Error::NotADatabase),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::NotFound),
        Err(_) => Err(Error::CannotOpen),
    }
}
