//! The retry table: members claim a queue, handle its first messages and release it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::inbox::InboxState as Known;
use relevo_core::inbox::retries::{ClaimedQueue, QueueClaim, QueuedMessage};
use relevo_core::inbox::transactions::EnterOutcome;

use super::enter::empty_writes;
use super::pending_writes::{PendingWrite, PendingWrites, WriteKind};
use super::tables::QueuedRow;
use super::{ConsumerScope, OpenOutcome};
use crate::state::{Micros, Tables, micros};

impl Tables {
    /// Claims due queues. Those that waited longest come first.
    pub(crate) fn claim_due(
        &mut self,
        scope: &ConsumerScope,
        queues: usize,
        messages: usize,
        duration: Duration,
    ) -> Vec<ClaimedQueue> {
        let now = self.now();
        let until = now.saturating_add(micros(duration));
        self.due_queues(scope, now)
            .into_iter()
            .take(queues)
            .filter_map(|name| {
                let token = self.random.uuid();
                let tables = self.tables(scope);
                let queue = tables.queues.get_mut(&name)?;
                queue.claim = Some((token, until));
                if let Some(first) = queue.messages.values_mut().next().filter(|first| first.not_before <= now) {
                    first.unfinished_starts += 1;
                }
                let waiting = |(number, waiting): (&i64, &QueuedRow)| QueuedMessage {
                    ordinal: *number,
                    message: waiting.message.clone(),
                    unfinished_starts: waiting.unfinished_starts,
                };
                // Stop before the first message that is not due yet.
                let ready = queue.messages.iter().take_while(|(_, waiting)| waiting.not_before <= now);
                let messages = ready.take(messages).map(waiting).collect();
                Some(ClaimedQueue { claim: QueueClaim { queue: name, token }, messages })
            })
            .collect()
    }

    /// Due queues without a claim that do not wait for an operator.
    fn due_queues(&mut self, scope: &ConsumerScope, now: Micros) -> Vec<ByteString> {
        let queues = self.tables(scope).queues.iter();
        let due =
            queues.filter(|(_, queue)| queue.blocked_by.is_empty() && queue.due_at <= now && !queue.is_claimed(now));
        let mut due: Vec<(Micros, ByteString)> = due.map(|(name, queue)| (queue.due_at, name.clone())).collect();
        due.sort();
        due.into_iter().map(|(_, name)| name).filter(|name| !self.is_queue_locked(&scope.consumer, name)).collect()
    }

    /// Opens the transaction for the first message of a claimed queue.
    pub(crate) fn enter_queued(
        &mut self,
        scope: &ConsumerScope,
        claim: &QueueClaim,
        number: i64,
    ) -> Option<OpenOutcome> {
        let now = self.now();
        let queue = self.tables(scope).queues.get(&claim.queue);
        let queue = queue.filter(|queue| queue.is_claimed_by(claim.token) && queue.is_claimed(now));
        let queue = queue.filter(|queue| queue.first() == Some(number));
        let Some(message) = queue.and_then(|queue| queue.messages.get(&number)).map(|first| first.message.clone())
        else {
            return Some(OpenOutcome::Fenced);
        };
        if self.is_row_locked(&scope.consumer, message.dedup_id) {
            return None;
        }
        let write = PendingWrite { message, kind: WriteKind::End(Known::Done, Some(number)) };
        let queues = BTreeSet::from([claim.queue.clone()]);
        let pending = PendingWrites { queues, writes: vec![write], ..empty_writes(scope) };
        Some(OpenOutcome::Open(self.open(Some(pending)), vec![EnterOutcome::New]))
    }

    /// Ends a claim. Checks whether the queue is empty while no transaction can append to it.
    pub(crate) fn release_queue(&mut self, scope: &ConsumerScope, claim: &QueueClaim) -> Option<()> {
        let now = self.now();
        if self.is_queue_locked(&scope.consumer, &claim.queue) {
            return None;
        }
        let tables = self.tables(scope);
        let Some(queue) = tables.queues.get_mut(&claim.queue).filter(|queue| queue.is_claimed_by(claim.token)) else {
            return Some(());
        };
        queue.claim = None;
        queue.due_at = now.max(queue.not_before());
        if let Some(first) = queue.messages.values_mut().next() {
            // The queue was released without a crash, so its starts no longer count.
            first.unfinished_starts = 0;
        } else if queue.blocked_by.is_empty() {
            tables.queues.remove(&claim.queue);
        }
        Some(())
    }
}
