//! The retry table: members claim a queue, handle its first messages and release it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::inbox::{self, Due, Entered, Entry, State as Known};

use super::desk::Waiting;
use super::enter::pending;
use super::pending::{Deed, Kind, Pending};
use super::{Asking, Opened};
use crate::state::{Micros, State, micros};

impl State {
    /// Claims due queues. Those that waited longest come first.
    pub(crate) fn due(&mut self, asking: &Asking, queues: usize, messages: usize, lasts: Duration) -> Vec<Due> {
        let now = self.now();
        let until = now.saturating_add(micros(lasts));
        self.due_queues(asking, now)
            .into_iter()
            .take(queues)
            .filter_map(|name| {
                let token = self.random.uuid();
                let desk = self.desk(asking);
                let queue = desk.queues.get_mut(&name)?;
                queue.claim = Some((token, until));
                if let Some(first) = queue.messages.values_mut().next().filter(|first| first.not_before <= now) {
                    first.started += 1;
                }
                let reopened = |entry: Entry| desk.rows.get(&entry).is_some_and(|row| row.state == Known::Reopened);
                let waiting = |(number, waiting): (&i64, &Waiting)| inbox::Waiting {
                    number: *number,
                    arrival: waiting.arrival.clone(),
                    attempts: waiting.attempts,
                    started: waiting.started,
                    reopened: reopened(waiting.arrival.entry),
                };
                // Stop before the first message that is not due yet.
                let ready = queue.messages.iter().take_while(|(_, waiting)| waiting.not_before <= now);
                let messages = ready.take(messages).map(waiting).collect();
                Some(Due { queue: name, token, messages })
            })
            .collect()
    }

    /// Due queues without a claim that do not wait for an operator.
    fn due_queues(&mut self, asking: &Asking, now: Micros) -> Vec<ByteString> {
        let queues = self.desk(asking).queues.iter();
        let due = queues.filter(|(_, queue)| queue.held.is_empty() && queue.next <= now && !queue.is_claimed(now));
        let mut due: Vec<(Micros, ByteString)> = due.map(|(name, queue)| (queue.next, name.clone())).collect();
        due.sort();
        due.into_iter().map(|(_, name)| name).filter(|name| !self.is_queue_locked(&asking.consumer, name)).collect()
    }

    /// Opens the transaction for the first message of a claimed queue.
    pub(crate) fn enter_first(&mut self, asking: &Asking, due: &Due, number: i64) -> Option<Opened> {
        let now = self.now();
        let queue = self.desk(asking).queues.get(&due.queue);
        let queue = queue.filter(|queue| queue.is_claimed_by(due.token) && queue.is_claimed(now));
        let queue = queue.filter(|queue| queue.first() == Some(number));
        let Some(arrival) = queue.and_then(|queue| queue.messages.get(&number)).map(|first| first.arrival.clone())
        else {
            return Some(Opened::Lost);
        };
        if self.is_row_locked(&asking.consumer, arrival.entry) {
            return None;
        }
        let deed = Deed { arrival, kind: Kind::Ends(Known::Done, Some(number)) };
        let queues = BTreeSet::from([due.queue.clone()]);
        let pending = Pending { queues, deeds: vec![deed], ..pending(asking) };
        Some(Opened::Open(self.open(Some(pending)), vec![Entered::New]))
    }

    /// Ends a claim. Checks whether the queue is empty while no transaction can append to it.
    pub(crate) fn release(&mut self, asking: &Asking, due: &Due) -> Option<()> {
        let now = self.now();
        if self.is_queue_locked(&asking.consumer, &due.queue) {
            return None;
        }
        let desk = self.desk(asking);
        let Some(queue) = desk.queues.get_mut(&due.queue).filter(|queue| queue.is_claimed_by(due.token)) else {
            return Some(());
        };
        queue.claim = None;
        queue.next = now.max(queue.not_before());
        if let Some(first) = queue.messages.values_mut().next() {
            // The queue was released without a crash, so its starts no longer count.
            first.started = 0;
        } else if queue.held.is_empty() {
            desk.queues.remove(&due.queue);
        }
        Some(())
    }
}
