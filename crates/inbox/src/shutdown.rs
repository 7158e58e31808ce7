//! Shutdown: running handlers may finish within the grace period, open claims are released, and all other messages
//! return to the broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, QueueClaim, classes};
use relevo_core::inbox::{DedupId, Inbox};
use relevo_core::store::StoreError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;
use uuid::Uuid;

use crate::delivery::{DeliveryResult, UnrecordedFailure};
use crate::runtime::{ConsumerError, ConsumerRuntime};
use crate::worker::Worker;

impl<I: Inbox> ConsumerRuntime<I> {
    /// Waits for running handlers within the grace period and records the attempts of messages that have failed before.
    /// Then it returns all other messages to the broker and releases the lanes.
    pub(crate) async fn shut_down(&mut self) -> Result<(), ConsumerError> {
        self.receiver.call = None;
        // The call is not continued after the loop ended, and other members would wait for its locks in the store.
        // `leave` below releases the lanes, whatever the outcome of the call.
        self.leases.call = None;
        self.background.stop_work.cancel();
        self.worker.close_permits();
        let end = Instant::now() + self.worker.config.shutdown_grace;
        let finished = self.wait_for_workers(end).await;
        // Handlers that still run are dropped together with their transactions. This counts no attempt and no start.
        self.workers.shutdown().await;
        // Before messages return to the broker: the member that receives them would wait for the claims.
        let worker = Arc::clone(&self.worker);
        self.while_settling(worker.end_attempts()).await;
        self.record_attempted().await;
        self.acknowledge_rest().await;
        let broker_timeout = self.worker.config.broker_timeout;
        match timeout(broker_timeout, self.consumer.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                warn!(error = %failure.error_chain(), "closing the consumer failed; the broker redelivers outstanding messages later");
            }
            Err(_) => warn!("closing the consumer timed out; the broker redelivers outstanding messages later"),
        }
        self.background.stop_heartbeat.cancel();
        self.background.tasks.shutdown().await;
        self.worker.release_queues().await;
        if let Err(error) = self.worker.store_call(self.worker.inbox.leave(self.owner)).await {
            warn!(
                error = &error as &dyn std::error::Error,
                "lanes not released; other members can take them when the last heartbeat expires"
            );
        }
        finished
    }

    /// Waits for workers and background tasks. Heartbeats continue meanwhile.
    async fn wait_for_workers(&mut self, end: Instant) -> Result<(), ConsumerError> {
        // The remaining task is the heartbeat; the others end on their own once `stop_work` is cancelled.
        while !self.workers.is_empty() || self.background.tasks.len() > 1 {
            self.start_acks(Instant::now());
            tokio::select! {
                biased;
                Some(batch) = self.workers.join_next() => self.apply_batch(batch.map_err(ConsumerError::Panicked)?)?,
                settled = self.acks.finished() => self.apply_acks(settled),
                Some(ended) = self.background.tasks.join_next() => ended.map_err(ConsumerError::Panicked)??,
                () = sleep_until(end) => {
                    warn!(running = self.workers.len(), "grace period is over, running handlers dropped");
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
        let worker = Arc::clone(&self.worker);
        for (lease, mut delivery) in self.lanes.drain_attempted() {
            if delivery.unrecorded_failure.is_none() {
                let failure = InboxFailure {
                    action: InboxFailureAction::Retry { after: worker.config.outage_backoff_min },
                    attempts: delivery.message.attempts,
                    class: classes::STOPPED,
                    error: "the process was stopped between two attempts".to_owned(),
                    backtrace: None,
                };
                delivery.unrecorded_failure = Some(UnrecordedFailure { failure, claim: delivery.claim() });
            }
            let record = worker.record_failure(&mut delivery, lease.as_ref());
            match self.while_settling(timeout_at(end, record)).await {
                Ok(Ok(DeliveryResult::Acknowledge)) => self.acks.push(delivery, None, &worker.config),
                Ok(Ok(_)) => {} // another worker has the message or its lane, and decides about it
                // A database error for one message does not concern the others.
                Ok(Err(error @ (StoreError::Unexpected(_) | StoreError::Busy { .. }))) => log_lost_attempts(&error),
                Ok(Err(error)) => return log_lost_attempts(&error),
                Err(_) => return,
            }
        }
    }

    /// Waits for the future while acknowledgements continue. A call that is not polled could hold a lock that other
    /// consumers of the broker need.
    async fn while_settling<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            self.start_acks(Instant::now());
            tokio::select! {
                biased;
                settled = self.acks.finished() => self.apply_acks(settled),
                result = &mut future => return result,
            }
        }
    }

    /// Settles finished deliveries within the timeout of a broker call. Calls that are still in progress then are
    /// dropped, because closing the consumer could wait for them.
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
        self.acks.abandon_calls();
    }
}

