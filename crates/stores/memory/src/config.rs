//! The settings of an outbox.

use std::time::Duration;

use jiff::Timestamp;
/// The destination that every outbox has at the start.
pub const MAIN: &str = "main";

/// The settings of an outbox.
#[derive(Clone, Debug)]
pub struct Config {
    /// Shards of the destination [`MAIN`].
    pub shards: u16,
    /// How long settled messages are retained.
    pub retention: Duration,
    /// The time of the clock when the outbox is created.
    pub started_at: Timestamp,
    /// The seed for ids. The same seed and the same calls give the same ids.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shards: 8,
            retention: Duration::from_hours(7 * 24),
            started_at: Timestamp::constant(1_767_225_600, 0), // 2026-01-01T00:00:00Z
            seed: 1,
        }
    }
}
