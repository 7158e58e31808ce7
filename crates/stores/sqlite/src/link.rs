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
const ROWS_AHEAD: usize = 256;

/// Which failures a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// A process crash. A power failure may undo the commit and everything after it.
    Process,
    /// A power failure too.
    Power,
}

/// A connection that serves one call at a time.
pub(crate) struct Link {
    file: PathBuf,
    busy_timeout: Duration,
    options: SqliteConnectOptions,
    slot: Mutex<Option<Open>>,
}

struct Open {
    connection: SqliteConnection,
    /// Device and inode. Another file of the same name is another outbox.
    identity: (u64, u64),
    durability: Durability,
}

impl Link {
    pub(crate) fn new(file: &Path, busy_timeout: Duration) -> Self {
        // A file that is not in WAL mode is rejected by the check, not converted, because its users may need that mode.
        let options = config::plain_options(file)
            .busy_timeout(busy_timeout)
            .synchronous(SqliteSynchronous::Normal)
            .row_buffer_size(ROWS_AHEAD)
            .thread_name(|number| format!("relevo-sqlite-{number}"));
        Self { file: file.to_owned(), busy_timeout, options, slot: Mutex::new(None) }
    }

    /// Acquires the connection for one call. Dropping it without releasing it closes it and rolls back an open
    /// transaction. Errors and cancelled calls do this.
    pub(crate) async fn take(&self) -> Result<Session<'_>, Error> {
        let mut slot = self.slot.lock().await;
        let identity = identity(&self.file)?;
        let open = match slot.take() {
            Some(open) if open.identity == identity => open,
            Some(_) => return Err(Error::Replaced),
            None => self.connect(identity).await?,
        };
        Ok(Session { slot, open })
    }

    /// Acquires the connection and begins a transaction that holds the write lock.
    pub(crate) async fn begin(&self, durability: Durability) -> Result<Session<'_>, Error> {
        let mut session = self.level(durability).await?;
        match sqlx::query("BEGIN IMMEDIATE").execute(&mut *session).await.map_err(Error::from) {
            Ok(_) => Ok(session),
            Err(error) => {
                // No transaction began, so the connection is reusable.
                if matches!(error, Error::Busy) {
                    session.give_back();
                }
                Err(error)
            }
        }
    }

    /// Like `begin`, but does not wait for another writer. Returns `None` if there is one.
    pub(crate) async fn begin_at_once(&self, durability: Durability) -> Result<Option<Session<'_>>, Error> {
        let mut session = self.level(durability).await?;
        sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *session).await?;
        let begun = sqlx::query("BEGIN IMMEDIATE").execute(&mut *session).await.map_err(Error::from);
        let restore = format!("PRAGMA busy_timeout = {}", self.busy_timeout.as_millis());
        sqlx::query(AssertSqlSafe(restore)).execute(&mut *session).await?;
        match begun {
            Ok(_) => Ok(Some(session)),
            Err(Error::Busy) => {
                session.give_back();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn level(&self, durability: Durability) -> Result<Session<'_>, Error> {
        let mut session = self.take().await?;
        if session.open.durability != durability {
            let level = match durability {
                Durability::Process => "PRAGMA main.synchronous = NORMAL",
                Durability::Power => "PRAGMA main.synchronous = FULL",
            };
            sqlx::query(level).execute(&mut *session).await?;
            session.open.durability = durability;
        }
        Ok(session)
    }

    async fn connect(&self, identity: (u64, u64)) -> Result<Open, Error> {
        let mut connection = self.options.connect().await?;
        migrate::check(&mut connection).await?;
        Ok(Open { connection, identity, durability: Durability::Process })
    }
}

/// A connection in use.
pub(crate) struct Session<'a> {
    slot: MutexGuard<'a, Option<Open>>,
    open: Open,
}

impl Session<'_> {
    /// Ends a call that changed nothing.
    pub(crate) fn give_back(mut self) {
        *self.slot = Some(self.open);
    }

    /// Commits and ends the call.
    pub(crate) async fn commit(mut self) -> Result<(), Error> {
        sqlx::query("COMMIT").execute(&mut *self).await?;
        self.give_back();
        Ok(())
    }
}

impl Deref for Session<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.open.connection
    }
}

impl DerefMut for Session<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.open.connection
    }
}

pub(crate) fn identity(file: &Path) -> Result<(u64, u64), Error> {
    match std::fs::metadata(file) {
        Ok(found) if found.is_file() => Ok((found.dev(), found.ino())),
        Ok(_) => Err(Error::NoDatabase),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::Missing),
        Err(_) => Err(Error::Unopenable),
    }
}