fn log_lost_attempts(error: &StoreError) {
    warn!(error = error as &dyn std::error::Error, "attempts not recorded; a redelivery counts them from zero");
}

/// Attempts and claims that this process has begun and not ended. At shutdown it releases them, so that other members
/// need not wait until they expire.
#[derive(Debug, Default)]
pub(crate) struct OpenClaims(Mutex<ClaimsInProgress>);

#[derive(Debug, Default)]
struct ClaimsInProgress {
    /// Live messages whose start is recorded in the store, each with the claim of its call.
    attempts: BTreeMap<DedupId, Option<CallClaim>>,
    /// Claimed retry queues.
    queues: BTreeMap<Uuid, QueueClaim>,
}

impl OpenClaims {
    pub(crate) fn add_attempt(&self, id: DedupId, claim: Option<CallClaim>) {
        self.0.lock().attempts.insert(id, claim);
    }

    /// Removes an attempt that ended, successfully or not.
    pub(crate) fn remove_attempt(&self, id: DedupId) {
        self.0.lock().attempts.remove(&id);
    }

    pub(crate) fn add_queue(&self, claim: &QueueClaim) {
        self.0.lock().queues.insert(claim.token, claim.clone());
    }

    /// Removes a queue whose worker ended, successfully or not.
    pub(crate) fn remove_queue(&self, token: Uuid) {
        self.0.lock().queues.remove(&token);
    }
}

impl<I: Inbox> Worker<I> {
    /// Ends the attempts of dropped handlers, so that other members can begin them before the claims of their calls
    /// expire.
    async fn end_attempts(self: &Arc<Self>) {
        let mut calls = JoinSet::new();
        let attempts = std::mem::take(&mut self.open_claims.0.lock().attempts);
        for (id, claim) in attempts {
            let worker = Arc::clone(self);
            calls.spawn(async move { worker.release(|| worker.inbox.end_attempt(id, claim)).await });
        }
        while calls.join_next().await.is_some() {}
    }

    /// Releases the claims of retry queues in the same way.
    async fn release_queues(self: &Arc<Self>) {
        let mut calls = JoinSet::new();
        let queues = std::mem::take(&mut self.open_claims.0.lock().queues);
        for claim in queues.into_values() {
            let worker = Arc::clone(self);
            calls.spawn(async move { worker.release(|| worker.inbox.release_queue(&claim)).await });
        }
        while calls.join_next().await.is_some() {}
    }

    /// Releases a claim, with retries within the timeout of one call. A dropped transaction can hold its locks until
    /// its last statement ends. Each release runs in its own task, so that it does not delay the others.
    async fn release<F>(&self, release: impl Fn() -> F)
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let end = Instant::now() + self.config.store_timeout;
        if let Err(error) = self.retry_store_call(end, &CancellationToken::new(), release).await {
            warn!(
                error = &error as &dyn std::error::Error,
                "claim not released at shutdown; other members can take it when it expires"
            );
        }
    }
}
