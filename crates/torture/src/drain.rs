//! The end of a run: everybody works in peace until nothing is left to do.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

use crate::consumers::GROUPS;
use crate::operator::redrive;
use crate::relays::LEASE;
use crate::stage::{DESTINATION, Stage};

/// What has not moved for so long never will.
const STANDS_STILL: Duration = Duration::from_mins(2);
/// A consumer that has nothing to do for so long has heard of everything that it ever will.
const IS_IDLE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(200);

impl Stage {
    /// Lets everybody work in peace until nothing waits, or nothing moves; says how long that took.
    pub(crate) async fn drain(&mut self) -> Result<Duration> {
        let began = Instant::now();
        for process in self.relays.iter_mut().chain(&mut self.consumers) {
            process.thaw(began + LEASE * 2)?;
            if process.is_gone() {
                process.start_again()?;
            }
        }
        self.drain_outbox().await?;
        if !self.consumers.is_empty() {
            self.drain_inboxes().await?;
        }
        Ok(began.elapsed())
    }

    async fn drain_outbox(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            let backlog = self.database.inspect(DESTINATION).await?.backlog().await?;
            if backlog.pending == 0 && backlog.parked == 0 {
                return Ok(());
            }
            if began.elapsed() > STANDS_STILL {
                bail!("{} pending and {} parked messages do not arrive", backlog.pending, backlog.parked);
            }
            self.rest().await?;
        }
    }

    /// Waits until every consumer is done with everything and its queue is empty. What stands still is left to the judge.
    async fn drain_inboxes(&mut self) -> Result<()> {
        let ledger = self.database.ledger();
        let (mut last, mut moved) = ((0, 0, Vec::new()), Instant::now());
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
                (last, moved) = (now, Instant::now());
            }
            if moved.elapsed() > if is_idle { IS_IDLE } else { STANDS_STILL } {
                return Ok(());
            }
            self.rest().await?;
        }
    }

    async fn rest(&mut self) -> Result<()> {
        for process in self.relays.iter_mut().chain(&mut self.consumers) {
            process.expect_alive()?;
        }
        sleep(LOOK_AGAIN).await;
        Ok(())
    }
}
