//! What of a group its consumers must know.

use std::time::Duration;

/// A group of consumers that share a stream's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name; the durable consumers are called by it.
    pub name: String,
    /// The stream that it reads.
    pub stream: String,
    /// Which subjects of the stream, without the lane's word; none for all.
    pub subjects: Vec<String>,
    /// The number of lanes that publishers append to the subject.
    pub lanes: Option<u16>,
    /// How long the server waits for an answer before it delivers again.
    pub ack_wait: Duration,
    /// At most so many deliveries of a lane are out.
    pub max_ack_pending: usize,
    /// After so many deliveries the server gives a message up.
    pub max_deliver: Option<u32>,
}
