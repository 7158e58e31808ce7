//! The worker's heartbeat in the log. `/health` does not use it: it reads the consumers' heartbeats in the database.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use relevo::inbox::ConsumerStatus;
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Periodically logs that the worker is alive.
pub(super) struct Heart {
    every: Duration,
    pulse: Pulse,
}

/// When the last message was handled, reported by handlers.
#[derive(Clone, Default)]
pub(super) struct Pulse(Arc<AtomicI64>);

impl Pulse {
    pub(super) fn beat(&self) {
        self.0.store(Timestamp::now().as_millisecond(), Ordering::Relaxed);
    }

    fn last(&self) -> Option<Timestamp> {
        let millis = self.0.load(Ordering::Relaxed);
        Timestamp::from_millisecond(millis).ok().filter(|_| millis > 0)
    }
}

impl Heart {
    pub(super) fn new(every: Duration) -> Self {
        Self { every, pulse: Pulse::default() }
    }

    pub(super) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    pub(super) async fn beat(self, consumers: Vec<Arc<ConsumerStatus>>, stop: CancellationToken) -> Result<()> {
        let mut beats = interval_at(Instant::now(), self.every);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = beats.tick() => {}
            }
            let last_message = self.pulse.last().map(tracing::field::display);
            let handled: u64 = consumers.iter().map(|stats| stats.done() + stats.skipped()).sum();
            let dead: u64 = consumers.iter().map(|stats| stats.dead_lettered()).sum();
            info!(last_message, handled, dead, "the worker lives");
        }
    }
}
