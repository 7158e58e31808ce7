//! What this process has begun and not ended: when it is stopped in the middle of that, others need not wait for its claims.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use relevo_core::inbox::{Claim, Due, Entry, Inbox};
use relevo_core::store::StoreError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::warn;
use uuid::Uuid;

use crate::work::Work;

/// What this process has begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Unended(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Live messages whose start the store has noted, each with the claim of its call.
    handlings: BTreeMap<Entry, Option<Claim>>,
    /// Queues of the retry table, without their messages.
    queues: BTreeMap<Uuid, Due>,
}

impl Unended {
    pub(crate) fn handling(&self, entry: Entry, claim: Option<Claim>) {
        self.lock().handlings.insert(entry, claim);
    }

    /// It ended, in whatever way.
    pub(crate) fn handled(&self, entry: Entry) {
        self.lock().handlings.remove(&entry);
    }

    pub(crate) fn claimed(&self, due: &Due) {
        let bare = Due { queue: due.queue.clone(), token: due.token, messages: Vec::new() };
        self.lock().queues.insert(due.token, bare);
    }

    /// Its worker has ended, in whatever way.
    pub(crate) fn worked(&self, token: Uuid) {
        self.lock().queues.remove(&token);
    }

    pub(crate) fn take_handlings(&self) -> BTreeMap<Entry, Option<Claim>> {
        std::mem::take(&mut self.lock().handlings)
    }

    pub(crate) fn take_queues(&self) -> BTreeMap<Uuid, Due> {
        std::mem::take(&mut self.lock().queues)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Inbox + 'static> Work<I>
where
    I::Transaction: 'static,
{
    /// Messages whose handlers were dropped can be begun by others, who need not wait until the claims of their calls end.
    pub(crate) async fn end_handlings(self: &Arc<Self>) {
        let mut tells = JoinSet::new();
        for (entry, claim) in self.unended.take_handlings() {
            let work = Arc::clone(self);
            tells.spawn(async move { work.told(|| work.inbox.ended(entry, claim)).await });
        }
        while tells.join_next().await.is_some() {}
    }

    /// The same for queues of the retry table.
    pub(crate) async fn release_queues(self: &Arc<Self>) {
        let mut tells = JoinSet::new();
        for due in self.unended.take_queues().into_values() {
            let work = Arc::clone(self);
            tells.spawn(async move { work.told(|| work.inbox.release(&due)).await });
        }
        while tells.join_next().await.is_some() {}
    }

    /// Tells the store that something ended, for as long as one call may take: a transaction that was dropped is in the way
    /// until its last statement ends, and keeps nothing else from being told.
    async fn told<F>(&self, tell: impl Fn() -> F)
    where
        F: Future<Output = Result<(), StoreError>>,
    {
        let end = Instant::now() + self.config.store_deadline;
        let error = loop {
            match self.ask_until(end, tell()).await {
                Ok(()) => return,
                Err(error) if error.is_passing() && Instant::now() + self.config.busy_pause < end => {}
                Err(error) => break error,
            }
            sleep(self.config.busy_pause).await;
        };
        warn!(
            error = &error as &dyn std::error::Error,
            "what was dropped was not given back: others have it when its claim ends"
        );
    }
}
