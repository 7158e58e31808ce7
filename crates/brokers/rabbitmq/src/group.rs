//! The properties of a queue that its consumers need.

use std::time::Duration;

use crate::classify::Error;
use crate::config::NAME_BYTES_MAX;
use crate::topology::{DEFAULT_RETRY_DELAYS, Queue, lane_queue_name, retry_queue_name};

/// A group of consumers that share the messages of a queue, or of its lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name of the queue.
    pub name: String,
    /// The number of lanes that publishers append to the routing key: the queues are `name.0`, `name.1`, …
    pub lanes: Option<u16>,
    /// The queue has a single active consumer; lanes always have one.
    pub ordered: bool,
    /// The delays of the retry queues. If it is empty, delayed retry is not possible.
    pub retry: Vec<Duration>,
}

impl Group {
    /// A group of an ordered queue without lanes, with the default retry delays.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), lanes: None, ordered: true, retry: DEFAULT_RETRY_DELAYS.to_vec() }
    }

    /// Rejects an invalid group. Returns the first problem.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Config(format!("the group `{}` {what}", self.name)));
        match self {
            Self { name, .. } if name.is_empty() => wrong("has no name"),
            Self { lanes: Some(lanes), .. } if !(1..=LANES_MAX).contains(lanes) => wrong("needs 1 to 256 lanes"),
            Self { retry, .. } if retry.iter().any(|rung| rung.as_millis() == 0) => wrong("has a rung of no time"),
            _ if self.longest_name() > NAME_BYTES_MAX => wrong("has a name that is too long"),
            _ => Ok(()),
        }
    }

    /// The length of the longest name derived from the group. Code that uses such a name relies on this check.
    fn longest_name(&self) -> usize {
        let queue = match self.lanes {
            None => self.name.clone(),
            Some(lanes) => lane_queue_name(&self.name, lanes),
        };
        let rungs = self.retry.iter().map(|rung| retry_queue_name(&queue, *rung).len());
        rungs.chain([queue.len(), members_key(&self.name).len()]).max().unwrap_or_default()
    }

    /// The consumed queues, one per lane.
    pub(crate) fn queues(&self) -> Vec<String> {
        match self.lanes {
            None => vec![self.name.clone()],
            Some(lanes) => (0..lanes).map(|lane| lane_queue_name(&self.name, lane)).collect(),
        }
    }

    /// Whether only one consumer at a time receives from a lane, or from a queue without lanes.
    pub(crate) const fn is_ordered(&self) -> bool {
        self.ordered || self.lanes.is_some()
    }
}

/// The routing key of the announcements between the members of a group.
pub(crate) fn members_key(group: &str) -> String {
    format!("relevo.{group}")
}

/// A key has one of 256 slots, so more lanes would stay empty.
const LANES_MAX: u16 = 256;

impl Queue {
    /// The properties that its consumers need.
    pub fn group(&self) -> Group {
        Group {
            name: self.name.clone(),
            lanes: self.lanes,
            ordered: self.is_ordered(),
            retry: self.retry_delays.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_knows_the_queues_of_its_topology() {
        let queue = Queue { lanes: Some(2), ..Queue::new("billing") };
        let group = queue.group();
        assert_eq!(group.queues(), queue.consumed_queues());
        assert_eq!(group.queues(), ["billing.0", "billing.1"]);
        assert_eq!(Queue::new("billing").group(), Group::new("billing"));
        assert!(group.validate().is_ok() && group.ordered);
    }

    #[test]
    fn a_queue_is_ordered_unless_it_is_told_otherwise() {
        assert!(Group::new("billing").is_ordered());
        let unordered = Queue { single_active_consumer: false, ..Queue::new("billing") };
        assert!(!unordered.group().is_ordered());
        assert!(Queue { lanes: Some(2), ..unordered }.group().is_ordered(), "lanes always are");
    }

    #[test]
    fn what_cannot_be_consumed_is_refused_at_once() {
        for group in [
            Group::new(""),
            Group { lanes: Some(0), ..Group::new("a") },
            Group { lanes: Some(257), ..Group::new("a") },
            Group { retry: vec![Duration::ZERO], ..Group::new("a") },
            Group::new("a".repeat(250)),
            Group { retry: vec![], lanes: Some(2), ..Group::new("a".repeat(249)) },
            Group { retry: vec![], ..Group::new("a".repeat(256)) },
        ] {
            assert!(group.validate().is_err(), "{group:?}");
        }
    }
}
