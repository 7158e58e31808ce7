//! Messages that were not handled: they wait or are dead-lettered.

use relevo_core::inbox::{Arrival, Claim, Due, Held, Kept, Setback, State as Known, Stop};

use super::Asking;
use super::desk::{Desk, Queue, Waiting};
use crate::state::{Micros, State, micros};

impl State {
    /// Stores a failed message that arrived directly from the broker.
    pub(crate) fn set_back(
        &mut self,
        asking: &Asking,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> Option<Kept> {
        let now = self.now();
        if !self.desk(asking).holds(held) {
            return Some(Kept::Lost);
        }
        // Only a queue that starts to wait for an operator needs the lock. Appending does not.
        let in_use = setback.stop == Stop::DeadHold && self.is_queue_locked(&asking.consumer, &arrival.queue);
        if in_use || self.is_row_locked(&asking.consumer, arrival.entry) {
            return None;
        }
        let desk = self.desk(asking);
        match desk.rows.get(&arrival.entry) {
            None if claim.is_none() => {}
            Some(row) if row.state(now) == Known::Open && claim.is_none() => {}
            Some(row) if row.state == Known::Calling && claim.is_none() => return Some(Kept::Busy),
            Some(row) if claim.is_some_and(|claim| row.is_claimed_by(claim)) => {}
            None => return Some(Kept::Lost),
            Some(row) if matches!(row.state, Known::Open | Known::Calling) => return Some(Kept::Lost),
            Some(row) => {
                let state = row.state;
                desk.trace_repeat(asking.traced(), arrival.entry);
                return Some(Kept::Repeat(state));
            }
        }
        desk.keep(arrival, setback, now);
        desk.trace(asking.traced(), arrival, state_after(setback.stop), now);
        Some(Kept::Kept)
    }

    /// Stores the failed first message of a claimed queue.
    pub(crate) fn set_back_due(&mut self, asking: &Asking, due: &Due, number: i64, setback: &Setback) -> Option<Kept> {
        let now = self.now();
        if self.is_queue_locked(&asking.consumer, &due.queue) {
            return None;
        }
        let desk = self.desk(asking);
        let queue = desk.queues.get_mut(&due.queue).filter(|queue| queue.is_claimed_by(due.token));
        let Some(queue) = queue.filter(|queue| queue.first() == Some(number)) else { return Some(Kept::Lost) };
        let Some(arrival) = queue.set_back(number, setback, now) else { return Some(Kept::Lost) };
        match setback.stop {
            Stop::Retry { .. } | Stop::Wait { .. } => {}
            Stop::DeadHold | Stop::DeadContinue => desk.bury(number, &arrival, setback, now),
        }
        desk.trace(asking.traced(), &arrival, state_after(setback.stop), now);
        Some(Kept::Kept)
    }
}

impl Queue {
    /// Applies a failure of its first message. Returns the message.
    fn set_back(&mut self, number: i64, setback: &Setback, now: Micros) -> Option<Arrival> {
        match setback.stop {
            Stop::Retry { after } | Stop::Wait { after } => {
                let first = self.messages.get_mut(&number)?;
                let untried = matches!(setback.stop, Stop::Wait { .. });
                first.started = if untried { first.started.saturating_sub(1) } else { 0 };
                // Keep the error of the last real attempt.
                if !untried || first.attempts == 0 {
                    first.error.clone_from(&setback.error);
                }
                first.attempts = setback.attempts;
                self.next = now.saturating_add(micros(after));
                if !untried {
                    first.not_before = self.next;
                }
                self.claim = None;
                Some(first.arrival.clone())
            }
            Stop::DeadHold => {
                let arrival = self.messages.remove(&number)?.arrival;
                self.held.insert(arrival.entry);
                self.claim = None;
                Some(arrival)
            }
            Stop::DeadContinue => self.messages.remove(&number).map(|waiting| waiting.arrival),
        }
    }
}

impl Desk {
    fn keep(&mut self, arrival: &Arrival, setback: &Setback, now: Micros) {
        match setback.stop {
            Stop::Retry { after } | Stop::Wait { after } => {
                let begun = self.rows.get(&arrival.entry).map_or(0, |row| row.started);
                let untried = matches!(setback.stop, Stop::Wait { .. });
                self.know(arrival.entry, Known::Waiting, now);
                let again = now.saturating_add(micros(after));
                let waiting = Waiting {
                    arrival: arrival.clone(),
                    attempts: setback.attempts,
                    started: if untried { begun.saturating_sub(1) } else { 0 },
                    error: setback.error.clone(),
                    not_before: again,
                };
                self.append(waiting, again);
            }
            Stop::DeadHold => {
                self.give_up(arrival, setback, now);
                let queue = self.queues.entry(arrival.queue.clone()).or_insert_with(|| Queue::new(now));
                queue.held.insert(arrival.entry);
            }
            Stop::DeadContinue => self.give_up(arrival, setback, now),
        }
    }

    /// A message that never waited gets a number behind all waiting ones.
    fn give_up(&mut self, arrival: &Arrival, setback: &Setback, now: Micros) {
        let number = self.number();
        self.bury(number, arrival, setback, now);
    }
}

const fn state_after(stop: Stop) -> Known {
    match stop {
        Stop::Retry { .. } | Stop::Wait { .. } => Known::Waiting,
        Stop::DeadHold | Stop::DeadContinue => Known::Dead,
    }
}
