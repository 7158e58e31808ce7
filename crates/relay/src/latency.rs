//! How long messages take, for whoever watches.

use jiff::Timestamp;
use relevo_core::histogram::Histogram;

/// In seconds.
const PUBLISHED: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0];
/// In milliseconds.
const DISPATCHED: &[f64] =
    &[5.0, 10.0, 25.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0];

/// How long one relay's messages took. The time of `emit` is the database's and the end is this process's, so that what
/// the two clocks differ by is part of it; nothing counts as less than zero, and nothing that the relay does follows from it.
#[derive(Debug)]
pub struct Latencies {
    published: Histogram,
    dispatched: Histogram,
}

impl Default for Latencies {
    fn default() -> Self {
        Self { published: Histogram::new(PUBLISHED), dispatched: Histogram::new(DISPATCHED) }
    }
}

impl Latencies {
    /// Seconds from `emit` to the broker's confirmation.
    pub fn published(&self) -> &Histogram {
        &self.published
    }

    /// Milliseconds from `emit` to the first time that the message was handed to the broker.
    pub fn dispatched(&self) -> &Histogram {
        &self.dispatched
    }

    /// A message was confirmed.
    pub(crate) fn publish(&self, created_at: Timestamp) {
        self.published.observe(seconds(created_at, Timestamp::now()));
    }

    /// A message is handed over for the first time.
    pub(crate) fn dispatch(&self, created_at: Timestamp, now: Timestamp) {
        self.dispatched.observe(seconds(created_at, now) * 1_000.0);
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
