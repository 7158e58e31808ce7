//! The operator ports: destinations, dead letters, inspection, consumers and replays.

mod examine;
pub(crate) mod replay_source;
mod sample;
mod search;
mod verify;
mod why;

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetter, DeadLetterAdmin, DeadLetterFilter, MarkRequest};
use relevo_core::finding::Finding;
use relevo_core::inbox::admin::{
    ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, Operate, RemoveOutcome,
};
use relevo_core::inbox::dead_letters::{self as inbox_letters, DeadLetterState};
use relevo_core::inbox::replays::{EnqueueOutcome, Replay, ReplayBatch, ReplayPlan};
use relevo_core::outbox::admin::{OutboxAdmin, StartFrom};
use relevo_core::outbox::inspect::{Backlog, DestinationInfo, KeyReport, MessageDetails, OutboxInspector, ShardInfo};
use relevo_core::outbox::search::{MessageFilter, SearchPage, TimeRange, VerifyReport};
use relevo_core::store::StoreError;

use crate::queries::inbox::{self, members, replays};
use crate::queries::status::{self, Progress};
use crate::queries::{consumers, dead_letters, destinations, retention};
use crate::store::Store;

#[async_trait]
impl OutboxAdmin for Store {
    async fn add_destination(&self, shards: u16, start: StartFrom) -> Result<bool, StoreError> {
        self.change(async |c| destinations::add(c, &self.destination, shards, start).await).await
    }

    async fn remove_destination(&self) -> Result<bool, StoreError> {
        self.change(async |c| destinations::remove(c, &self.destination).await).await
    }

    async fn switch(&self, on: bool) -> Result<bool, StoreError> {
        self.change(async |c| destinations::set_enabled(c, &self.destination, on).await).await
    }

    async fn regroup(&self, shards: u16) -> Result<bool, StoreError> {
        self.change(async |c| destinations::reshard(c, &self.destination, shards).await).await
    }
}

impl Store {
    async fn mark_dead_letters(&self, state: &str, request: &MarkRequest) -> Result<u64, StoreError> {
        if request.dry_run {
            return self.inspect(async |c| dead_letters::count_unmarked(c, &self.destination, request).await).await;
        }
        self.change(async |c| dead_letters::mark(c, &self.destination, state, request).await).await
    }

    async fn mark_inbox_dead_letters(
        &self,
        state: DeadLetterState,
        request: &inbox_letters::MarkRequest,
    ) -> Result<u64, StoreError> {
        if request.dry_run {
            return self.inspect(async |c| inbox::dead_letters::count(c, &request.filter).await).await;
        }
        self.change(async |c| inbox::dead_letters::mark(c, state, request).await).await
    }
}

#[async_trait]
impl DeadLetterAdmin for Store {
    async fn list_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        self.inspect(async |c| dead_letters::list(c, &self.destination, filter, limit).await).await
    }

    async fn redrive(&self, request: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_dead_letters("redriving", request).await
    }

    async fn discard(&self, request: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_dead_letters("discarding", request).await
    }
}

#[async_trait]
impl OutboxInspector for Store {
    async fn destinations(&self) -> Result<Vec<DestinationInfo>, StoreError> {
        self.inspect(async |c| destinations::list(c).await).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.inspect(async |c| verify::backlog(c, &self.destination).await).await
    }

    async fn search(&self, filter: &MessageFilter, limit: usize, budget: Duration) -> Result<SearchPage, StoreError> {
        self.inspect(async |c| search::search(c, &self.destination, filter, limit, budget).await).await
    }

    async fn message(&self, id: MessageId) -> Result<Option<MessageDetails>, StoreError> {
        self.inspect(async |c| status::search::show(c, &self.destination, id).await).await
    }

    async fn key_facts(&self, key: &str) -> Result<KeyReport, StoreError> {
        self.inspect(async |c| why::why(c, &self.destination, key).await).await
    }

    async fn shards(&self) -> Result<Vec<ShardInfo>, StoreError> {
        self.inspect(async |c| {
            let progress = Progress::load(c, &self.destination).await?;
            status::key::shards(c, &self.destination, progress.shards).await
        })
        .await
    }

    async fn verify(&self, range: TimeRange) -> Result<VerifyReport, StoreError> {
        self.inspect(async |c| verify::verify(c, &self.destination, range).await).await
    }

    async fn retention(&self) -> Result<Duration, StoreError> {
        self.inspect(async |c| retention::retention(c).await).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.with_timeout(examine::examine(&self.file)).await
    }
}

#[async_trait]
impl Operate for Store {
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError> {
        self.inspect(async |c| consumers::list(c, None).await).await
    }

    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError> {
        self.inspect(async |c| consumers::details(c, name, limit).await).await
    }

    async fn set_control(
        &self,
        consumer: &str,
        lane: Option<&str>,
        control: ConsumerControl,
    ) -> Result<bool, StoreError> {
        self.change(async |c| consumers::set_control(c, consumer, lane, control).await).await
    }

    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError> {
        self.change(async |c| members::remove_consumer(c, consumer).await).await
    }

    async fn list_dead_letters(
        &self,
        filter: &inbox_letters::DeadLetterFilter,
        limit: usize,
    ) -> Result<Vec<inbox_letters::DeadLetter>, StoreError> {
        self.inspect(async |c| inbox::dead_letters::list(c, filter, limit).await).await
    }

    async fn redrive(&self, request: &inbox_letters::MarkRequest) -> Result<u64, StoreError> {
        self.mark_inbox_dead_letters(DeadLetterState::Redriven, request).await
    }

    async fn archive(&self, request: &inbox_letters::MarkRequest) -> Result<u64, StoreError> {
        self.mark_inbox_dead_letters(DeadLetterState::Discarded, request).await
    }

    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError> {
        self.inspect(async |c| consumers::find_message(c, id).await).await
    }

    async fn create_replay(&self, plan: &ReplayPlan) -> Result<u32, StoreError> {
        self.change(async |c| replays::create(c, plan).await).await
    }

    async fn enqueue_replay(
        &self,
        consumer: &str,
        number: u32,
        batch: ReplayBatch<'_>,
    ) -> Result<EnqueueOutcome, StoreError> {
        self.change(async |c| replays::enqueue(c, consumer, number, batch).await).await
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        self.change(async |c| replays::stop(c, consumer, number).await).await
    }

    async fn resume_replay(&self, consumer: &str, number: u32, more_dead_letters: u64) -> Result<bool, StoreError> {
        self.change(async |c| replays::resume(c, consumer, number, more_dead_letters).await).await
    }

    async fn list_replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        self.inspect(async |c| replays::list(c, consumer).await).await
    }
}
