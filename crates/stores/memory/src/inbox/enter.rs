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
    pub(crate) fn enter(&mut self, asking: &ConsumerScope, enter: Enter<'_>) -> Option<OpenOutcome> {
        let now = self.now();
        let desk = self.tables(asking);
        if !desk.holds_lease(enter.held) {
            return Some(OpenOutcome::Fenced);
        }
        if enter.arrivals.iter().any(|arrival| self.is_row_locked(&asking.consumer, arrival.dedup_id)) {
            return None;
        }
        let desk = self.tables(asking);
        let mut met = BTreeMap::new();
        let entered: Vec<EnterOutcome> = enter
            .arrivals
            .iter()
            .map(|arrival| match met.get(&arrival.dedup_id) {
                Some(state) => EnterOutcome::Duplicate(*state),
                None => desk.enter_one(arrival, &mut met, now),
            })
            .collect();
        let pending = PendingWrites { lane: enter.held.map(|held| held.lane.clone()), ..empty_writes(asking) };
        Some(OpenOutcome::Open(self.open(Some(pending.with_messages(enter.arrivals, &entered))), entered))
    }

    /// Counts a start, unless a transaction locks the message or its state is no longer `Open`. Returns the current
    /// count.
    pub(crate) fn record_start(&mut self, asking: &ConsumerScope, arrival: &InboxMessage) -> u32 {
        let now = self.now();
        let locked = self.is_row_locked(&asking.consumer, arrival.dedup_id);
        let desk = self.tables(asking);
        match desk.rows.get(&arrival.dedup_id) {
            Some(row) if locked || row.state != Known::Started => row.unfinished_starts,
            None if locked => 0,
            Some(_) | None => {
                let row = desk.set_state(arrival.dedup_id, Known::Started, now);
                row.unfinished_starts += 1;
                row.unfinished_starts
            }
        }
    }

    /// Claims a message for a call.
    pub(crate) fn claim_call(
        &mut self,
        asking: &ConsumerScope,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        lasts: Duration,
    ) -> Option<ClaimOutcome> {
        let now = self.now();
        if !self.tables(asking).holds_lease(held) {
            return Some(ClaimOutcome::Fenced);
        }
        if self.is_row_locked(&asking.consumer, arrival.dedup_id) {
            return None;
        }
        let token = self.random.uuid();
        let desk = self.tables(asking);
        if let Some(row) = desk.rows.get(&arrival.dedup_id) {
            match (row.state, row.claim) {
                (Known::Calling, Some((_, until))) if until > now => {
                    return Some(ClaimOutcome::Busy(remaining(until, now)));
                }
                (Known::Started | Known::Calling, _) => {}
                (state, _) => {
                    desk.trace_repeat(asking.traced(), arrival.dedup_id);
                    return Some(ClaimOutcome::Duplicate(state));
                }
            }
        }
        if desk.queues.contains_key(&arrival.queue) {
            desk.set_state(arrival.dedup_id, Known::Waiting, now);
            desk.trace(asking.traced(), arrival, Known::Waiting, now);
            desk.append(QueuedRow::new(arrival.clone()), now);
            return Some(ClaimOutcome::QueuedBehind);
        }
        let row = desk.set_state(arrival.dedup_id, Known::Calling, now);
        row.unfinished_starts += 1;
        row.claim = Some((token, now.saturating_add(micros(lasts))));
        Some(ClaimOutcome::Claimed(CallClaim { token, unfinished_starts: row.unfinished_starts }))
    }

    /// Records that handling ended without a result and without a crash. Resets the number of starts.
    pub(crate) fn end_attempt(&mut self, asking: &ConsumerScope, entry: DedupId, claim: Option<CallClaim>) {
        let now = self.now();
        if self.is_row_locked(&asking.consumer, entry) {
            return;
        }
        let desk = self.tables(asking);
        let ended = desk.rows.get(&entry).is_some_and(|row| match row.state {
            Known::Started => claim.is_none(),
            Known::Calling => claim.is_some_and(|claim| row.is_claimed_by(claim)),
            Known::Waiting | Known::Done | Known::Skipped | Known::Dead | Known::Redriven => false,
        });
        if ended {
            desk.set_state(entry, Known::Started, now).unfinished_starts = 0;
        }
    }

    /// Opens the transaction for a call's result.
    pub(crate) fn enter_claimed(
        &mut self,
        asking: &ConsumerScope,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Option<OpenOutcome> {
        let desk = self.tables(asking);
        if !desk.holds_lease(held) {
            return Some(OpenOutcome::Fenced);
        }
        if !desk.rows.get(&arrival.dedup_id).is_some_and(|row| row.is_claimed_by(claim)) {
            return Some(OpenOutcome::Fenced);
        }
        if self.is_row_locked(&asking.consumer, arrival.dedup_id) {
            return None;
        }
        let deed = PendingWrite { message: arrival.clone(), kind: WriteKind::End(Known::Done, None) };
        let pending =
            PendingWrites { lane: held.map(|held| held.lane.clone()), writes: vec![deed], ..empty_writes(asking) };
        Some(OpenOutcome::Open(self.open(Some(pending)), vec![EnterOutcome::New]))
    }
}

impl ConsumerTables {
    /// The result for an entered message, and its state from then on.
    fn enter_one(&self, arrival: &InboxMessage, met: &mut BTreeMap<DedupId, Known>, now: Micros) -> EnterOutcome {
        let (entered, state) = match self.rows.get(&arrival.dedup_id).map(|row| row.state(now)) {
            None | Some(Known::Started) if self.queues.contains_key(&arrival.queue) => {
                (EnterOutcome::QueuedBehind, Known::Waiting)
            }
            None | Some(Known::Started) => (EnterOutcome::New, Known::Done),
            Some(state) => (EnterOutcome::Duplicate(state), state),
        };
        met.insert(arrival.dedup_id, state);
        entered
    }
}

impl PendingWrites {
    /// Adds these messages, and locks the queues in which some of them wait.
    fn with_messages(mut self, arrivals: &[InboxMessage], entered: &[EnterOutcome]) -> Self {
        for (arrival, entered) in arrivals.iter().zip(entered) {
            let kind = match entered {
                EnterOutcome::New => WriteKind::End(Known::Done, None),
                EnterOutcome::Duplicate(_) => WriteKind::Duplicate,
                EnterOutcome::QueuedBehind => {
                    self.queues.insert(arrival.queue.clone());
                    WriteKind::Append
                }
            };
            self.writes.push(PendingWrite { message: arrival.clone(), kind });
        }
        self
    }
}

/// The inbox part of a transaction, without changes and locks.
pub(crate) fn empty_writes(asking: &ConsumerScope) -> PendingWrites {
    PendingWrites {
        consumer: asking.consumer.clone(),
        traced: asking.traced(),
        lane: None,
        queues: BTreeSet::new(),
        writes: Vec::new(),
    }
}

fn remaining(until: Micros, now: Micros) -> Duration {
    Duration::from_micros(u64::try_from(until - now).unwrap_or_default())
}
