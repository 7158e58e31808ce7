//! The person of the demo: looks at how much waits, redrives what was refused after some thought, and puts aside what
//! shipping cannot handle.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetterAdmin, DeadLetterFilter, MarkRequest};
use relevo_core::inbox::admin::Operate;
use relevo_core::inbox::dead_letters as consumers;
use relevo_core::outbox::inspect::OutboxInspector;
use tokio::time::Instant;

use super::flow::{Flow, Waiting};

/// How long the operator thinks about a dead letter.
const THINKS: Duration = Duration::from_secs(4);
/// How many dead letters are looked at; there are never so many.
const LETTERS_MAX: usize = 100;

/// Who looks after the outbox.
pub(crate) struct Operator<S> {
    store: Arc<S>,
    /// Shipping's side.
    consumers: Box<dyn Operate>,
    flow: Arc<Flow>,
    /// When dead letters were first seen.
    letters: BTreeMap<MessageId, Instant>,
}

impl<S: OutboxInspector + DeadLetterAdmin> Operator<S> {
    pub(crate) fn new(store: Arc<S>, consumers: Box<dyn Operate>, flow: Arc<Flow>) -> Self {
        Self { store, consumers, flow, letters: BTreeMap::new() }
    }

    /// Looks around; `lag` is what the broker keeps for the consumer.
    pub(crate) async fn look(&mut self, lag: i64) -> Result<()> {
        let backlog = self.store.backlog().await?;
        let (pending, parked, dead) = (backlog.pending, backlog.parked, backlog.dead);
        self.flow.waits(Waiting { pending, parked, dead, lag });
        self.put_aside().await
    }

    /// Archives what shipping gave up: somebody else's messages, such as one from the command line.
    async fn put_aside(&self) -> Result<()> {
        let fate = Some(consumers::DeadLetterState::Dead);
        for letter in self
            .consumers
            .list_dead_letters(&consumers::DeadLetterFilter { state: fate, ..Default::default() }, LETTERS_MAX)
            .await?
        {
            self.flow.event(format!("shipping rejects a message that is no order's: {}", letter.error));
            let filter = consumers::DeadLetterFilter { ids: vec![letter.message.dedup_id.id], ..Default::default() };
            let (by, note) = ("demo".to_owned(), "no order's".to_owned());
            self.consumers
                .archive(&consumers::MarkRequest { filter, dry_run: false, rate_per_second: None, by, reason: note })
                .await?;
        }
        Ok(())
    }

    /// Redrives the dead letters that were thought about for long enough.
    pub(crate) async fn decide(&mut self) -> Result<()> {
        self.redrive(THINKS).await
    }

    /// Redrives every dead letter: the demo ends.
    pub(crate) async fn hurry(&mut self) -> Result<()> {
        self.redrive(Duration::ZERO).await
    }

    async fn redrive(&mut self, thinks: Duration) -> Result<()> {
        let waiting = DeadLetterFilter { unmarked: true, ..DeadLetterFilter::default() };
        let dead = self.store.list_dead_letters(&waiting, LETTERS_MAX).await?;
        let seen = std::mem::take(&mut self.letters);
        let now = Instant::now();
        for letter in dead {
            let id = letter.message.id;
            let since = seen.get(&id).copied().unwrap_or(now);
            if since + thinks > now {
                self.letters.insert(id, since);
                continue;
            }
            let filter = DeadLetterFilter { ids: vec![id], ..DeadLetterFilter::default() };
            let reason = "the demo's operator decided".to_owned();
            self.store.redrive(&MarkRequest { filter, dry_run: false, by: "demo".to_owned(), reason }).await?;
            self.flow.event(format!("{}: the operator redrives the {}", letter.message.key, letter.message.kind));
        }
        Ok(())
    }
}
