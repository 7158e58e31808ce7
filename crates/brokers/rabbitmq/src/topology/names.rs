//! The names of a group's queues and routing keys. All code that needs one uses these functions.

use std::time::Duration;

/// The queue of one lane.
pub fn lane_queue_name(queue: &str, lane: u16) -> String {
    format!("{queue}.{lane}")
}

/// The routing key of one lane: the lane is its last word.
pub fn lane_routing_key(key: &str, lane: u16) -> String {
    if key.is_empty() { lane.to_string() } else { format!("{key}.{lane}") }
}

/// The queue in which messages of `queue`, which may be a lane, wait for this delay before they return.
pub fn retry_queue_name(queue: &str, rung: Duration) -> String {
    format!("{queue}.retry.{}", rung.as_millis())
}

/// The default name of the dead-letter queue. The lanes of a queue share one.
pub fn dead_letter_queue_name(queue: &str) -> String {
    format!("{queue}.dead")
}
