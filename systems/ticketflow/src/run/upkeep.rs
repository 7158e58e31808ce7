//! What grows old is deleted, now and then and a little at a time.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::Config;
use crate::desk::{Desk, Old, PRUNE_MAX};

/// How often it is looked for.
const EVERY: Duration = Duration::from_mins(10);
/// No transaction takes longer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Keeps the tables from growing without end, until `stop` is cancelled.
pub(super) struct Upkeep {
    desk: Arc<dyn Desk>,
    /// What, and how long it is kept.
    kept: [(Old, Duration); 2],
}

impl Upkeep {
    pub(super) fn new(desk: Arc<dyn Desk>, config: &Config) -> Self {
        let kept = [(Old::Requests, config.limits.idempotency), (Old::Emails, config.letters.retention)];
        Self { desk, kept }
    }

    pub(super) async fn run(self, stop: CancellationToken) -> Result<()> {
        let mut ticks = interval(EVERY);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            for (what, kept) in self.kept {
                self.prune(what, Timestamp::now() - kept, &stop).await;
            }
        }
    }

    /// One transaction after the other until nothing old is left, or somebody says stop.
    async fn prune(&self, what: Old, before: Timestamp, stop: &CancellationToken) {
        let mut deleted = 0;
        while !stop.is_cancelled() {
            match timeout(DEADLINE, self.desk.prune(what, before)).await {
                Ok(Ok(rows)) => {
                    deleted += rows;
                    if rows < PRUNE_MAX.unsigned_abs() {
                        break;
                    }
                }
                Ok(Err(error)) => {
                    warn!(?what, %error, "what is old was not deleted, will try again");
                    break;
                }
                Err(_) => {
                    warn!(?what, "what is old was not deleted in time, will try again");
                    break;
                }
            }
        }
        if deleted > 0 {
            info!(?what, deleted, "what was old is gone");
        }
    }
}
