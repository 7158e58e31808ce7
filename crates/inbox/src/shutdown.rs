//! Shutdown: running handlers may finish, known attempts are recorded, all other messages return to the broker.

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
    /// Waits for running handlers within the grace period and records the attempts of messages that have failed before.
    /// Then it returns all other messages to the broker and releases the lanes.
    pub(crate) async fn finish(&mut self) -> Result<(), RuntimeError> {
        self.receiving = None;
        // The call is not continued after the loop ended, and other members would wait for its locks in the store.
        // `leave` below releases the lanes, whatever the outcome of the call.
        self.chore = None;
        self.winding_down.cancel();
        self.work.close_seats();
        let end = Instant::now() + self.work.config.grace;
        let finished = self.wait(end).await;
        // Handlers that still run are dropped together with their transactions. This counts no attempt and no start.
        self.workers.shutdown().await;
        // Before messages return to the broker: the member that receives them would wait for the claims.
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

    /// Waits for workers and background tasks. Heartbeats continue meanwhile.
    async fn wait(&mut self, end: Instant) -> Result<(), RuntimeError> {
        // The remaining task is the heartbeat; the others end on their own once `winding_down` is cancelled.
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

    /// Records failed messages that wait in memory in the retry table with their attempts; a redelivery would lose the
    /// count.
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
                Ok(Ok(_)) => {} // another worker has the message or its lane, and decides about it
                // A database error for one message does not concern the others.
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
