//! The end of a run: all processes work without faults until nothing is left to do.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use crate::consumers::GROUPS;
use crate::operator::redrive;
use crate::relays::LEASE;
use crate::run::{DESTINATION, Run};

/// If nothing has changed for this long, nothing will.
const STALLED_AFTER: Duration = Duration::from_mins(2);
/// A consumer that is idle for this long has received all messages.
const IDLE_AFTER: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

impl Run {
    /// Lets all processes work without faults until nothing waits or nothing changes. Returns how long that took.
    pub(crate) async fn drain(&mut self) -> Result<Duration> {
        let start = Instant::now();
        for process in self.relays.iter_mut().chain(&mut self.consumers) {
            process.thaw(start + LEASE * 2)?;
            if process.has_ended() {
                process.start_again()?;
            }
        }
        self.drain_outbox().await?;
        if !self.consumers.is_empty() {
            self.drain_inboxes().await?;
        }
        Ok(start.elapsed())
    }

    async fn drain_outbox(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let backlog = self.database.operator().await?.sample_destination(DESTINATION).await?.backlog;
            if backlog.pending == 0 && backlog.parked == 0 {
                return Ok(());
            }
            if start.elapsed() > STALLED_AFTER {
                bail!("{} pending and {} parked messages do not arrive", backlog.pending, backlog.parked);
            }
            self.pause().await?;
        }
    }

    /// Waits until each consumer has handled all messages and its queue is empty. Stuck messages are left to the
    /// oracle.
    async fn drain_inboxes(&mut self) -> Result<()> {
        let ledger = self.database.ledger();
        let (mut last, mut changed_at) = ((0, 0, Vec::new()), Instant::now());
        loop {
            let committed = self.database.committed().await?;
            let mut counts = Vec::new();
            for group in GROUPS {
                ledger.cure(group.name).await?;
                redrive(&ledger, group.name).await?;
                counts.push(self.database.done(group.name).await?);
            }
            let queued = self.broker.queued(&GROUPS).await?;
            if queued == 0 && counts.iter().all(|count| *count == (committed, committed)) {
                return Ok(());
            }
            let is_idle = queued == 0 && counts.iter().all(|(done, known)| done == known);
            let now = (queued, committed, counts);
            if last != now {
                (last, changed_at) = (now, Instant::now());
            }
            if changed_at.elapsed() > if is_idle { IDLE_AFTER } else { STALLED_AFTER } {
                return Ok(());
            }
            self.pause().await?;
        }
    }

    async fn pause(&mut self) -> Result<()> {
        for process in self.relays.iter_mut().chain(&mut self.consumers) {
            process.expect_alive()?;
        }
        sleep(POLL_INTERVAL).await;
        Ok(())
    }
}
