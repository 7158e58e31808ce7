//! The location and the limits of the broker.

use std::path::PathBuf;
use std::time::Duration;

use relevo_config::{Configured, DurationText, KeyPath, Problem, Reader, Section, SizeText, reference};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A durable broker in a SQLite file of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// The SQLite file: the broker's own, or that of an outbox. It is created if it does not exist.
    #[schemars(extend("x-required" = true, "examples" = ["/var/lib/relevo/broker.db"]))]
    pub path: PathBuf,
    /// The `ce-source` of messages published here: a URI that names the outbox.
    pub source: String,
    /// The maximum size of a message, headers and payload together.
    #[serde(with = "SizeText")]
    pub message_size_max: usize,
    /// How long a message is kept after every group has acknowledged it. Duplicates are detected during that time.
    #[serde(with = "DurationText")]
    pub retention: Duration,
    /// The maximum number of stored messages. Above it the broker refuses publishing with class `throttled`. It never
    /// drops a message that a group has not acknowledged.
    pub messages_max: u64,
    /// The maximum number of stored bytes, headers and payload together.
    #[serde(with = "SizeText")]
    pub bytes_max: u64,
    /// How long a call waits for the file lock.
    #[serde(with = "DurationText")]
    pub busy_timeout: Duration,
    /// How often waiting consumers poll for messages that other processes published.
    #[serde(with = "DurationText")]
    pub poll_interval: Duration,
    /// Accepts a file on a network file system. SQLite's locks and shared memory do not work across machines: a file
    /// that two machines use will be corrupted.
    pub allow_network_file_system: bool,
}

impl Config {
    /// The default configuration for this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }
}

impl Default for Config {
    /// Without a file.
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            source: "/relevo".to_owned(),
            message_size_max: 16 << 20,
            retention: Duration::from_mins(10),
            messages_max: 10_000_000,
            bytes_max: 8 << 30,
            busy_timeout: Duration::from_secs(5),
            poll_interval: Duration::from_millis(40),
            allow_network_file_system: false,
        }
    }
}

impl Section for Config {}

impl Configured for Config {
    fn read(reader: &mut Reader, at: &KeyPath) -> Option<Self> {
        let config: Self = reader.read(at)?;
        if config.path.as_os_str().is_empty() {
            let problem = Problem::new(format!("`{at}` has no `path`"));
            reader.problem(at, problem.hint("the SQLite file of the embedded broker"));
            return None;
        }
        Some(config)
    }

    fn schema() -> serde_json::Value {
        reference::schema_of::<Self>()
    }
}
