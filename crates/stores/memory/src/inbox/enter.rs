//! Enters messages, for a handler's transaction or for a call outside of one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use relevo_core::inbox::{Arrival, Claim, Claimed, Enter, Entered, Entry, Held, State as Known};

use super::desk::{Desk, Waiting};
use super::pending::{Deed, Kind, Pending};
use super::{Asking, Opened};
use crate::state::{Micros, State, micros};

impl State {
    /// Enters messages into a new transaction.
    pub(crate) fn enter(&mut self, asking: &Asking, enter: Enter<'_>) -> Option<Opened> {
        let now = self.now();
        let desk = self.desk(asking);
        if !desk.holds(enter.held) {
            return Some(Opened::Lost);
        }
        if enter.arrivals.iter().any(|arrival| self.is_row_locked(&asking.consumer, arrival.entry)) {
            return None;
        }
        let desk = self.desk(asking);
        let mut met = BTreeMap::new();
        let entered: Vec<Entered> = enter
            .arrivals
            .iter()
            .map(|arrival| match met.get(&arrival.entry) {
                Some(state) => Entered::Repeat(*state),
                None => desk.meet(arrival, &mut met, now),
            })
            .collect();
        let pending = Pending { lane: enter.held.map(|held| held.lane.clone()), ..pending(asking) };
        Some(Opened::Open(self.open(Some(pending.with(enter.arrivals, &entered))), entered))
    }

    /// Counts a start, unless a transaction locks the message or its state is no longer `Open`. Returns the current
    /// count.
    pub(crate) fn start(&mut self, asking: &Asking, arrival: &Arrival) -> u32 {
        let now = self.now();
        let locked = self.is_row_locked(&asking.consumer, arrival.entry);
        let desk = self.desk(asking);
        match desk.rows.get(&arrival.entry) {
            Some(row) if locked || row.state != Known::Open => row.started,
            None if locked => 0,
            Some(_) | None => {
                let row = desk.know(arrival.entry, Known::Open, now);
                row.started += 1;
                row.started
            }
        }
    }

    /// Claims a message for a call.
    pub(crate) fn claim(
        &mut self,
        asking: &Asking,
        arrival: &Arrival,
        held: Option<&Held>,
        lasts: Duration,
    ) -> Option<Claimed> {
        let now = self.now();
        if !self.desk(asking).holds(held) {
            return Some(Claimed::Lost);
        }
        if self.is_row_locked(&asking.consumer, arrival.entry) {
            return None;
        }
        let token = self.random.uuid();
        let desk = self.desk(asking);
        if let Some(row) = desk.rows.get(&arrival.entry) {
            match (row.state, row.claim) {
                (Known::Calling, Some((_, until))) if until > now => return Some(Claimed::Busy(rest(until, now))),
                (Known::Open | Known::Calling, _) => {}
                (state, _) => {
                    desk.trace_repeat(asking.traced(), arrival.entry);
                    return Some(Claimed::Repeat(state));
                }
            }
        }
        if desk.queues.contains_key(&arrival.queue) {
            desk.know(arrival.entry, Known::Waiting, now);
            desk.trace(asking.traced(), arrival, Known::Waiting, now);
            desk.append(Waiting::fresh(arrival.clone()), now);
            return Some(Claimed::Behind);
        }
        let row = desk.know(arrival.entry, Known::Calling, now);
        row.started += 1;
        row.claim = Some((token, now.saturating_add(micros(lasts))));
        Some(Claimed::Mine(Claim { token, started: row.started }))
    }

    /// Records that handling ended without a result and without a crash. Resets the number of starts.
    pub(crate) fn end_handling(&mut self, asking: &Asking, entry: Entry, claim: Option<Claim>) {
        let now = self.now();
        if self.is_row_locked(&asking.consumer, entry) {
            return;
        }
        let desk = self.desk(asking);
        let ended = desk.rows.get(&entry).is_some_and(|row| match row.state {
            Known::Open => claim.is_none(),
            Known::Calling => claim.is_some_and(|claim| row.is_claimed_by(claim)),
            Known::Waiting | Known::Done | Known::Skipped | Known::Dead | Known::Reopened => false,
        });
        if ended {
            desk.know(entry, Known::Open, now).started = 0;
        }
    }

    /// Opens the transaction for a call's result.
    pub(crate) fn enter_claimed(
        &mut self,
        asking: &Asking,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Claim,
    ) -> Option<Opened> {
        let desk = self.desk(asking);
        if !desk.holds(held) {
            return Some(Opened::Lost);
        }
        if !desk.rows.get(&arrival.entry).is_some_and(|row| row.is_claimed_by(claim)) {
            return Some(Opened::Lost);
        }
        if self.is_row_locked(&asking.consumer, arrival.entry) {
            return None;
        }
        let deed = Deed { arrival: arrival.clone(), kind: Kind::Ends(Known::Done, None) };
        let pending = Pending { lane: held.map(|held| held.lane.clone()), deeds: vec![deed], ..pending(asking) };
        Some(Opened::Open(self.open(Some(pending)), vec![Entered::New]))
    }
}

impl Desk {
    /// The result for an entered message, and its state from then on.
    fn meet(&self, arrival: &Arrival, met: &mut BTreeMap<Entry, Known>, now: Micros) -> Entered {
        let (entered, state) = match self.rows.get(&arrival.entry).map(|row| row.state(now)) {
            None | Some(Known::Open) if self.queues.contains_key(&arrival.queue) => (Entered::Behind, Known::Waiting),
            None | Some(Known::Open) => (Entered::New, Known::Done),
            Some(state) => (Entered::Repeat(state), state),
        };
        met.insert(arrival.entry, state);
        entered
    }
}

impl Pending {
    /// Adds these messages, and locks the queues in which some of them wait.
    fn with(mut self, arrivals: &[Arrival], entered: &[Entered]) -> Self {
        for (arrival, entered) in arrivals.iter().zip(entered) {
            let kind = match entered {
                Entered::New => Kind::Ends(Known::Done, None),
                Entered::Repeat(_) => Kind::Repeats,
                Entered::Behind => {
                    self.queues.insert(arrival.queue.clone());
                    Kind::Waits
                }
            };
            self.deeds.push(Deed { arrival: arrival.clone(), kind });
        }
        self
    }
}

/// The inbox part of a transaction, without changes and locks.
pub(crate) fn pending(asking: &Asking) -> Pending {
    Pending {
        consumer: asking.consumer.clone(),
        traced: asking.traced(),
        lane: None,
        queues: BTreeSet::new(),
        deeds: Vec::new(),
    }
}

fn rest(until: Micros, now: Micros) -> Duration {
    Duration::from_micros(u64::try_from(until - now).unwrap_or_default())
}
