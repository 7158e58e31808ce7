//! How handlers reach an inbox.

use std::path::PathBuf;
use std::time::Duration;

/// How an inbox is reached, and how long it waits for the file's one write lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The database file.
    pub path: PathBuf,
    /// How long a message waits for other writers until it is busy. Every handler of every process waits for every other.
    pub lock_timeout: Duration,
    /// How long everything else waits: heartbeats, lanes, due queues. Longer than any handler takes.
    pub busy_timeout: Duration,
    /// Accepts a file on a network file system; see [`Config`](crate::Config::allow_network_file_system).
    pub allow_network_file_system: bool,
}

impl Config {
    /// The defaults: messages wait for at most one second, everything else for five; local file systems only.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            lock_timeout: Duration::from_secs(1),
            busy_timeout: Duration::from_secs(5),
            allow_network_file_system: false,
        }
    }
}
