//! Errors of the broker, and the failure class of each.

use std::sync::Arc;
use std::time::Duration;

use relevo_core::{Class, Failure};
use relevo_sqlite_file::{FileError, NetworkFileSystem};

/// Why a broker call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another connection holds the file's lock. Nothing was written.
    #[error("the broker's file is locked by another process")]
    Locked(#[source] sqlx::Error),
    /// The disk is full. Nothing was written.
    #[error("the disk of the broker's file is full")]
    DiskFull(#[source] sqlx::Error),
    /// The file cannot be opened. Nothing was written.
    #[error("the broker's file cannot be opened")]
    CannotOpen(#[source] sqlx::Error),
    /// The file or its directory is not writable.
    #[error("the broker's file is not writable")]
    ReadOnly(#[source] sqlx::Error),
    /// The file is not a SQLite database, or it is corrupt.
    #[error("the broker's file is corrupt; hint: restore it from a backup")]
    Corrupt(#[source] sqlx::Error),
    /// The tables are missing, or of a version that this program does not support.
    #[error("the broker's tables do not fit this program: {detail}")]
    Schema {
        /// The difference.
        detail: String,
    },
    /// The file is on a network file system, and the configuration does not allow that.
    #[error(transparent)]
    NetworkFileSystem(#[from] NetworkFileSystem),
    /// A read or write failed part-way. The data may have been written.
    #[error("the broker's file cannot be read or written")]
    Io(#[source] sqlx::Error),
    /// Any other error of SQLite or its driver.
    #[error("SQLite reported an error")]
    Sqlite(#[source] sqlx::Error),
    /// The message can never be stored.
    #[error("the message is {bytes} bytes, more than `message_size_max` = {max}")]
    TooLarge {
        /// The size of the message.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A limit is reached, and no message can be deleted because a group has not acknowledged it.
    #[error("the broker is full: {messages} messages, {bytes} bytes not yet acknowledged by every group")]
    Full {
        /// The number of stored messages.
        messages: u64,
        /// The size of the stored messages.
        bytes: u64,
    },
    /// An earlier message of the same key in the batch was refused, so this one was not stored.
    #[error("an earlier message of its key was refused")]
    EarlierRefused,
    /// The group does not exist.
    #[error("group `{0}` does not exist")]
    GroupNotFound(String),
    /// The group exists with different settings.
    #[error("group `{name}` exists with different settings: {difference}")]
    Mismatch {
        /// The name of the group.
        name: String,
        /// The existing and the requested settings.
        difference: String,
    },
    /// The group definition is invalid.
    #[error("group `{name}` cannot be created: {reason}")]
    InvalidGroup {
        /// The name of the group.
        name: String,
        /// Why it is invalid.
        reason: &'static str,
    },
    /// The error of a batch, shared by all its messages.
    #[error(transparent)]
    Shared(Arc<Error>),
}

/// The pause that a full broker requests from the relay.
pub(crate) const THROTTLE_PAUSE: Duration = Duration::from_secs(1);

impl Error {
    /// The failure class of this error.
    pub fn class(&self) -> Class {
        match self {
            // These pass without a change, or when an operator frees disk space. Nothing was written.
            Self::Locked(_) | Self::DiskFull(_) | Self::CannotOpen(_) => Class::Outage,
            // An operator must act; waiting does not help.
            Self::ReadOnly(_)
            | Self::Corrupt(_)
            | Self::Schema { .. }
            | Self::NetworkFileSystem(_)
            | Self::GroupNotFound(_)
            | Self::Mismatch { .. }
            | Self::InvalidGroup { .. } => Class::Blocked,
            // A commit that failed part-way may still be complete when SQLite reads its log again.
            Self::Io(_) | Self::Sqlite(_) | Self::EarlierRefused => Class::Unknown,
            Self::TooLarge { .. } => Class::Poison,
            // Consumers make room without an operator.
            Self::Full { .. } => Class::Throttled(THROTTLE_PAUSE),
            Self::Shared(error) => error.class(),
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
            Some(FileError::Corrupt | FileError::NotADatabase) => Self::Corrupt(error),
            Some(FileError::Io) => Self::Io(error),
            Some(FileError::MissingTable) => Self::Schema { detail: error.to_string() },
            None => match error {
                // No connection became free in time, which has the same cause as a lock.
                sqlx::Error::PoolTimedOut => Self::Locked(error),
                sqlx::Error::Io(_) => Self::Io(error),
                other => Self::Sqlite(other),
            },
        }
    }
}
