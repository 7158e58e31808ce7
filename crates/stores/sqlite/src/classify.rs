//! What an error of SQLite means to a relay, and what a person can do about it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use relevo_core::store::StoreError;
use relevo_sqlite_file::FileError;

use crate::disk;

/// What can go wrong in a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Somebody else writes, for longer than we wait.
    #[error(
        "is locked by another connection; hint: look for a process that keeps a write transaction open, such as an \
         application, a `sqlite3` shell or a backup (`fuser FILE` names those that have the file open), and end it"
    )]
    Busy,
    /// The disk, or the file's quota, is used up.
    #[error("cannot grow, the disk is full; hint: free space, nothing was lost")]
    Full,
    /// Pages contradict each other.
    #[error(
        "is damaged ({0}); hint: stop its users, keep a copy, then restore a backup or use `sqlite3 FILE .recover`"
    )]
    Damaged(String),
    /// The file's first bytes are not SQLite's.
    #[error("is no SQLite database, or its header is damaged; hint: name another file, or restore a backup")]
    NoDatabase,
    /// The file, its directory or its file system cannot be written.
    #[error(
        "cannot be written; hint: the file, its directory and the file system must be writable, for reading too: that needs \
         the files `-wal` and `-shm` beside it"
    )]
    ReadOnly,
    /// The file is there and cannot be opened.
    #[error("cannot be opened; hint: the user needs to read and write it and its directory")]
    Unopenable,
    /// There is no file.
    #[error("does not exist; hint: check the path, or run `relevo migrate`")]
    Missing,
    /// Another file took its place while it was open.
    #[error("was replaced by another file while it was open")]
    Replaced,
    /// The disk failed a read or a write.
    #[error("cannot be read or written; hint: look for disk errors in the system's log")]
    Disk(#[source] sqlx::Error),
    /// What was committed cannot be made durable.
    #[error("cannot be flushed; hint: look for disk errors in the system's log")]
    Flush(#[source] std::io::Error),
    /// No answer in time.
    #[error("gave no answer within {0:?}; hint: look for a hanging disk")]
    Deadline(Duration),
    /// The schema is missing, older or newer; or the file is not in WAL mode.
    #[error("{0}")]
    Schema(String),
    /// A person decides.
    #[error("{0}")]
    Refused(String),
    /// A relay asked for what no relay may ask for, or a row is not what it should be.
    #[error("has something that must not be: {0}")]
    Answer(String),
    /// What SQLite or its driver say that we do not know.
    #[error("refused a call")]
    Driver(#[source] sqlx::Error),
}

impl Error {
    pub(crate) fn answer(what: impl Into<String>) -> Self {
        Self::Answer(what.into())
    }

    /// The same for a file that was open before: a process without handles, or a disk without room for the files beside
    /// it, cannot open it again until that has passed.
    pub(crate) fn of_open_file(self, file: &Path) -> StoreError {
        match self {
            Self::Unopenable => StoreError::Away(Box::new(Located { file: file.to_owned(), error: self })),
            other => other.of_file(file),
        }
    }

    /// At the port: the error names the file.
    pub(crate) fn of_file(self, file: &Path) -> StoreError {
        let error = match self {
            // Shared memory and a flush say only "I/O error" when there is no space left.
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

/// An error and the file that it is about, in one sentence.
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

/// Refuses a file on a network file system, unless that is allowed.
pub(crate) fn check_local(file: &Path, allow_network_file_system: bool) -> Result<(), StoreError> {
    relevo_sqlite_file::check_local(file, allow_network_file_system)
        .map_err(|refused| StoreError::Refused { what: refused.to_string() })
}
