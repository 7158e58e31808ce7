//! A stream as the configuration has it.

use std::time::Duration;

/// A stream; the defaults keep everything that was confirmed until somebody removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Its name.
    pub name: String,
    /// The subjects that it stores; `*` and `>` as in NATS.
    pub subjects: Vec<String>,
    /// Where messages are kept.
    pub storage: Storage,
    /// On how many servers of a cluster.
    pub replicas: usize,
    /// What removes a message.
    pub retention: Retention,
    /// Messages older than that are removed.
    pub max_age: Option<Duration>,
    /// At most so many bytes.
    pub max_bytes: Option<u64>,
    /// At most so many messages.
    pub max_messages: Option<u64>,
    /// Larger messages are refused.
    pub max_message_bytes: Option<u32>,
    /// What happens when it is full.
    pub discard: Discard,
    /// For how long the server recognises a message that is sent again.
    pub duplicate_window: Duration,
    /// Whether batches are stored all or nothing, where the server can (2.12 and later).
    pub atomic: bool,
}

impl Stream {
    /// A stream in files, on one server, without limits, with a duplicate window of ten minutes.
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
            atomic: true,
        }
    }
}

/// Where a stream keeps its messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Storage {
    /// In files.
    #[default]
    File,
    /// In memory: gone when the server ends.
    Memory,
}

/// What removes a message from a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retention {
    /// Its limits of age and size only.
    #[default]
    Limits,
    /// Also that every consumer has acknowledged it; without consumers it is not kept at all.
    Interest,
    /// Also that its one consumer has acknowledged it.
    WorkQueue,
}

/// What a full stream does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// Refuses new messages.
    #[default]
    New,
    /// Drops the oldest, consumed or not.
    Old,
}
