//! Enters messages, for a handler's transaction or for a call outside of one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::transactions::{Enter, EnterOutcome};
use relevo_core::inbox::{DedupId, InboxMessage, InboxState as Known, LaneLease};

use super::pending_writes::{PendingWrite, PendingWrites, WriteKind};
use super::tables::{ConsumerTables, QueuedRow};
use super::{ConsumerScope, OpenOutcome};
use crate::state::{Micros, Tables, micros};

impl Tables {
    /// Enters messages into a new transaction.
    pub(crate) fn enter(&mut self, scope: &ConsumerScope, enter: Enter<'_>) -> Option<OpenOutcome> {
        let now = self.now();
        let tables = self.tables(scope);
        if !tables.holds_lease(enter.held) {
            return Some(OpenOutcome::Fenced);
        }
        if enter.arrivals.iter().any(|message| self.is_row_locked(&scope.consumer, message.dedup_id)) {
            return None;
        }
        let tables = self.tables(scope);
        let mut states = BTreeMap::new();
        let entered: Vec<EnterOutcome> = enter
            .arrivals
            .iter()
            .map(|message| match states.get(&message.dedup_id) {
                Some(state) => EnterOutcome::Duplicate(*state),
                None => tables.enter_one(message, &mut states, now),
            })
            .collect();
        let pending = PendingWrites { lane: enter.held.map(|lease| lease.lane.clone()), ..empty_writes(scope) };
        Some(OpenOutcome::Open(self.open(Some(pending.with_messages(enter.arrivals, &entered))), entered))
    }

    /// Counts a start, unless a transaction locks the message or its state is no longer `Open`. Returns the current
    /// count.
    pub(crate) fn record_start(&mut self, scope: &ConsumerScope, message: &InboxMessage) -> u32 {
        let now = self.now();
        let locked = self.is_row_locked(&scope.consumer, message.dedup_id);
        let tables = self.tables(scope);
        match tables.rows.get(&message.dedup_id) {
            Some(row) if locked || row.state != Known::Started => row.unfinished_starts,
            None if locked => 0,
            Some(_) | None => {
                let row = tables.set_state(message.dedup_id, Known::Started, now);
                row.unfinished_starts += 1;
                row.unfinished_starts
            }
        }
    }

    /// Claims a message for a call.
    pub(crate) fn claim_call(
        &mut self,
        scope: &ConsumerScope,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        duration: Duration,
    ) -> Option<ClaimOutcome> {
        let now = self.now();
        if !self.tables(scope).holds_lease(lease) {
            return Some(ClaimOutcome::Fenced);
        }
        if self.is_row_locked(&scope.consumer, message.dedup_id) {
            return None;
        }
        let token = self.random.uuid();
        let tables = self.tables(scope);
        if let Some(row) = tables.rows.get(&message.dedup_id) {
            match (row.state, row.claim) {
                (Known::Calling, Some((_, until))) if until > now => {
                    return Some(ClaimOutcome::Busy(remaining(until, now)));
                }
                (Known::Started | Known::Calling, _) => {}
                (state, _) => return Some(ClaimOutcome::Duplicate(state)),
            }
        }
        if tables.queues.contains_key(&message.queue) {
            tables.set_state(message.dedup_id, Known::Waiting, now);
            tables.append(QueuedRow::new(message.clone()), now);
            return Some(ClaimOutcome::QueuedBehind);
        }
        let row = tables.set_state(message.dedup_id, Known::Calling, now);
        row.unfinished_starts += 1;
        row.claim = Some((token, now.saturating_add(micros(duration))));
        Some(ClaimOutcome::Claimed(CallClaim { token, unfinished_starts: row.unfinished_starts }))
    }

    /// Records that handling ended without a result and without a crash. Resets the number of starts.
    pub(crate) fn end_attempt(&mut self, scope: &ConsumerScope, dedup_id: DedupId, claim: Option<CallClaim>) {
        let now = self.now();
        if self.is_row_locked(&scope.consumer, dedup_id) {
            return;
        }
        let tables = self.tables(scope);
        let still_open = tables.rows.get(&dedup_id).is_some_and(|row| match row.state {
            Known::Started => claim.is_none(),
            Known::Calling => claim.is_some_and(|claim| row.is_claimed_by(claim)),
            Known::Waiting | Known::Done | Known::Skipped | Known::Dead | Known::Redriven => false,
        });
        if still_open {
            tables.set_state(dedup_id, Known::Started, now).unfinished_starts = 0;
        }
    }

    /// Opens the transaction for a call's result.
    pub(crate) fn enter_claimed(
        &mut self,
        scope: &ConsumerScope,
        message: &InboxMessage,
        lease: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Option<OpenOutcome> {
        let tables = self.tables(scope);
        if !tables.holds_lease(lease) {
            return Some(OpenOutcome::Fenced);
        }
        if !tables.rows.get(&message.dedup_id).is_some_and(|row| row.is_claimed_by(claim)) {
            return Some(OpenOutcome::Fenced);
        }
        if self.is_row_locked(&scope.consumer, message.dedup_id) {
            return None;
        }
        let write = PendingWrite { message: message.clone(), kind: WriteKind::End(Known::Done, None) };
        let pending =
            PendingWrites { lane: lease.map(|lease| lease.lane.clone()), writes: vec![write], ..empty_writes(scope) };
        Some(OpenOutcome::Open(self.open(Some(pending)), vec![EnterOutcome::New]))
    }
}

impl ConsumerTables {
    /// The result for an entered message, and its state from then on.
    fn enter_one(&self, message: &InboxMessage, states: &mut BTreeMap<DedupId, Known>, now: Micros) -> EnterOutcome {
        let (entered, state) = match self.rows.get(&message.dedup_id).map(|row| row.state(now)) {
            None | Some(Known::Started) if self.queues.contains_key(&message.queue) => {
                (EnterOutcome::QueuedBehind, Known::Waiting)
            }
            None | Some(Known::Started) => (EnterOutcome::New, Known::Done),
            Some(state) => (EnterOutcome::Duplicate(state), state),
        };
        states.insert(message.dedup_id, state);
        entered
    }
}

impl PendingWrites {
    /// Adds these messages, and locks the queues in which some of them wait.
    fn with_messages(mut self, messages: &[InboxMessage], entered: &[EnterOutcome]) -> Self {
        for (message, entered) in messages.iter().zip(entered) {
            let kind = match entered {
                EnterOutcome::New => WriteKind::End(Known::Done, None),
                EnterOutcome::Duplicate(_) => WriteKind::Duplicate,
                EnterOutcome::QueuedBehind => {
                    self.queues.insert(message.queue.clone());
                    WriteKind::Append
                }
            };
            self.writes.push(PendingWrite { message: message.clone(), kind });
        }
        self
    }
}

/// The inbox part of a transaction, without changes and locks.
pub(crate) fn empty_writes(scope: &ConsumerScope) -> PendingWrites {
    PendingWrites { consumer: scope.consumer.clone(), lane: None, queues: BTreeSet::new(), writes: Vec::new() }
}

fn remaining(until: Micros, now: Micros) -> Duration {
    Duration::from_micros(u64::try_from(until - now).unwrap_or_default())
}
