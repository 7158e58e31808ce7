//! What the queues of a group are called; whoever makes, uses or examines one asks here.

use std::time::Duration;

/// The queue of one lane.
pub fn lane_queue(queue: &str, lane: u16) -> String {
    format!("{queue}.{lane}")
}

/// The routing key of one lane: the lane is its last word.
pub fn lane_key(key: &str, lane: u16) -> String {
    if key.is_empty() { lane.to_string() } else { format!("{key}.{lane}") }
}

/// The queue in which a message of `queue`, which may be a lane's, waits for this long and then returns.
pub fn retry_queue(queue: &str, rung: Duration) -> String {
    format!("{queue}.retry.{}", rung.as_millis())
}

/// The queue of what was given up, if no other name is chosen; the lanes of a queue share one.
pub fn dead_queue(queue: &str) -> String {
    format!("{queue}.dead")
}
