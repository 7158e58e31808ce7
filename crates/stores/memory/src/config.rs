//! How an outbox is set up.

use std::time::Duration;

use jiff::Timestamp;
use relevo_core::Limits;

/// The destination that every outbox begins with.
pub const MAIN: &str = "main";

/// How an outbox is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Shards of the destination [`MAIN`].
    pub shards: u16,
    /// How long settled messages are kept.
    pub retention: Duration,
    /// How large messages may be.
    pub limits: Limits,
    /// What the clock says when the outbox is made.
    pub started_at: Timestamp,
    /// Where ids come from: the same seed and the same calls give the same ids.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            shards: 8,
            retention: Duration::from_hours(7 * 24),
            limits: Limits::default(),
            started_at: Timestamp::constant(1_767_225_600, 0), // 2026-01-01T00:00:00Z
            seed: 1,
        }
    }
}

/// Where a new destination begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With what is committed from now on.
    Now,
    /// With the oldest message that the log still has.
    Oldest,
}
