//! The end: what runs may finish, what was begun is kept, the rest goes back at once.

use relevo_core::inbox::{Inbox, Setback, Stop};
use relevo_core::store::StoreError;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::warn;

use crate::item::{Decided, Ended};
use crate::runtime::{Runtime, RuntimeError};

impl<I: Inbox + 'static> Runtime<I>
where
    I::Transaction: 'static,
{
    /// Waits for what runs, within the grace period; keeps what is known of messages that were begun; gives everything else
    /// back to the broker, and the lanes to other members.
    pub(crate) async fn finish(&mut self) -> Result<(), RuntimeError> {
        self.receiving = None;
        // Nobody goes on with it, and what it holds at the store everybody would wait for. The lanes are freed in the end,
        // whatever became of it.
        self.chore = None;
        self.winding_down.cancel();
        self.work.close_seats();
        let end = Instant::now() + self.work.config.grace;
        let finished = self.wait(end).await;
        // Whatever still runs is dropped, and its transaction with it: that costs no attempt, and no start.
        self.workers.shutdown().await;
        // Before anything of it goes back to the broker: whoever gets it would wait for the claims.
        self.work.end_handlings().await;
        self.keep_begun().await;
        self.settle_rest().await;
        let deadline = self.work.config.broker_deadline;
        match timeout(deadline, self.consumer.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => warn!(error = %failure.describe(), "what is out comes again when the broker notices"),
            Err(_) => warn!("the broker did not answer in time: what is out comes again when it notices"),
        }
        self.resting.cancel();
        self.parts.shutdown().await;
        self.work.release_queues().await;
        if let Err(error) = self.work.ask(self.work.inbox.leave(self.owner)).await {
            warn!(
                error = &error as &dyn std::error::Error,
                "lanes were not freed: others have them when the last beat ends"
            );
        }
        finished
    }

    /// The heart goes on beating meanwhile.
    async fn wait(&mut self, end: Instant) -> Result<(), RuntimeError> {
        // The heart is one part; the others end by themselves once they may begin nothing new.
        while !self.workers.is_empty() || self.parts.len() > 1 {
            self.start_settling(Instant::now());
            tokio::select! {
                biased;
                Some(worked) = self.workers.join_next() => self.worked(worked.map_err(RuntimeError::Died)?)?,
                settled = self.settling.ended() => self.settled(settled),
                Some(ended) = self.parts.join_next() => ended.map_err(RuntimeError::Died)??,
                () = sleep_until(end) => {
                    warn!(running = self.workers.len(), "the grace period is over, handlers are stopped");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Messages that failed and wait in memory go to the retry table with their attempts, which a redelivery would forget.
    async fn keep_begun(&mut self) {
        let end = Instant::now() + self.work.config.grace;
        for (held, mut item) in self.lanes.take_begun() {
            if item.decided.is_none() {
                let setback = Setback {
                    stop: Stop::Retry { after: self.work.config.outage_min },
                    attempts: item.attempts,
                    class: "stopped",
                    error: "the process was stopped between two tries".to_owned(),
                    backtrace: None,
                };
                item.decided = Some(Decided { setback, claim: item.claim() });
            }
            match timeout_at(end, self.work.keep(&mut item, held.as_ref())).await {
                Ok(Ok(Ended::Acknowledge)) => self.settling.push(item, None, &self.work.config.traces),
                Ok(Ok(_)) => {} // another has it, or its lane: what it does with it counts
                // One that the database refuses says nothing of the others.
                Ok(Err(error @ StoreError::Broken(_))) => forgotten(&error),
                Ok(Err(error)) => return forgotten(&error),
                Err(_) => return,
            }
        }
    }

    async fn settle_rest(&mut self) {
        let end = Instant::now() + self.work.config.broker_deadline;
        while !self.settling.is_empty() && Instant::now() < end {
            self.start_settling(Instant::now());
            let wake = self.settling.wakes_at().unwrap_or(end).min(end);
            tokio::select! {
                biased;
                settled = self.settling.ended() => self.settled(settled),
                () = sleep_until(wake) => {}
            }
        }
    }
}

fn forgotten(error: &StoreError) {
    warn!(error = error as &dyn std::error::Error, "attempts of messages that were begun are forgotten");
}
