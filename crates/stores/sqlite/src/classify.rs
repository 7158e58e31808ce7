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
    DiskFull,
    /// The file is corrupt.
    #[error(
        "is damaged ({0}); hint: stop its users, keep a copy, then restore a backup or use `sqlite3 FILE .recover`"
    )]
    Corrupt(String),
    /// The file is not a SQLite database.
    #[error("is no SQLite database, or its header is damaged; hint: name another file, or restore a backup")]
    NotADatabase,
    /// The file, its directory or its file system is read-only.
    #[error(
        "cannot be written; hint: the file, its directory and the file system must be writable, for reading too: that needs \
         the files `-wal` and `-shm` beside it"
    )]
    ReadOnly,
    /// The file exists but cannot be opened.
    #[error("cannot be opened; hint: the user needs to read and write it and its directory")]
    CannotOpen,
    /// The file does not exist.
    #[error("does not exist; hint: check the path, or run `relevo migrate`")]
    NotFound,
    /// Another file replaced it while it was open.
    #[error("was replaced by another file while it was open")]
    FileReplaced,
    /// A read or a write of the disk failed.
    #[error("cannot be read or written; hint: look for disk errors in the system's log")]
    Io(#[source] sqlx::Error),
    /// Committed data cannot be flushed to the disk.
    #[error("cannot be flushed; hint: look for disk errors in the system's log")]
    Flush(#[source] std::io::Error),
    /// The call did not finish before the deadline.
    #[error("gave no answer within {0:?}; hint: look for a hanging disk")]
    Timeout(Duration),
    /// The schema is missing, older or newer, or the file is not in WAL mode.
    #[error("{0}")]
    Schema(String),
    /// The store rejected the call, and an operator must decide.
    #[error("{0}")]
    Refused(String),
    /// A relay sent an invalid request, or a row is malformed.
    #[error("has something that must not be: {0}")]
    UnexpectedResponse(String),
    /// An unknown error of SQLite or its driver.
    #[error("refused a call")]
    Driver(#[source] sqlx::Error),
}

impl Error {
    pub(crate) fn unexpected_response(what: impl Into<String>) -> Self {
        Self::UnexpectedResponse(what.into())
    }

    /// Converts an error of a file that was open before. Without free file handles, or without disk space for the WAL
    /// files, it cannot be reopened. That condition may be temporary.
    pub(crate) fn after_open(self, file: &Path) -> StoreError {
        match self {
            Self::CannotOpen => StoreError::Unavailable(Box::new(PathError { file: file.to_owned(), error: self })),
            other => other.at_open(file),
        }
    }

    /// Converts to the error of the port, which names the file.
    pub(crate) fn at_open(self, file: &Path) -> StoreError {
        let error = match self {
            // Shared memory and a flush report only "I/O error" when no disk space is left.
            Self::Io(_) | Self::Flush(_) if disk::is_full(file) => Self::DiskFull,
            other => other,
        };
        match error {
            Self::Busy => {
                StoreError::Busy { retry_after: None, source: Box::new(PathError { file: file.to_owned(), error }) }
            }
            Self::DiskFull | Self::FileReplaced | Self::Io(_) | Self::Flush(_) | Self::Timeout(_) => {
                StoreError::Unavailable(Box::new(PathError { file: file.to_owned(), error }))
            }
            Self::Corrupt(_) | Self::NotADatabase | Self::ReadOnly | Self::CannotOpen => {
                StoreError::Refused { reason: PathError { file: file.to_owned(), error }.to_string() }
            }
            Self::NotFound => {
                StoreError::SchemaMismatch { reason: PathError { file: file.to_owned(), error }.to_string() }
            }
            Self::Schema(what) => StoreError::SchemaMismatch { reason: format!("file `{}` {what}", file.display()) },
            Self::Refused(what) => StoreError::Refused { reason: what },
            Self::UnexpectedResponse(_) | Self::Driver(_) => {
                StoreError::Unexpected(Box::new(PathError { file: file.to_owned(), error }))
            }
        }
    }
}

/// An error with the path of its file.
#[derive(Debug)]
struct PathError {
    file: PathBuf,
    error: Error,
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file `{}` {}", self.file.display(), self.error)
    }
}

impl std::error::Error for PathError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        let message = || error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
        match FileError::of(&error) {
            Some(FileError::Locked) => Self::Busy,
            Some(FileError::DiskFull) => Self::DiskFull,
            Some(FileError::CannotOpen) => Self::CannotOpen,
            Some(FileError::ReadOnly) => Self::ReadOnly,
            Some(FileError::FileReplaced) => Self::FileReplaced,
            Some(FileError::Corrupt) => Self::Corrupt(message()),
            Some(FileError::NotADatabase) => Self::NotADatabase,
            Some(FileError::Io) => Self::Io(error),
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
        .map_err(|refused| StoreError::Refused { reason: refused.to_string() })
}
