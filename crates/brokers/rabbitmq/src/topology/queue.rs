//! A queue as the configuration has it.

use std::time::Duration;

/// The rungs of a ladder that nobody configured.
pub const DEFAULT_RUNGS: [Duration; 3] = [Duration::from_mins(1), Duration::from_mins(5), Duration::from_mins(15)];

/// A durable queue with its lanes, its retry ladder and its dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// What kind of queue.
    pub kind: QueueKind,
    /// So many queues `name.0`, `name.1`, … in place of one, each with a single active consumer and bound with the lane's
    /// number as the last word of the routing key.
    pub lanes: Option<u16>,
    /// One consumer at a time is active, and the others wait to take over. Without it all consumers receive at once, and
    /// only consumers without order start. Lanes are ordered always.
    pub ordered: bool,
    /// How long messages wait before they are tried again: one queue a rung. Empty: no ladder.
    pub retry: Vec<Duration>,
    /// The queue of what is given up: `name.dead`, unless another name is chosen; `None` for none.
    pub dead_letters: Option<String>,
    /// More messages than that are refused.
    pub max_length: Option<u64>,
    /// More bytes than that are refused.
    pub max_bytes: Option<u64>,
    /// What was returned unacknowledged more often than that is given up: to the dead letters, or it is lost.
    pub delivery_limit: Option<u32>,
    /// On how many nodes of a cluster a quorum queue begins.
    pub initial_group_size: Option<u32>,
}

/// What kind of queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// Replicated by consensus; a confirm means that most of its nodes wrote it.
    #[default]
    Quorum,
    /// On one node; cannot dead-letter at least once.
    Classic,
}

impl QueueKind {
    /// The broker's word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

impl Queue {
    /// An ordered quorum queue with the default ladder and dead letters, without lanes.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            dead_letters: Some(super::dead_queue(&name)),
            name,
            kind: QueueKind::Quorum,
            lanes: None,
            ordered: true,
            retry: DEFAULT_RUNGS.to_vec(),
            max_length: None,
            max_bytes: None,
            delivery_limit: None,
            initial_group_size: None,
        }
    }

    /// Whether one consumer at a time is active.
    pub fn is_ordered(&self) -> bool {
        self.ordered || self.lanes.is_some()
    }

    /// The queues that are consumed: the queue itself or its lanes.
    pub fn work_queues(&self) -> Vec<String> {
        match self.lanes {
            None => vec![self.name.clone()],
            Some(lanes) => (0..lanes).map(|lane| super::lane_queue(&self.name, lane)).collect(),
        }
    }
}
