//! Operator commands for consumers.

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::inbox::admin::{
    ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, Operate, RemoveOutcome, Trace,
};
use relevo_core::inbox::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterState, MarkRequest};
use relevo_core::inbox::replays::{EnqueueOutcome, Replay, ReplayBatch, ReplayPlan};
use relevo_core::store::StoreError;

use super::{dead, members, replays, show};
use crate::connection::Durability;
use crate::store::Store;

/// Reads the file. A read waits for no writer.
macro_rules! look {
    ($store:expr, $session:ident, $work:expr) => {
        $store
            .with_timeout(async {
                let mut $session = $store.read_connection.acquire().await?;
                let seen = $work.await?;
                $session.release();
                Ok(seen)
            })
            .await
    };
}

/// Changes the file in one transaction that survives a power failure.
macro_rules! change {
    ($store:expr, $session:ident, $work:expr) => {
        $store
            .with_timeout(async {
                let mut $session = $store.write_connection.begin(Durability::Full).await?;
                let done = $work.await?;
                $session.commit().await?;
                Ok(done)
            })
            .await
    };
}

impl Store {
    async fn mark_inbox_dead_letters(&self, fate: DeadLetterState, mark: &MarkRequest) -> Result<u64, StoreError> {
        if mark.dry_run {
            return look!(self, session, dead::count_dead_letters(&mut session, &mark.filter));
        }
        change!(self, session, dead::mark_dead_letters(&mut session, fate, mark))
    }
}

#[async_trait]
impl Operate for Store {
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError> {
        look!(self, session, show::consumers(&mut session, None))
    }

    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError> {
        look!(self, session, show::consumer_details(&mut session, name, limit))
    }

    async fn set_control(
        &self,
        consumer: &str,
        lane: Option<&str>,
        order: ConsumerControl,
    ) -> Result<bool, StoreError> {
        change!(self, session, show::set_control(&mut session, consumer, lane, order))
    }

    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError> {
        change!(self, session, members::remove_consumer(&mut session, consumer))
    }

    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        look!(self, session, dead::list_dead_letters(&mut session, filter, limit))
    }

    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_inbox_dead_letters(DeadLetterState::Redriven, mark).await
    }

    async fn archive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_inbox_dead_letters(DeadLetterState::Discarded, mark).await
    }

    async fn trace(&self, id: MessageId) -> Result<Vec<Trace>, StoreError> {
        look!(self, session, show::traces(&mut session, id))
    }

    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError> {
        look!(self, session, show::find_message(&mut session, id))
    }

    async fn create_replay(&self, plan: &ReplayPlan) -> Result<u32, StoreError> {
        change!(self, session, replays::create(&mut session, plan))
    }

    async fn enqueue_replay(
        &self,
        consumer: &str,
        number: u32,
        portion: ReplayBatch<'_>,
    ) -> Result<EnqueueOutcome, StoreError> {
        change!(self, session, replays::enqueue(&mut session, consumer, number, portion))
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        change!(self, session, replays::stop(&mut session, consumer, number))
    }

    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError> {
        change!(self, session, replays::resume(&mut session, consumer, number, dead_more))
    }

    async fn list_replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        look!(self, session, replays::list(&mut session, consumer))
    }
}
