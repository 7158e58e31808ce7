//! Connection settings of an inbox.

use std::path::PathBuf;
use std::time::Duration;

/// Connection settings of an inbox, and its time limits for the file's only write lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The database file.
    pub path: PathBuf,
    /// How long a message waits for other writers before it is reported as busy. All handlers of all processes share
    /// one write lock.
    pub lock_timeout: Duration,
    /// How long heartbeats, lanes and due queues wait for other writers. It must be longer than the slowest handler.
    pub busy_timeout: Duration,
    /// Accepts a file on a network file system; see [`Config`](crate::Config::allow_network_file_system).
    pub allow_network_file_system: bool,
}

impl Config {
    /// Creates the default configuration: a lock timeout of one second for messages, five seconds for other calls, and
    /// local file systems only.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            lock_timeout: Duration::from_secs(1),
            busy_timeout: Duration::from_secs(5),
            allow_network_file_system: false,
        }
    }
}
