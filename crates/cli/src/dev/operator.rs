//! The operator of the demo: samples the numbers of waiting messages, redrives dead letters of the outbox after a delay,
//! and discards those of shipping.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterAdmin as _, DeadLetterFilter, DeadLetterState, MarkAction, MarkRequest};
use relevo_core::outbox::sample::OutboxMonitor as _;
use relevo_store_sqlite as sqlite;
use tokio::time::Instant;

use super::data::{DESTINATION, GROUP};
use super::flow::{Flow, Waiting};

/// How long a dead letter waits before the operator redrives it.
const THINKS: Duration = Duration::from_secs(4);
/// The maximum number of dead letters per call. The demo never has that many.
const LETTERS_MAX: usize = 100;

/// Operates the outbox and the consumer.
pub(crate) struct Operator {
    outbox: sqlite::Operator,
    /// The inbox of shipping.
    consumers: sqlite::Operator,
    flow: Arc<Flow>,
    /// When dead letters were first seen.
    letters: BTreeMap<MessageId, Instant>,
}

impl Operator {
    pub(crate) fn new(outbox: sqlite::Operator, consumers: sqlite::Operator, flow: Arc<Flow>) -> Self {
        Self { outbox, consumers, flow, letters: BTreeMap::new() }
    }

    /// Samples the waiting messages. `lag` is the number of messages that wait at the broker for the consumer.
    pub(crate) async fn look(&mut self, lag: i64) -> Result<()> {
        let backlog = self.outbox.sample_destination(DESTINATION).await?.backlog;
        let (pending, parked, dead) = (backlog.pending, backlog.parked, backlog.dead);
        self.flow.waits(Waiting { pending, parked, dead, lag });
        self.put_aside().await
    }

    /// Discards the dead letters of shipping: messages that are not from the shop, such as one from the command line.
    async fn put_aside(&self) -> Result<()> {
        let waiting = unmarked(DeadLetterFilter::of_consumer(GROUP));
        for letter in self.consumers.list_dead_letters(&waiting, None, LETTERS_MAX).await?.letters {
            self.flow.event(format!("shipping rejects a message that is not an order: {}", letter.error));
            let filter = DeadLetterFilter { ids: vec![letter.id], ..DeadLetterFilter::of_consumer(GROUP) };
            self.consumers.mark_dead_letters(&request(filter, MarkAction::Discard, "not an order")).await?;
        }
        Ok(())
    }

    /// Redrives the dead letters that have waited long enough.
    pub(crate) async fn decide(&mut self) -> Result<()> {
        self.redrive(THINKS).await
    }

    /// Redrives every dead letter at once, because the demo ends.
    pub(crate) async fn hurry(&mut self) -> Result<()> {
        self.redrive(Duration::ZERO).await
    }

    async fn redrive(&mut self, thinks: Duration) -> Result<()> {
        let waiting = unmarked(DeadLetterFilter::of_destination(DESTINATION));
        let dead = self.outbox.list_dead_letters(&waiting, None, LETTERS_MAX).await?.letters;
        let seen = std::mem::take(&mut self.letters);
        let now = Instant::now();
        for letter in dead {
            let id = letter.id;
            let since = seen.get(&id).copied().unwrap_or(now);
            if since + thinks > now {
                self.letters.insert(id, since);
                continue;
            }
            let filter = DeadLetterFilter { ids: vec![id], ..DeadLetterFilter::of_destination(DESTINATION) };
            let request = request(filter, MarkAction::Redrive, "redriven by the demo's operator");
            self.outbox.mark_dead_letters(&request).await?;
            let kind = letter.kind.unwrap_or_default();
            self.flow.event(format!("{}: the operator redrives the {kind}", letter.key));
        }
        Ok(())
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
