//! The operator of the demo: samples the numbers of waiting messages, redrives dead letters of the outbox after a delay,
//! and discards those of shipping.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterAdmin as _, DeadLetterFilter, DeadLetterState, MarkAction, MarkRequest};
use relevo_core::outbox::inspect::OutboxInspector as _;
use relevo_core::outbox::sample::OutboxMonitor as _;
use relevo_store_sqlite as sqlite;
use tokio::time::Instant;

use super::data_dir::{DESTINATION, GROUP};
use super::state::{DemoState, QueueDepths};

/// How long a dead letter waits before the operator redrives it.
const REDRIVE_AFTER: Duration = Duration::from_secs(4);
/// The maximum number of dead letters per call. The demo never has that many.
const LETTERS_MAX: usize = 100;

/// Operates the outbox and the consumer.
pub(crate) struct Operator {
    outbox: sqlite::Operator,
    /// The inbox of shipping.
    consumers: sqlite::Operator,
    state: Arc<DemoState>,
    /// When dead letters were first seen.
    first_seen: BTreeMap<MessageId, Instant>,
}

impl Operator {
    pub(crate) fn new(outbox: sqlite::Operator, consumers: sqlite::Operator, state: Arc<DemoState>) -> Self {
        Self { outbox, consumers, state, first_seen: BTreeMap::new() }
    }

    /// Samples the waiting messages. `lag` is the number of messages at the broker that the consumer has not settled.
    pub(crate) async fn refresh(&mut self, lag: i64) -> Result<()> {
        let backlog = self.outbox.sample_destination(DESTINATION).await?.backlog;
        let (pending, parked, dead) = (backlog.pending, backlog.parked, backlog.dead);
        self.state.set_depths(QueueDepths { pending, parked, dead, lag });
        self.discard_rejected().await
    }

    /// The longest remaining time of a lease.
    pub(crate) async fn lease_remaining(&self) -> Result<Duration> {
        let shards = self.outbox.shards(DESTINATION).await?;
        Ok(shards.iter().map(|shard| shard.lease_remaining).max().unwrap_or_default())
    }

    /// Discards the dead letters of shipping: messages that are not from the shop, such as one from the command line.
    async fn discard_rejected(&self) -> Result<()> {
        let waiting = unmarked(DeadLetterFilter::of_consumer(GROUP));
        for letter in self.consumers.list_dead_letters(&waiting, None, LETTERS_MAX).await?.letters {
            self.state.event(format!("shipping rejects a message that is not an order: {}", letter.error));
            let filter = DeadLetterFilter { ids: vec![letter.id], ..DeadLetterFilter::of_consumer(GROUP) };
            self.consumers.mark_dead_letters(&request(filter, MarkAction::Discard, "not an order")).await?;
        }
        Ok(())
    }

    /// Redrives the dead letters that have waited long enough, until the page takes over.
    pub(crate) async fn redrive_due(&mut self) -> Result<()> {
        if self.state.is_automatic() {
            self.redrive(REDRIVE_AFTER).await?;
        }
        Ok(())
    }

    /// Redrives every dead letter. Returns their number.
    pub(crate) async fn redrive_all(&mut self) -> Result<usize> {
        self.redrive(Duration::ZERO).await
    }

    /// Redrives the dead letters that were first seen this long ago.
    async fn redrive(&mut self, after: Duration) -> Result<usize> {
        let waiting = unmarked(DeadLetterFilter::of_destination(DESTINATION));
        let dead = self.outbox.list_dead_letters(&waiting, None, LETTERS_MAX).await?.letters;
        let first_seen = std::mem::take(&mut self.first_seen);
        let now = Instant::now();
        let mut redriven = 0;
        for letter in dead {
            let id = letter.id;
            let since = first_seen.get(&id).copied().unwrap_or(now);
            if since + after > now {
                self.first_seen.insert(id, since);
                continue;
            }
            let filter = DeadLetterFilter { ids: vec![id], ..DeadLetterFilter::of_destination(DESTINATION) };
            let request = request(filter, MarkAction::Redrive, "redriven by the demo's operator");
            self.outbox.mark_dead_letters(&request).await?;
            redriven += 1;
            let kind = letter.kind.unwrap_or_default();
            self.state.event(format!("{}: the operator redrives the {kind}", letter.key));
        }
        Ok(redriven)
    }
}

fn unmarked(filter: DeadLetterFilter) -> DeadLetterFilter {
    DeadLetterFilter { states: vec![DeadLetterState::Dead], ..filter }
}

fn request(filter: DeadLetterFilter, action: MarkAction, reason: &str) -> MarkRequest {
    MarkRequest {
        filter,
        action,
        dry_run: false,
        rate_per_second: None,
        by: "demo".to_owned(),
        reason: reason.to_owned(),
    }
}
