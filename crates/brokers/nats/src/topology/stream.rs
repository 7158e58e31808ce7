//! The configuration of a stream.

use std::time::Duration;

/// A stream. By default it keeps every confirmed message until an operator deletes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The name.
    pub name: String,
    /// The subjects that it stores, with the NATS wildcards `*` and `>`.
    pub subjects: Vec<String>,
    /// Where messages are stored.
    pub storage: Storage,
    /// The number of replicas in a cluster.
    pub replicas: usize,
    /// When messages are deleted.
    pub retention: Retention,
    /// The maximum age of a message.
    pub max_age: Option<Duration>,
    /// The maximum size in bytes.
    pub max_bytes: Option<u64>,
    /// The maximum number of messages.
    pub max_messages: Option<u64>,
    /// The maximum size of a message.
    pub max_message_bytes: Option<u32>,
    /// What happens when the stream is full.
    pub discard: Discard,
    /// How long the server detects duplicates.
    pub duplicate_window: Duration,
    /// Whether atomic batches are enabled, if the server supports them (2.12 and later).
    pub allow_atomic_publish: bool,
}

impl Stream {
    /// A stream with file storage, one replica, no limits and a duplicate window of ten minutes.
    pub fn new<S: Into<String>>(name: impl Into<String>, subjects: impl IntoIterator<Item = S>) -> Self {
        Self {
            name: name.into(),
            subjects: subjects.into_iter().map(Into::into).collect(),
            storage: Storage::File,
            replicas: 1,
            retention: Retention::Limits,
            max_age: None,
            max_bytes: None,
            max_messages: None,
            max_message_bytes: None,
            discard: Discard::New,
            duplicate_window: Duration::from_mins(10),
            allow_atomic_publish: true,
        }
    }
}

/// Where a stream stores its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// In files.
    #[default]
    File,
    /// In memory: lost when the server stops.
    Memory,
}

/// When a stream deletes messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// Only by the limits of age and size.
    #[default]
    Limits,
    /// Also when every consumer has acknowledged the message. Without consumers nothing is stored.
    Interest,
    /// Also when its one consumer has acknowledged the message.
    WorkQueue,
}

/// What a full stream does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// Refuses new messages.
    #[default]
    New,
    /// Drops the oldest messages, consumed or not.
    Old,
}
