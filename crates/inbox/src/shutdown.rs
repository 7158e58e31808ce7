//! Shutdown: running handlers may finish, known attempts are recorded, all other messages return to the broker.

use relevo_core::inbox::Inbox;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction};
use relevo_core::store::StoreError;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::warn;

use crate::delivery::{DeliveryResult, UnrecordedFailure};
use crate::runtime::{ConsumerError, ConsumerRuntime};

impl<I: Inbox + 'static> ConsumerRuntime<I>
where
    I::Transaction: 'static,
{
    /// Waits for running handlers within the grace period and records the attempts of messages that have failed before.
    /// Then it returns all other messages to the broker and releases the lanes.
    pub(crate) async fn shut_down(&mut self) -> Result<(), ConsumerError> {
        self.receiving = None;
        // The call is not continued after the loop ended, and other members would wait for its locks in the store.
        // `leave` below releases the lanes, whatever the outcome of the call.
        self.lane_call = None;
        self.stop_work.cancel();
        self.worker.close_permits();
        let end = Instant::now() + self.worker.config.shutdown_grace;
        let finished = self.wait_for_workers(end).await;
        // Handlers that still run are dropped together with their transactions. This counts no attempt and no start.
        self.workers.shutdown().await;
        // Before messages return to the broker: the member that receives them would wait for the claims.
        self.worker.end_attempts().await;
        self.record_attempted().await;
        self.acknowledge_rest().await;
        let deadline = self.worker.config.broker_timeout;
        match timeout(deadline, self.consumer.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                warn!(error = %failure.error_chain(), "what is out comes again when the broker notices");
            }
            Err(_) => warn!("the broker did not answer in time: what is out comes again when it notices"),
        }
        self.stop_heartbeat.cancel();
        self.background.shutdown().await;
        self.worker.release_queues().await;
        if let Err(error) = self.worker.store_call(self.worker.inbox.leave(self.owner)).await {
            warn!(
                error = &error as &dyn std::error::Error,
                "lanes were not freed: others have them when the last beat ends"
            );
        }
        finished
    }

    /// Waits for workers and background tasks. Heartbeats continue meanwhile.
    async fn wait_for_workers(&mut self, end: Instant) -> Result<(), ConsumerError> {
        // The remaining task is the heartbeat; the others end on their own once `winding_down` is cancelled.
        while !self.workers.is_empty() || self.background.len() > 1 {
            self.start_acks(Instant::now());
            tokio::select! {
                biased;
                Some(worked) = self.workers.join_next() => self.apply_batch(worked.map_err(ConsumerError::Panicked)?)?,
                settled = self.acks.finished() => self.apply_acks(settled),
                Some(ended) = self.background.join_next() => ended.map_err(ConsumerError::Panicked)??,
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
    async fn record_attempted(&mut self) {
        let end = Instant::now() + self.worker.config.shutdown_grace;
        for (held, mut item) in self.lanes.drain_attempted() {
            if item.unrecorded_failure.is_none() {
                let setback = InboxFailure {
                    action: InboxFailureAction::Retry { after: self.worker.config.outage_backoff_min },
                    attempts: item.attempts,
                    class: "stopped",
                    error: "the process was stopped between two tries".to_owned(),
                    backtrace: None,
                };
                item.unrecorded_failure = Some(UnrecordedFailure { failure: setback, claim: item.claim() });
            }
            match timeout_at(end, self.worker.record_failure(&mut item, held.as_ref())).await {
                Ok(Ok(DeliveryResult::Acknowledge)) => self.acks.push(item, None, &self.worker.config.tracer),
                Ok(Ok(_)) => {} // another worker has the message or its lane, and decides about it
                // A database error for one message does not concern the others.
                Ok(Err(error @ StoreError::Unexpected(_))) => log_lost_attempts(&error),
                Ok(Err(error)) => return log_lost_attempts(&error),
                Err(_) => return,
            }
        }
    }

    async fn acknowledge_rest(&mut self) {
        let end = Instant::now() + self.worker.config.broker_timeout;
        while !self.acks.is_empty() && Instant::now() < end {
            self.start_acks(Instant::now());
            let wake = self.acks.wakes_at().unwrap_or(end).min(end);
            tokio::select! {
                biased;
                settled = self.acks.finished() => self.apply_acks(settled),
                () = sleep_until(wake) => {}
            }
        }
    }
}

fn log_lost_attempts(error: &StoreError) {
    warn!(error = error as &dyn std::error::Error, "attempts of messages that were begun are forgotten");
}
