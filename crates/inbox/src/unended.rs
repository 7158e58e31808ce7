//! Open attempts and claims of this process. At shutdown it releases them, so that other members need not wait until
//! they expire.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use relevo_core::inbox::{Claim, Due, Entry, Inbox};
use relevo_core::store::StoreError;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::warn;
use uuid::Uuid;

use crate::work::Work;

/// Attempts and claims that this process has begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Unended(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Live messages whose start is recorded in the store, each with the claim of its call.
    handlings: BTreeMap<Entry, Option<Claim>>,
    /// Claimed retry queues, without their messages.
    queues: BTreeMap<Uuid, Due>,
}

impl Unended {
    pub(crate) fn handling(&self, entry: Entry, claim: Option<Claim>) {
        self.lock().handlings.insert(entry, claim);
    }

    /// Forgets an attempt that ended, successfully or not.
    pub(crate) fn handled(&self, entry: Entry) {
        self.lock().handlings.remove(&entry);
    }

    pub(crate) fn claimed(&self, due: &Due) {
        let bare = Due { queue: due.queue.clone(), token: due.token, messages: Vec::new() };
        self.lock().queues.insert(due.token, bare);
    }

    /// Forgets a queue whose worker ended, successfully or not.
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
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Inbox + 'static> Work<I>
where
    I::Transaction: 'static,
{
    /// Ends the attempts of dropped handlers, so that other members can begin them before the claims of their calls
    /// expire.
    pub(crate) async fn end_handlings(self: &Arc<Self>) {
        let mut tells = JoinSet::new();
        for (entry, claim) in self.unended.take_handlings() {
            let work = Arc::clone(self);
            tells.spawn(async move { work.told(|| work.inbox.ended(entry, claim)).await });
        }
        while tells.join_next().await.is_some() {}
    }

    /// Releases the claims of retry queues in the same way.
    pub(crate) async fn release_queues(self: &Arc<Self>) {
        let mut tells = JoinSet::new();
        for due in self.unended.take_queues().into_values() {
            let work = Arc::clone(self);
            tells.spawn(async move { work.told(|| work.inbox.release(&due)).await });
        }
        while tells.join_next().await.is_some() {}
    }

    /// Reports an end to the store, retrying within the timeout of one call. A dropped transaction can hold its locks
    /// until its last statement ends. Each report runs in its own task, so that it does not delay the others.
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
