//! Latencies of published messages, for monitoring.

use jiff::Timestamp;
use relevo_core::histogram::Histogram;

/// Bucket bounds in seconds.
const PUBLISH_SECONDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Bucket bounds in milliseconds.
const DISPATCH_MILLIS: &[f64] =
    &[5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0];

/// Latencies of one relay's messages.
///
/// They start at the database's emit time and end at this process's time, so they include the difference of the two
/// clocks. Negative values count as zero. The relay makes no decision based on them.
#[derive(Debug)]
pub struct Latencies {
    published: Histogram,
    dispatched: Histogram,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { published: Histogram::new(PUBLISH_SECONDS), dispatched: Histogram::new(DISPATCH_MILLIS) }
    }
}

impl Latencies {
    /// Seconds from `emit` to the broker's confirmation.
    pub fn published(&self) -> &Histogram {
        &self.published
    }

    /// Milliseconds from `emit` until the message was first passed to the broker.
    pub fn dispatched(&self) -> &Histogram {
        &self.dispatched
    }

    /// Records a confirmed message.
    pub(crate) fn observe_published(&self, created_at: Timestamp) {
        self.published.observe(seconds(created_at, Timestamp::now()));
    }

    /// Records the first time that a message is passed to the broker.
    pub(crate) fn observe_dispatched(&self, created_at: Timestamp, now: Timestamp) {
        self.dispatched.observe(seconds(created_at, now) * 1_000.0);
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
