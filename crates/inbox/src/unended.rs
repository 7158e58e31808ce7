//! Open attempts and claims of this process. At shutdown it releases them, so that other members need not wait until
//! they expire.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::retries::ClaimedQueue;
use relevo_core::inbox::{DedupId, Inbox};
use relevo_core::store::StoreError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::warn;
use uuid::Uuid;

use crate::work::Worker;

/// Attempts and claims that this process has begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct OpenClaims(Mutex<ClaimsInProgress>);

#[derive(Debug, Default)]
struct ClaimsInProgress {
    /// Live messages whose start is recorded in the store, each with the claim of its call.
    attempts: BTreeMap<DedupId, Option<CallClaim>>,
    /// Claimed retry queues, without their messages.
    queues: BTreeMap<Uuid, ClaimedQueue>,
}

impl OpenClaims {
    pub(crate) fn add_attempt(&self, entry: DedupId, claim: Option<CallClaim>) {
        self.0.lock().attempts.insert(entry, claim);
    }

    /// Forgets an attempt that ended, successfully or not.
    pub(crate) fn remove_attempt(&self, entry: DedupId) {
        self.0.lock().attempts.remove(&entry);
    }

    pub(crate) fn add_queue(&self, due: &ClaimedQueue) {
        let bare = ClaimedQueue { queue: due.queue.clone(), token: due.token, messages: Vec::new() };
        self.0.lock().queues.insert(due.token, bare);
    }

    /// Forgets a queue whose worker ended, successfully or not.
    pub(crate) fn remove_queue(&self, token: Uuid) {
        self.0.lock().queues.remove(&token);
    }

    pub(crate) fn take_attempts(&self) -> BTreeMap<DedupId, Option<CallClaim>> {
        std::mem::take(&mut self.0.lock().attempts)
    }

    pub(crate) fn take_queues(&self) -> BTreeMap<Uuid, ClaimedQueue> {
        std::mem::take(&mut self.0.lock().queues)
    }
}

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
    /// Ends the attempts of dropped handlers, so that other members can begin them before the claims of their calls
    /// expire.
    pub(crate) async fn end_attempts(self: &Arc<Self>) {
        let mut tells = JoinSet::new();
        for (entry, claim) in self.open_claims.take_attempts() {
            let work = Arc::clone(self);
            tells.spawn(async move { work.call_until_timeout(|| work.inbox.end_attempt(entry, claim)).await });
        }
        while tells.join_next().await.is_some() {}
    }

    /// Releases the claims of retry queues in the same way.
    pub(crate) async fn release_queues(self: &Arc<Self>) {
        let mut tells = JoinSet::new();
        for due in self.open_claims.take_queues().into_values() {
            let work = Arc::clone(self);
            tells.spawn(async move { work.call_until_timeout(|| work.inbox.release_queue(&due)).await });
        }
        while tells.join_next().await.is_some() {}
    }

    /// Reports an end to the store, retrying within the timeout of one call. A dropped transaction can hold its locks
    /// until its last statement ends. Each report runs in its own task, so that it does not delay the others.
    async fn call_until_timeout<F>(&self, tell: impl Fn() -> F)
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let end = Instant::now() + self.config.store_timeout;
        let error = loop {
            match self.store_call_until(end, tell()).await {
                Ok(()) => return,
                Err(error) if error.is_retryable() && Instant::now() + self.config.busy_delay < end => {}
                Err(error) => break error,
            }
            sleep(self.config.busy_delay).await;
        };
        warn!(
            error = &error as &dyn std::error::Error,
            "what was dropped was not given back: others have it when its claim ends"
        );
    }
}
