//! The configuration of a queue.

use std::time::Duration;

/// The default retry delays.
pub const DEFAULT_RETRY_DELAYS: [Duration; 3] =
    [Duration::from_mins(1), Duration::from_mins(5), Duration::from_mins(15)];

/// A durable queue with its lanes, its retry queues and its dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The name.
    pub name: String,
    /// The queue type.
    pub kind: QueueKind,
    /// The number of lanes: queues `name.0`, `name.1`, … instead of one. Each has a single active consumer, and is
    /// bound with the lane as the last word of the routing key.
    pub lanes: Option<u16>,
    /// One consumer at a time is active, and the others are on standby. Otherwise all consumers receive at once, and
    /// only unordered consumers start. Lanes are always ordered.
    pub single_active_consumer: bool,
    /// The retry delays, with one queue for each. Empty means no retry queues.
    pub retry_delays: Vec<Duration>,
    /// The name of the dead-letter queue, `name.dead` by default; `None` for no dead-letter queue.
    pub dead_letter_queue: Option<String>,
    /// The maximum number of messages. Above it new messages are refused.
    pub max_length: Option<u64>,
    /// The maximum size in bytes. Above it new messages are refused.
    pub max_length_bytes: Option<u64>,
    /// The maximum number of returns without an acknowledgement. Above it the message is dead-lettered, or lost without
    /// a dead-letter queue.
    pub delivery_limit: Option<u32>,
    /// The initial number of replicas of a quorum queue.
    pub quorum_initial_group_size: Option<u32>,
}

/// The queue type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// Replicated by consensus. A confirm means that a majority of its nodes has written the message.
    #[default]
    Quorum,
    /// On one node; it cannot dead-letter at least once.
    Classic,
}

impl QueueKind {
    /// The name in AMQP.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl Queue {
    /// An ordered quorum queue without lanes, with the default retry delays and a dead-letter queue.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            dead_letter_queue: Some(super::dead_letter_queue_name(&name)),
            name,
            kind: QueueKind::Quorum,
            lanes: None,
            single_active_consumer: true,
            retry_delays: DEFAULT_RETRY_DELAYS.to_vec(),
            max_length: None,
            max_length_bytes: None,
            delivery_limit: None,
            quorum_initial_group_size: None,
        }
    }

    /// Whether one consumer at a time is active.
    pub fn is_ordered(&self) -> bool {
        self.single_active_consumer || self.lanes.is_some()
    }

    /// The consumed queues: the queue itself or its lanes.
    pub fn consumed_queues(&self) -> Vec<String> {
        match self.lanes {
            None => vec![self.name.clone()],
            Some(lanes) => (0..lanes).map(|lane| super::lane_queue_name(&self.name, lane)).collect(),
        }
    }
}
