//! Where the broker is, and its limits.

use std::path::PathBuf;
use std::time::Duration;

/// Where the broker is, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The file: its own, or an outbox's. It is made if it does not exist.
    pub path: PathBuf,
    /// What `ce-source` says of messages that are published here: a URI that names the outbox.
    pub source: String,
    /// The largest message, headers and payload together.
    pub message_bytes_max: usize,
    /// How long a message is kept after every group has acknowledged it. So long a repeat of it is recognised.
    pub keep: Duration,
    /// At most so many messages are kept. Above it publishing is refused for now (`throttled`): nothing that a group has
    /// not acknowledged is ever dropped.
    pub messages_max: u64,
    /// At most so many bytes of headers and payload are kept.
    pub bytes_max: u64,
    /// How long a call waits for a file that somebody else has locked.
    pub lock_wait: Duration,
    /// How often waiting consumers look for what other processes published.
    pub poll: Duration,
    /// Accepts a file on a network file system. SQLite's locks and shared memory do not work across machines: a file
    /// that two machines use will be corrupted.
    pub allow_network_file_system: bool,
}

impl Config {
    /// The defaults, for this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            source: "/relevo".to_owned(),
            message_bytes_max: 16 << 20,
            keep: Duration::from_mins(10),
            messages_max: 10_000_000,
            bytes_max: 8 << 30,
            lock_wait: Duration::from_secs(5),
            poll: Duration::from_millis(40),
            allow_network_file_system: false,
        }
    }
}
