//! Maps SQLite errors to the failure classes of the relay, with advice for operators.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use relevo_core::store::StoreError;
use relevo_sqlite_file::FileError;

use crate::disk;

/// An error of a database call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Another connection held the write lock for longer than the busy timeout.
    #[error(
        "is locked by another connection; hint: look for a process that keeps a write transaction open, such as an \
         application, a `sqlite3` shell or a backup (`fuser FILE` names those that have the file open), and end it"
    )]
    Busy,
    /// The disk or the quota is full.
    #[error("cannot grow, the disk is full; hint: free space, nothing was lost")]
    Full,
    /// The file is corrupt.
    #[error(
        "is damaged ({0}); hint: stop its users, keep a copy, then restore a backup or use `sqlite3 FILE .recover`"
    )]
    Damaged(String),
    /// The file is not a SQLite database.
    #[error("is no SQLite database, or its header is damaged; hint: name another file, or restore a backup")]
    NoDatabase,
    /// The file, its directory or its file system is read-only.
    #[error(
        "cannot be written; hint: the file, its directory and the file system must be writable, for reading too: that needs \
         the files `-wal` and `-shm` beside it"
    )]
    ReadOnly,
    /// The file exists but cannot be opened.
    #[error("cannot be opened; hint: the user needs to read and write it and its directory")]
    Unopenable,
    /// The file does not exist.
    #[error("does not exist; hint: check the path, or run `relevo migrate`")]
    Missing,
    /// Another file replaced it while it was open.
    #[error("was replaced by another file while it was open")]
    Replaced,
    /// A read or a write of the disk failed.
    #[error("cannot be read or written; hint: look for disk errors in the system's log")]
    Disk(#[source] sqlx::Error),
    /// Committed data cannot be flushed to the disk.
    #[error("cannot be flushed; hint: look for disk errors in the system's log")]
    Flush(#[source] std::io::Error),
    /// The call did not finish before the deadline.
    #[error("gave no answer within {0:?}; hint: look for a hanging disk")]
    Deadline(Duration),
    /// The schema is missing, older or newer, or the file is not in WAL mode.
    #[error("{0}")]
    Schema(String),
    /// The store rejected the call, and an operator must decide.
    #[error("{0}")]
    Refused(String),
    /// A relay sent an invalid request, or a row is malformed.
    #[error("has something that must not be: {0}")]
    Answer(String),
    /// An unknown error of SQLite or its driver.
    #[error("refused a call")]
    Driver(#[source] sqlx::Error),
}

impl Error {
    pub(crate) fn answer(what: impl Into<String>) -> Self {
        Self::Answer(what.into())
    }

    /// Converts an error of a file that was open before. Without free file handles, or without disk space for the WAL
    /// files, it cannot be reopened. That condition may be temporary.
    pub(crate) fn of_open_file(self, file: &Path) -> StoreError {
        match self {
            Self::Unopenable => StoreError::Away(Box::new(Located { file: file.to_owned(), error: self })),
            other => other.of_file(file),
        }
    }

    /// Converts to the error of the port, which names the file.
    pub(crate) fn of_file(self, file: &Path) -> StoreError {
        let error = match self {
            // Shared memory and a flush report only "I/O error" when no disk space is left.
            Self::Disk(_) | Self::Flush(_) if disk::is_full(file) => Self::Full,
            other => other,
        };
        match error {
            Self::Busy | Self::Full | Self::Replaced | Self::Disk(_) | Self::Flush(_) | Self::Deadline(_) => {
                StoreError::Away(Box::new(Located { file: file.to_owned(), error }))
            }
            Self::Damaged(_) | Self::NoDatabase | Self::ReadOnly | Self::Unopenable => {
                StoreError::Refused { what: Located { file: file.to_owned(), error }.to_string() }
            }
            Self::Missing => StoreError::Schema { what: Located { file: file.to_owned(), error }.to_string() },
            Self::Schema(what) => StoreError::Schema { what: format!("file `{}` {what}", file.display()) },
            Self::Refused(what) => StoreError::Refused { what },
            Self::Answer(_) | Self::Driver(_) => StoreError::Broken(Box::new(Located { file: file.to_owned(), error })),
        }
    }
}

/// An error with the path of its file.
#[derive(Debug)]
struct Located {
    file: PathBuf,
    error: Error,
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file `{}` {}", self.file.display(), self.error)
    }
}

impl std::error::Error for Located {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let message = || error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
        match FileError::of(&error) {
            Some(FileError::Locked) => Self::Busy,
            Some(FileError::DiskFull) => Self::Full,
            Some(FileError::CannotOpen) => Self::Unopenable,
            Some(FileError::ReadOnly) => Self::ReadOnly,
            Some(FileError::FileReplaced) => Self::Replaced,
            Some(FileError::Corrupt) => Self::Damaged(message()),
            Some(FileError::NotADatabase) => Self::NoDatabase,
            Some(FileError::Io) => Self::Disk(error),
            Some(FileError::MissingTable) => {
                Self::Schema(format!("holds no outbox ({}); hint: run `relevo migrate`", message()))
            }
            None => Self::Driver(error),
        }
    }
}

/// Rejects a file on a network file system, unless that is allowed.
pub(crate) fn check_local(file: &Path, allow_network_file_system: bool) -> Result<(), StoreError> {
    relevo_sqlite_file::check_local(file, allow_network_file_system)
        .map_err(|refused| StoreError::Refused { what: refused.to_string() })
}
