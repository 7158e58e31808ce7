//! Messages that were not handled: they wait or are dead-lettered.

use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::{InboxMessage, InboxState as Known, LaneLease};

use super::ConsumerScope;
use super::tables::{ConsumerTables, QueuedRow, RetryQueue};
use crate::state::{Micros, Tables, micros};

impl Tables {
    /// Stores a failed message that arrived directly from the broker.
    pub(crate) fn record_failure(
        &mut self,
        asking: &ConsumerScope,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: Option<CallClaim>,
        setback: &InboxFailure,
    ) -> Option<RecordOutcome> {
        let now = self.now();
        if !self.tables(asking).holds_lease(held) {
            return Some(RecordOutcome::Fenced);
        }
        // Only a queue that starts to wait for an operator needs the lock. Appending does not.
        let in_use =
            setback.action == InboxFailureAction::DeadHold && self.is_queue_locked(&asking.consumer, &arrival.queue);
        if in_use || self.is_row_locked(&asking.consumer, arrival.dedup_id) {
            return None;
        }
        let desk = self.tables(asking);
        match desk.rows.get(&arrival.dedup_id) {
            None if claim.is_none() => {}
            Some(row) if row.state(now) == Known::Started && claim.is_none() => {}
            Some(row) if row.state == Known::Calling && claim.is_none() => return Some(RecordOutcome::Busy),
            Some(row) if claim.is_some_and(|claim| row.is_claimed_by(claim)) => {}
            None => return Some(RecordOutcome::Fenced),
            Some(row) if matches!(row.state, Known::Started | Known::Calling) => return Some(RecordOutcome::Fenced),
            Some(row) => {
                let state = row.state;
                desk.trace_repeat(asking.traced(), arrival.dedup_id);
                return Some(RecordOutcome::Duplicate(state));
            }
        }
        desk.record_failure(arrival, setback, now);
        desk.trace(asking.traced(), arrival, state_after(setback.action), now);
        Some(RecordOutcome::Recorded)
    }

    /// Stores the failed first message of a claimed queue.
    pub(crate) fn record_queued_failure(
        &mut self,
        asking: &ConsumerScope,
        due: &ClaimedQueue,
        number: i64,
        setback: &InboxFailure,
    ) -> Option<RecordOutcome> {
        let now = self.now();
        if self.is_queue_locked(&asking.consumer, &due.queue) {
            return None;
        }
        let desk = self.tables(asking);
        let queue = desk.queues.get_mut(&due.queue).filter(|queue| queue.is_claimed_by(due.token));
        let Some(queue) = queue.filter(|queue| queue.first() == Some(number)) else {
            return Some(RecordOutcome::Fenced);
        };
        let Some(arrival) = queue.fail_first(number, setback, now) else { return Some(RecordOutcome::Fenced) };
        match setback.action {
            InboxFailureAction::Retry { .. } | InboxFailureAction::Postpone { .. } => {}
            InboxFailureAction::DeadHold | InboxFailureAction::DeadContinue => {
                desk.dead_letter(number, &arrival, setback, now);
            }
        }
        desk.trace(asking.traced(), &arrival, state_after(setback.action), now);
        Some(RecordOutcome::Recorded)
    }
}

impl RetryQueue {
    /// Applies a failure of its first message. Returns the message.
    fn fail_first(&mut self, number: i64, setback: &InboxFailure, now: Micros) -> Option<InboxMessage> {
        match setback.action {
            InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } => {
                let first = self.messages.get_mut(&number)?;
                let untried = matches!(setback.action, InboxFailureAction::Postpone { .. });
                first.unfinished_starts = if untried { first.unfinished_starts.saturating_sub(1) } else { 0 };
                // Keep the error of the last real attempt.
                if !untried || first.attempts == 0 {
                    first.error.clone_from(&setback.error);
                }
                first.attempts = setback.attempts;
                self.due_at = now.saturating_add(micros(after));
                if !untried {
                    first.not_before = self.due_at;
                }
                self.claim = None;
                Some(first.message.clone())
            }
            InboxFailureAction::DeadHold => {
                let arrival = self.messages.remove(&number)?.message;
                self.blocked_by.insert(arrival.dedup_id);
                self.claim = None;
                Some(arrival)
            }
            InboxFailureAction::DeadContinue => self.messages.remove(&number).map(|waiting| waiting.message),
        }
    }
}

impl ConsumerTables {
    fn record_failure(&mut self, arrival: &InboxMessage, setback: &InboxFailure, now: Micros) {
        match setback.action {
            InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } => {
                let begun = self.rows.get(&arrival.dedup_id).map_or(0, |row| row.unfinished_starts);
                let untried = matches!(setback.action, InboxFailureAction::Postpone { .. });
                self.set_state(arrival.dedup_id, Known::Waiting, now);
                let again = now.saturating_add(micros(after));
                let waiting = QueuedRow {
                    message: arrival.clone(),
                    attempts: setback.attempts,
                    unfinished_starts: if untried { begun.saturating_sub(1) } else { 0 },
                    error: setback.error.clone(),
                    not_before: again,
                };
                self.append(waiting, again);
            }
            InboxFailureAction::DeadHold => {
                self.dead_letter_new(arrival, setback, now);
                let queue = self.queues.entry(arrival.queue.clone()).or_insert_with(|| RetryQueue::new(now));
                queue.blocked_by.insert(arrival.dedup_id);
            }
            InboxFailureAction::DeadContinue => self.dead_letter_new(arrival, setback, now),
        }
    }

    /// A message that never waited gets a number behind all waiting ones.
    fn dead_letter_new(&mut self, arrival: &InboxMessage, setback: &InboxFailure, now: Micros) {
        let number = self.next_ordinal();
        self.dead_letter(number, arrival, setback, now);
    }
}

const fn state_after(stop: InboxFailureAction) -> Known {
    match stop {
        InboxFailureAction::Retry { .. } | InboxFailureAction::Postpone { .. } => Known::Waiting,
        InboxFailureAction::DeadHold | InboxFailureAction::DeadContinue => Known::Dead,
    }
}
