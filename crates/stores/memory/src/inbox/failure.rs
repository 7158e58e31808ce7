//! Messages that were not handled: they wait or are dead-lettered.

use relevo_core::AfterDead;
use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, QueueClaim, RecordOutcome};
use relevo_core::inbox::{InboxMessage, InboxState as Known, LaneLease};

use super::ConsumerScope;
use super::tables::{ConsumerTables, QueuedRow, RetryQueue};
use crate::state::{Micros, Tables, micros};

impl Tables {
    /// Stores a failed message that arrived directly from the broker.
    pub(crate) fn record_failure(
        &mut self,
        scope: &ConsumerScope,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        claim: Option<CallClaim>,
        failure: &InboxFailure,
    ) -> Option<RecordOutcome> {
        let now = self.now();
        if !self.tables(scope).holds_lease(lease) {
            return Some(RecordOutcome::Fenced);
        }
        // Only a queue that starts to wait for an operator needs the lock. Appending does not.
        let in_use = failure.action.holds_queue() && self.is_queue_locked(&scope.consumer, &message.queue);
        if in_use || self.is_row_locked(&scope.consumer, message.dedup_id) {
            return None;
        }
        let tables = self.tables(scope);
        match tables.rows.get(&message.dedup_id) {
            None if claim.is_none() => {}
            Some(row) if row.state(now) == Known::Started && claim.is_none() => {}
            Some(row) if row.state == Known::Calling && claim.is_none() => return Some(RecordOutcome::Busy),
            Some(row) if claim.is_some_and(|claim| row.is_claimed_by(claim)) => {}
            None => return Some(RecordOutcome::Fenced),
            Some(row) if matches!(row.state, Known::Started | Known::Calling) => return Some(RecordOutcome::Fenced),
            Some(row) => return Some(RecordOutcome::Duplicate(row.state)),
        }
        tables.record_failure(message, failure, now);
        Some(RecordOutcome::Recorded)
    }

    /// Stores the failed first message of a claimed queue.
    pub(crate) fn record_queued_failure(
        &mut self,
        scope: &ConsumerScope,
        claim: &QueueClaim,
        number: i64,
        failure: &InboxFailure,
    ) -> Option<RecordOutcome> {
        let now = self.now();
        if self.is_queue_locked(&scope.consumer, &claim.queue) {
            return None;
        }
        let tables = self.tables(scope);
        let queue = tables.queues.get_mut(&claim.queue).filter(|queue| queue.is_claimed_by(claim.token));
        let Some(queue) = queue.filter(|queue| queue.first() == Some(number)) else {
            return Some(RecordOutcome::Fenced);
        };
        let Some(message) = queue.fail_first(number, failure, now) else { return Some(RecordOutcome::Fenced) };
        match failure.action {
            InboxFailureAction::Retry { .. } | InboxFailureAction::Postpone { .. } => {}
            InboxFailureAction::DeadLetter(_) => {
                tables.dead_letter(number, &message, failure, now);
            }
        }
        Some(RecordOutcome::Recorded)
    }
}

impl RetryQueue {
    /// Applies a failure of its first message. Returns the message.
    fn fail_first(&mut self, number: i64, failure: &InboxFailure, now: Micros) -> Option<InboxMessage> {
        match failure.action {
            InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } => {
                let first = self.messages.get_mut(&number)?;
                let untried = matches!(failure.action, InboxFailureAction::Postpone { .. });
                first.unfinished_starts = if untried { first.unfinished_starts.saturating_sub(1) } else { 0 };
                // Keep the error of the last real attempt.
                if !untried || first.error.is_empty() {
                    first.error.clone_from(&failure.error);
                }
                first.message.attempts = failure.attempts;
                self.due_at = now.saturating_add(micros(after));
                if !untried {
                    first.not_before = self.due_at;
                }
                self.claim = None;
                Some(first.message.clone())
            }
            InboxFailureAction::DeadLetter(AfterDead::Hold) => {
                let message = self.messages.remove(&number)?.message;
                self.blocked_by.insert(message.dedup_id);
                self.claim = None;
                Some(message)
            }
            InboxFailureAction::DeadLetter(AfterDead::Continue) => {
                self.messages.remove(&number).map(|waiting| waiting.message)
            }
        }
    }
}

impl ConsumerTables {
    fn record_failure(&mut self, message: &InboxMessage, failure: &InboxFailure, now: Micros) {
        match failure.action {
            InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } => {
                let starts = self.rows.get(&message.dedup_id).map_or(0, |row| row.unfinished_starts);
                let untried = matches!(failure.action, InboxFailureAction::Postpone { .. });
                self.set_state(message.dedup_id, Known::Waiting, now);
                let retry_at = now.saturating_add(micros(after));
                let waiting = QueuedRow {
                    message: InboxMessage { attempts: failure.attempts, ..message.clone() },
                    unfinished_starts: if untried { starts.saturating_sub(1) } else { 0 },
                    error: failure.error.clone(),
                    not_before: retry_at,
                };
                self.append(waiting, retry_at);
            }
            InboxFailureAction::DeadLetter(AfterDead::Hold) => {
                self.dead_letter_new(message, failure, now);
                let queue = self.queues.entry(message.queue.clone()).or_insert_with(|| RetryQueue::new(now));
                queue.blocked_by.insert(message.dedup_id);
            }
            InboxFailureAction::DeadLetter(AfterDead::Continue) => self.dead_letter_new(message, failure, now),
        }
    }

    /// A message that never waited gets a number behind all waiting ones.
    fn dead_letter_new(&mut self, message: &InboxMessage, failure: &InboxFailure, now: Micros) {
        let number = self.next_ordinal();
        self.dead_letter(number, message, failure, now);
    }
}
