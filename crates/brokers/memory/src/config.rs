//! How the broker is set up.

use std::time::Duration;

/// How the broker is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The first failure of a key in a batch fails its successors in that batch.
    pub fences_order: bool,
    /// Keeps a list of what was received, not only a count. The list is never cut: it is for tests.
    pub records: bool,
    /// How long a batch waits between receipt and confirmation.
    pub latency: Duration,
    /// The largest payload it takes.
    pub message_bytes_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { fences_order: false, records: true, latency: Duration::ZERO, message_bytes_max: 16 << 20 }
    }
}
