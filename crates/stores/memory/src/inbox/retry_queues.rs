//! The retry table: members claim a queue, handle its first messages and release it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::inbox::retries::{ClaimedQueue, QueuedMessage};
use relevo_core::inbox::transactions::EnterOutcome;
use relevo_core::inbox::{DedupId, InboxState as Known};

use super::enter::empty_writes;
use super::pending_writes::{PendingWrite, PendingWrites, WriteKind};
use super::tables::QueuedRow;
use super::{ConsumerScope, OpenOutcome};
use crate::state::{Micros, Tables, micros};

impl Tables {
    /// Claims due queues. Those that waited longest come first.
    pub(crate) fn claim_due(
        &mut self,
        asking: &ConsumerScope,
        queues: usize,
        messages: usize,
        lasts: Duration,
    ) -> Vec<ClaimedQueue> {
        let now = self.now();
        let until = now.saturating_add(micros(lasts));
        self.due_queues(asking, now)
            .into_iter()
            .take(queues)
            .filter_map(|name| {
                let token = self.random.uuid();
                let desk = self.tables(asking);
                let queue = desk.queues.get_mut(&name)?;
                queue.claim = Some((token, until));
                if let Some(first) = queue.messages.values_mut().next().filter(|first| first.not_before <= now) {
                    first.unfinished_starts += 1;
                }
                let reopened = |entry: DedupId| desk.rows.get(&entry).is_some_and(|row| row.state == Known::Redriven);
                let waiting = |(number, waiting): (&i64, &QueuedRow)| QueuedMessage {
                    ordinal: *number,
                    message: waiting.message.clone(),
                    attempts: waiting.attempts,
                    unfinished_starts: waiting.unfinished_starts,
                    reopened: reopened(waiting.message.dedup_id),
                };
                // Stop before the first message that is not due yet.
                let ready = queue.messages.iter().take_while(|(_, waiting)| waiting.not_before <= now);
                let messages = ready.take(messages).map(waiting).collect();
                Some(ClaimedQueue { queue: name, token, messages })
            })
            .collect()
    }

    /// Due queues without a claim that do not wait for an operator.
    fn due_queues(&mut self, asking: &ConsumerScope, now: Micros) -> Vec<ByteString> {
        let queues = self.tables(asking).queues.iter();
        let due =
            queues.filter(|(_, queue)| queue.blocked_by.is_empty() && queue.due_at <= now && !queue.is_claimed(now));
        let mut due: Vec<(Micros, ByteString)> = due.map(|(name, queue)| (queue.due_at, name.clone())).collect();
        due.sort();
        due.into_iter().map(|(_, name)| name).filter(|name| !self.is_queue_locked(&asking.consumer, name)).collect()
    }

    /// Opens the transaction for the first message of a claimed queue.
    pub(crate) fn enter_queued(
        &mut self,
        asking: &ConsumerScope,
        due: &ClaimedQueue,
        number: i64,
    ) -> Option<OpenOutcome> {
        let now = self.now();
        let queue = self.tables(asking).queues.get(&due.queue);
        let queue = queue.filter(|queue| queue.is_claimed_by(due.token) && queue.is_claimed(now));
        let queue = queue.filter(|queue| queue.first() == Some(number));
        let Some(arrival) = queue.and_then(|queue| queue.messages.get(&number)).map(|first| first.message.clone())
        else {
            return Some(OpenOutcome::Fenced);
        };
        if self.is_row_locked(&asking.consumer, arrival.dedup_id) {
            return None;
        }
        let deed = PendingWrite { message: arrival, kind: WriteKind::End(Known::Done, Some(number)) };
        let queues = BTreeSet::from([due.queue.clone()]);
        let pending = PendingWrites { queues, writes: vec![deed], ..empty_writes(asking) };
        Some(OpenOutcome::Open(self.open(Some(pending)), vec![EnterOutcome::New]))
    }

    /// Ends a claim. Checks whether the queue is empty while no transaction can append to it.
    pub(crate) fn release_queue(&mut self, asking: &ConsumerScope, due: &ClaimedQueue) -> Option<()> {
        let now = self.now();
        if self.is_queue_locked(&asking.consumer, &due.queue) {
            return None;
        }
        let desk = self.tables(asking);
        let Some(queue) = desk.queues.get_mut(&due.queue).filter(|queue| queue.is_claimed_by(due.token)) else {
            return Some(());
        };
        queue.claim = None;
        queue.due_at = now.max(queue.not_before());
        if let Some(first) = queue.messages.values_mut().next() {
            // The queue was released without a crash, so its starts no longer count.
            first.unfinished_starts = 0;
        } else if queue.blocked_by.is_empty() {
            desk.queues.remove(&due.queue);
        }
        Some(())
    }
}
