//! What can go wrong, and what each means to the relay or the inbox.

use std::time::Duration;

use relevo_core::{Class, Failure};
use relevo_sqlite_file::{FileError, NetworkFileSystem};

/// Why the broker could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another connection holds the file's lock. Nothing was written.
    #[error("the broker's file is locked by another process")]
    Locked(#[source] sqlx::Error),
    /// There is no room on the disk. Nothing was written.
    #[error("the disk of the broker's file is full")]
    DiskFull(#[source] sqlx::Error),
    /// The file cannot be opened. Nothing was written.
    #[error("the broker's file cannot be opened")]
    CannotOpen(#[source] sqlx::Error),
    /// The file, or its directory, may not be written.
    #[error("the broker's file may not be written")]
    ReadOnly(#[source] sqlx::Error),
    /// The file is no SQLite database, or its pages contradict each other.
    #[error("the broker's file is damaged; restore it from a copy")]
    Damaged(#[source] sqlx::Error),
    /// The tables are newer than this program, or gone.
    #[error("the broker's tables do not fit this program: {what}")]
    Schema {
        /// What was found.
        what: String,
    },
    /// The file is on a network file system, and the configuration does not allow that.
    #[error(transparent)]
    Network(#[from] NetworkFileSystem),
    /// Reading or writing failed half-way. It may have been written.
    #[error("the broker's file cannot be read or written")]
    Io(#[source] sqlx::Error),
    /// SQLite, or the library before it, said something that is not listed here.
    #[error("the broker's file could not be used")]
    Other(#[source] sqlx::Error),
    /// The message can never be stored.
    #[error("the message is {bytes} bytes, more than `message_bytes_max` = {max}")]
    TooLarge {
        /// How large it is.
        bytes: usize,
        /// How large it may be.
        max: usize,
    },
    /// A limit is reached and no message can go, because a group has not acknowledged it.
    #[error("the broker is full: {messages} messages, {bytes} bytes not yet acknowledged by every group")]
    Full {
        /// How many messages are kept.
        messages: u64,
        /// How many bytes they have.
        bytes: u64,
    },
    /// An earlier message of its key in the same batch was refused; this one was not stored.
    #[error("an earlier message of its key was refused")]
    BehindRefused,
    /// There is no such group.
    #[error("there is no group `{0}`")]
    NoGroup(String),
    /// The group exists and is different.
    #[error("the group `{name}` exists and differs: {difference}")]
    Differs {
        /// Which group.
        name: String,
        /// What it has, and what was asked for.
        difference: String,
    },
    /// A group cannot be like this.
    #[error("the group `{name}` cannot be made: {why}")]
    Malformed {
        /// Which group.
        name: String,
        /// Why not.
        why: &'static str,
    },
}

/// How long a full broker asks the relay to wait.
pub(crate) const FULL_PAUSE: Duration = Duration::from_secs(1);

impl Error {
    /// What it means to the sender or the receiver.
    pub fn class(&self) -> Class {
        match self {
            // Each passes by itself or when somebody makes room; nothing was written.
            Self::Locked(_) | Self::DiskFull(_) | Self::CannotOpen(_) => Class::Outage,
            // A person must act, and waiting mends nothing.
            Self::ReadOnly(_)
            | Self::Damaged(_)
            | Self::Schema { .. }
            | Self::Network(_)
            | Self::NoGroup(_)
            | Self::Differs { .. }
            | Self::Malformed { .. } => Class::Blocked,
            // A commit that failed half-way may be found whole when the log is read again.
            Self::Io(_) | Self::Other(_) | Self::BehindRefused => Class::Unknown,
            Self::TooLarge { .. } => Class::Poison,
            // Consumers make room without anybody's help.
            Self::Full { .. } => Class::Throttled(FULL_PAUSE),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.class(), error)
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match FileError::of(&error) {
            Some(FileError::Locked) => Self::Locked(error),
            Some(FileError::DiskFull) => Self::DiskFull(error),
            Some(FileError::CannotOpen) => Self::CannotOpen(error),
            Some(FileError::ReadOnly | FileError::FileReplaced) => Self::ReadOnly(error),
            Some(FileError::Corrupt | FileError::NotADatabase) => Self::Damaged(error),
            Some(FileError::Io) => Self::Io(error),
            Some(FileError::MissingTable) => Self::Schema { what: error.to_string() },
            None => match error {
                // No connection became free in time: as good as locked.
                sqlx::Error::PoolTimedOut => Self::Locked(error),
                sqlx::Error::Io(_) => Self::Io(error),
                other => Self::Other(other),
            },
        }
    }
}
