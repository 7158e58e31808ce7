//! How to reach an outbox.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

/// How long a connection waits for the write lock unless it is told otherwise.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// What the write-ahead log is cut back to after a burst.
const LOG_BYTES_KEPT: &str = "67108864";

/// How a relay reaches an outbox, and for which destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The database file.
    pub path: PathBuf,
    /// Whom the relay carries messages to.
    pub destination: String,
    /// How long a call waits for a writer to end; shorter than the lease.
    pub busy_timeout: Duration,
    /// Accepts a file on a network file system. SQLite's locks and shared memory do not work across machines: a file
    /// that two machines use will be corrupted.
    pub allow_network_file_system: bool,
}

impl Config {
    /// The defaults: waits of at most five seconds, local file systems only.
    pub fn new(path: impl Into<PathBuf>, destination: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            destination: destination.into(),
            busy_timeout: BUSY_TIMEOUT,
            allow_network_file_system: false,
        }
    }
}

/// How an application connects to a file with an outbox: write-ahead log, `synchronous = FULL`, a wait of five seconds
/// for other writers, foreign keys enforced. The file must exist.
///
/// A writer with less than `FULL` loses its last commits in a power failure, and with `OFF` may damage the file. The
/// relay flushes what it reads before it publishes, so that nothing is published that a power failure takes back.
pub fn connect_options(path: impl AsRef<Path>) -> SqliteConnectOptions {
    plain_options(path.as_ref()).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full)
}

/// The same for a file whose journal is left as it is.
pub(crate) fn plain_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .pragma("journal_size_limit", LOG_BYTES_KEPT)
}
