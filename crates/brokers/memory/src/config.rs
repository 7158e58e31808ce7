//! The configuration of the broker.

use std::time::Duration;

/// The configuration of the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether the first failure of a key in a batch fails its successors in that batch.
    pub ordered_in_flight: bool,
    /// Keeps all received messages, not only a count. The list grows without limit; use it only in tests.
    pub keeps_messages: bool,
    /// The delay between receipt and confirmation of a batch.
    pub latency: Duration,
    /// The largest accepted payload, in bytes.
    pub message_size_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { ordered_in_flight: false, keeps_messages: true, latency: Duration::ZERO, message_size_max: 16 << 20 }
    }
}
