//! Connection settings of an outbox.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

/// How long a connection waits for the write lock by default.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The write-ahead log is truncated to this size after a burst.
const WAL_BYTES_KEPT: &str = "67108864";

/// Connection settings of a relay for one destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The database file.
    pub path: PathBuf,
    /// The destination that the relay publishes to.
    pub destination: String,
    /// How long a call waits for another writer. It must be shorter than the lease.
    pub busy_timeout: Duration,
    /// Accepts a file on a network file system. SQLite's locks and shared memory do not work across machines. If two
    /// machines use the file, it becomes corrupt.
    pub allow_network_file_system: bool,
}

impl Config {
    /// Creates the default configuration: a busy timeout of five seconds, local file systems only.
    pub fn new(path: impl Into<PathBuf>, destination: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            destination: destination.into(),
            busy_timeout: BUSY_TIMEOUT,
            allow_network_file_system: false,
        }
    }
}

/// Connection settings of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorConfig {
    /// The database file.
    pub path: PathBuf,
    /// How long a call waits for another writer.
    pub busy_timeout: Duration,
    /// Accepts a file on a network file system, where it may become corrupt.
    pub allow_network_file_system: bool,
}

impl OperatorConfig {
    /// Creates the default configuration: a busy timeout of five seconds, local file systems only.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), busy_timeout: BUSY_TIMEOUT, allow_network_file_system: false }
    }
}

/// Connection options for an application: WAL mode, `synchronous = FULL`, a busy timeout of five seconds, and foreign
/// keys enforced. The file must exist.
///
/// A writer with less than `FULL` loses its last commits in a power failure, and `OFF` may corrupt the file. The relay
/// flushes messages before it publishes them, so that a power failure cannot undo a published message.
pub fn connect_options(path: impl AsRef<Path>) -> SqliteConnectOptions {
    connect_options_without_wal(path.as_ref()).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full)
}

/// Connection options that leave the journal mode unchanged.
pub(crate) fn connect_options_without_wal(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .pragma("journal_size_limit", WAL_BYTES_KEPT)
}
