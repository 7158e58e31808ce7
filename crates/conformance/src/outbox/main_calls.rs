//! Shortcuts for tests that operate the destination [`MAIN`] only.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterSummary, MarkAction, MarkRequest};
use relevo_core::finding::Finding;
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::admin::DestinationChange;
use relevo_core::outbox::inspect::{Backlog, DestinationInfo, MessageDetails, ShardInfo};
use relevo_core::outbox::sample::{DestinationSample, OutboxSample};
use relevo_core::outbox::search::{MessageFilter, OutboxSearch, SearchPage, TimeRange, VerifyReport};
use relevo_core::outbox::why::{KeyReport, explain};
use relevo_core::store::StoreError;

use crate::dead_letters::DeadLetterCalls;
use crate::outbox::harness::MAIN;

/// The operator ports for [`MAIN`]. A test imports this trait instead of the ports.
#[async_trait]
pub trait MainCalls: OutboxOperator {
    /// See `OutboxInspector::destinations`.
    async fn destinations(&self) -> Result<Vec<DestinationInfo>, StoreError> {
        relevo_core::outbox::inspect::OutboxInspector::destinations(self).await
    }

    /// See `OutboxInspector::shards`.
    async fn shards(&self) -> Result<Vec<ShardInfo>, StoreError> {
        relevo_core::outbox::inspect::OutboxInspector::shards(self, MAIN).await
    }

    /// See `OutboxInspector::message`.
    async fn message(&self, id: MessageId) -> Result<Option<MessageDetails>, StoreError> {
        relevo_core::outbox::inspect::OutboxInspector::message(self, MAIN, id).await
    }

    /// Explains the facts of `OutboxInspector::key_facts`.
    async fn key_report(&self, key: &str) -> Result<KeyReport, StoreError> {
        self.key_facts(MAIN, key).await.map(explain)
    }

    /// See `OutboxInspector::examine`.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        relevo_core::outbox::inspect::OutboxInspector::examine(self).await
    }

    /// See `OutboxSearch::search`.
    async fn search(&self, filter: &MessageFilter, limit: usize, budget: Duration) -> Result<SearchPage, StoreError> {
        search_of(self.as_search()).search(MAIN, filter, limit, budget).await
    }

    /// See `OutboxSearch::verify`.
    async fn verify(&self, range: TimeRange) -> Result<VerifyReport, StoreError> {
        search_of(self.as_search()).verify(MAIN, range).await
    }

    /// See `OutboxMonitor::sample_destination`.
    async fn sample_destination(&self) -> Result<DestinationSample, StoreError> {
        relevo_core::outbox::sample::OutboxMonitor::sample_destination(self, MAIN).await
    }

    /// See `OutboxMonitor::sample_outbox`.
    async fn sample_outbox(&self) -> Result<OutboxSample, StoreError> {
        relevo_core::outbox::sample::OutboxMonitor::sample_outbox(self).await
    }

    /// The backlog of a sample.
    async fn backlog(&self) -> Result<Backlog, StoreError> {
        MainCalls::sample_destination(self).await.map(|sample| sample.backlog)
    }

    /// See `OutboxAdmin::update_destination`.
    async fn update(&self, change: DestinationChange) -> Result<bool, StoreError> {
        self.update_destination(MAIN, change).await
    }

    /// The first page of dead letters.
    async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<Vec<DeadLetterSummary>, StoreError> {
        self.summaries(filter, 100).await
    }

    /// Marks dead letters and returns how many.
    async fn mark(&self, action: MarkAction, filter: DeadLetterFilter) -> Result<u64, StoreError> {
        let request = MarkRequest {
            filter,
            action,
            dry_run: false,
            rate_per_second: None,
            by: "ana".to_owned(),
            reason: "fixed".to_owned(),
        };
        self.mark_dead_letters(&request).await.map(|report| report.count)
    }
}

impl<T: OutboxOperator + ?Sized> MainCalls for T {}

fn search_of(search: Option<&dyn OutboxSearch>) -> &dyn OutboxSearch {
    search.expect("this store has a search")
}
