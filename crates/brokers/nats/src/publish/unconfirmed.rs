//! Messages of one connection that wait for their acknowledgement.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::Subject;
use parking_lot::Mutex;
use relevo_core::Outcome;
use slab::Slab;
use tokio::sync::{oneshot, watch};

use super::call::PublishCall;
use super::in_flight_window::{AckRate, InFlightWindow};
use super::subject_failures::SubjectFailures;
use crate::classify::Error;

/// The outcome of a batch.
pub(crate) type BatchAck = oneshot::Receiver<Result<(), Error>>;

/// The receiver of an outcome.
#[derive(Debug)]
enum AckOwner {
    /// A message of a call, by its index.
    Message(Arc<PublishCall>, usize),
    /// A batch of this many messages, which share one acknowledgement.
    Batch(usize, oneshot::Sender<Result<(), Error>>),
}

/// A pending message, or the last message of a pending batch.
#[derive(Debug)]
struct PendingAck {
    owner: AckOwner,
    /// Distinguishes successive users of a slot, because an acknowledgement may arrive after its deadline.
    generation: u64,
    subject: Subject,
    deadline: Instant,
}

/// All messages of one connection that wait for an acknowledgement, limited by the window.
#[derive(Debug)]
pub(crate) struct UnconfirmedMessages {
    window: InFlightWindow,
    table: Mutex<AckTable>,
    confirm_timeout: Duration,
    connection_lost: watch::Sender<bool>,
    /// Whether a message was stored.
    stored_any: AtomicBool,
}

#[derive(Debug, Default)]
struct AckTable {
    pending: Slab<PendingAck>,
    /// The number of pending messages, including all messages of a batch.
    in_flight: usize,
    generation: u64,
    closed: bool,
    ack_rate: AckRate,
    subject_failures: SubjectFailures,
}

/// Bits for the slot. A token consists of a slot and a counter that changes with each use.
const SLOT_BITS: u32 = 16;
/// The maximum number of pending messages per connection.
pub(crate) const IN_FLIGHT_MAX: usize = 1 << SLOT_BITS;

impl UnconfirmedMessages {
    pub(crate) fn new(in_flight_max: usize, confirm_timeout: Duration, clustered: bool) -> Self {
        let table = Mutex::new(AckTable { subject_failures: SubjectFailures::new(clustered), ..AckTable::default() });
        let connection_lost = watch::Sender::new(false);
        Self {
            window: InFlightWindow::new(in_flight_max),
            table,
            confirm_timeout,
            connection_lost,
            stored_any: AtomicBool::new(false),
        }
    }

    /// Waits for capacity for one message or a batch. Fails when the connection is lost.
    pub(crate) async fn reserve(&self, messages: usize) -> Result<(), Error> {
        self.window.acquire(messages).await
    }

    /// Registers a message that has capacity. Its acknowledgement carries the returned token. Fails when the connection
    /// is lost.
    pub(crate) fn register(&self, call: &Arc<PublishCall>, index: usize, subject: &Subject) -> Result<u64, Error> {
        self.insert(AckOwner::Message(Arc::clone(call), index), subject)
    }

    /// Registers the last message of a batch that has capacity.
    pub(crate) fn register_batch(&self, messages: usize, last: &Subject) -> Result<(u64, BatchAck), Error> {
        let (sender, ack) = oneshot::channel();
        Ok((self.insert(AckOwner::Batch(messages, sender), last)?, ack))
    }

    fn insert(&self, owner: AckOwner, subject: &Subject) -> Result<u64, Error> {
        let now = Instant::now();
        let mut table = self.table.lock();
        if table.closed {
            return Err(Error::Disconnected);
        }
        if let AckOwner::Message(call, _) = &owner {
            call.add();
        }
        table.generation += 1;
        let generation = table.generation;
        let pending = PendingAck { owner, generation, subject: subject.clone(), deadline: now + self.confirm_timeout };
        table.in_flight += pending.messages();
        let slot = table.pending.insert(pending) as u64;
        let in_flight = table.in_flight;
        table.ack_rate.sent(in_flight, now);
        Ok(generation << SLOT_BITS | slot)
    }

    /// Cancels a message that was not sent, which the caller then reports. Returns `false` if it already has an
    /// outcome.
    pub(crate) fn cancel(&self, token: u64) -> bool {
        let mut table = self.table.lock();
        let Some(pending) = table.take(token) else { return false };
        table.update_ack_rate();
        drop(table);
        self.window.release(self.window.weight(pending.messages()));
        if let AckOwner::Message(call, _) = pending.owner {
            call.complete(1);
        }
        true
    }

    /// Whether the server was slow to acknowledge while enough messages were in flight.
    pub(crate) fn is_slow(&self) -> bool {
        self.table.lock().ack_rate.is_slow()
    }

    /// Whether this connection ever stored a message.
    pub(crate) fn has_stored(&self) -> bool {
        self.stored_any.load(Ordering::Relaxed)
    }

    /// Completes when the connection is lost.
    pub(crate) async fn wait_until_lost(&self) {
        // The sender lives as long as `self`.
        self.connection_lost.subscribe().wait_for(|lost| *lost).await.ok();
    }

    /// Applies acknowledgements. Tokens that no longer wait are ignored.
    pub(crate) fn settle(&self, acks: impl IntoIterator<Item = (u64, Result<usize, Error>)>) {
        let now = Instant::now();
        let mut table = self.table.lock();
        let mut settled = SettledAcks::default();
        for (token, ack) in acks {
            self.stored_any.fetch_or(ack.is_ok(), Ordering::Relaxed);
            if let Some(pending) = table.take(token) {
                let expected = pending.messages();
                let weight = self.window.weight(pending.messages());
                let ack = table.subject_failures.classify(&pending.subject, ack, now);
                settled.push(pending, weight, ack.and_then(|stored| check_batch_count(stored, expected)));
            }
        }
        let in_flight = table.in_flight;
        let window = table.ack_rate.settled(settled.count, in_flight);
        self.report(settled);
        if let Some(window) = window {
            self.window.resize(window);
        }
    }

    /// Reports messages that have passed their deadline.
    pub(crate) fn expire(&self, now: Instant) {
        let timeout = self.confirm_timeout;
        self.settle_where(|pending| pending.deadline <= now, |_| Error::Unconfirmed(timeout));
    }

    /// Reports messages for a subject that the account may not publish to.
    pub(crate) fn deny(&self, subject: &str) {
        self.settle_where(|pending| &*pending.subject == subject, |_| Error::PublishDenied(subject.to_owned()));
    }

    /// Marks the connection as lost: pending messages may have been stored, and no message can be added.
    pub(crate) fn connection_lost(&self) {
        self.table.lock().closed = true;
        self.window.close();
        self.connection_lost.send_replace(true);
        self.settle_where(|_| true, |_| Error::ConnectionLost);
    }

    /// Removes the messages of a cancelled call.
    pub(crate) fn abandon(&self, call: &Arc<PublishCall>) {
        let mut table = self.table.lock();
        let is_abandoned = |pending: &PendingAck| match &pending.owner {
            AckOwner::Message(owner, _) => Arc::ptr_eq(owner, call),
            AckOwner::Batch(_, ack) => ack.is_closed(),
        };
        let slots: Vec<usize> =
            table.pending.iter().filter(|(_, pending)| is_abandoned(pending)).map(|(slot, _)| slot).collect();
        let freed = slots.into_iter().map(|slot| self.window.weight(table.remove(slot).messages())).sum();
        table.update_ack_rate();
        self.window.release(freed);
    }

    fn settle_where(&self, selects: impl Fn(&PendingAck) -> bool, error: impl Fn(&PendingAck) -> Error) {
        let mut table = self.table.lock();
        let slots: Vec<usize> =
            table.pending.iter().filter(|(_, pending)| selects(pending)).map(|(slot, _)| slot).collect();
        let mut settled = SettledAcks::default();
        for slot in slots {
            let pending = table.remove(slot);
            let error = error(&pending);
            let weight = self.window.weight(pending.messages());
            settled.push(pending, weight, Err(error));
        }
        table.update_ack_rate();
        self.report(settled);
    }

    /// Must be called with the table locked, so that a cancelled call receives no more outcomes.
    fn report(&self, settled: SettledAcks) {
        self.window.release(settled.weight);
        for (call, outcomes) in settled.calls {
            call.report(outcomes);
        }
    }
}

impl PendingAck {
    fn messages(&self) -> usize {
        match self.owner {
            AckOwner::Message(..) => 1,
            AckOwner::Batch(messages, _) => messages,
        }
    }
}

impl AckTable {
    /// Removes a message that ended without an acknowledgement from the rate measurement.
    fn update_ack_rate(&mut self) {
        self.ack_rate.ended_unacknowledged(self.in_flight);
    }

    /// Removes the pending message of a slot.
    fn remove(&mut self, slot: usize) -> PendingAck {
        let pending = self.pending.remove(slot);
        self.in_flight -= pending.messages();
        pending
    }

    fn take(&mut self, token: u64) -> Option<PendingAck> {
        let slot = usize::try_from(token % IN_FLIGHT_MAX as u64).ok()?;
        let generation = token >> SLOT_BITS;
        self.pending.get(slot).is_some_and(|pending| pending.generation == generation).then(|| self.remove(slot))
    }
}

/// A server without batch support acknowledges only the last message.
fn check_batch_count(stored: usize, expected: usize) -> Result<(), Error> {
    let short = || Error::InvalidAck(format!("it confirms {stored} of {expected} messages"));
    (stored == expected).then_some(()).ok_or_else(short)
}

/// Outcomes of one call.
type CallOutcomes = (Arc<PublishCall>, Vec<(usize, Outcome)>);

/// Outcomes grouped by call. Acknowledgements mostly arrive in the order of sending.
#[derive(Default)]
struct SettledAcks {
    calls: Vec<CallOutcomes>,
    count: usize,
    weight: usize,
}

impl SettledAcks {
    fn push(&mut self, pending: PendingAck, weight: usize, ack: Result<(), Error>) {
        self.count += pending.messages();
        self.weight += weight;
        match pending.owner {
            // The call was cancelled if it no longer listens.
            AckOwner::Batch(_, owner) => drop(owner.send(ack)),
            AckOwner::Message(call, index) => {
                let outcome = ack.map_err(Into::into);
                match self.calls.last_mut() {
                    Some((last, outcomes)) if Arc::ptr_eq(last, &call) => outcomes.push((index, outcome)),
                    _ => self.calls.push((call, vec![(index, outcome)])),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::Class;
    use relevo_core::broker::OutcomeReceiver;

    use super::*;

    fn unconfirmed_messages() -> UnconfirmedMessages {
        UnconfirmedMessages::new(2, Duration::from_secs(4), false)
    }

    fn classes(outcomes: &OutcomeReceiver) -> Vec<(usize, Option<Class>)> {
        outcomes
            .take()
            .into_iter()
            .map(|(_, index, outcome)| (index, outcome.err().map(|error| error.class())))
            .collect()
    }

    #[tokio::test]
    async fn a_late_acknowledgement_is_ignored() {
        let (unconfirmed, outcomes) = (unconfirmed_messages(), OutcomeReceiver::default());
        let call = PublishCall::new(&outcomes.sender(1));
        unconfirmed.reserve(1).await.expect("capacity");
        let first = unconfirmed.register(&call, 0, &"a".into()).expect("registered");
        unconfirmed.expire(Instant::now() + Duration::from_secs(5));
        assert_eq!(classes(&outcomes), [(0, Some(Class::Unknown))]);
        unconfirmed.reserve(1).await.expect("capacity");
        let second = unconfirmed.register(&call, 1, &"a".into()).expect("registered");
        assert_eq!(first % IN_FLIGHT_MAX as u64, second % IN_FLIGHT_MAX as u64, "the slot is used again");
        unconfirmed.settle([(first, Ok(1))]);
        assert_eq!(classes(&outcomes), []);
        unconfirmed.settle([(second, Ok(1))]);
        assert_eq!(classes(&outcomes), [(1, None)]);
        call.finished().await;
    }

    #[tokio::test]
    async fn an_abandoned_call_gets_no_outcome_and_releases_the_window() {
        let (unconfirmed, outcomes) = (unconfirmed_messages(), OutcomeReceiver::default());
        let call = PublishCall::new(&outcomes.sender(1));
        for index in 0..2 {
            unconfirmed.reserve(1).await.expect("capacity");
            unconfirmed.register(&call, index, &"a".into()).expect("registered");
        }
        unconfirmed.abandon(&call);
        unconfirmed.reserve(1).await.expect("capacity again");
        unconfirmed.connection_lost();
        assert_eq!(classes(&outcomes), []);
    }

    #[tokio::test]
    async fn a_lost_connection_settles_pending_messages_and_accepts_no_more() {
        let (unconfirmed, outcomes) = (unconfirmed_messages(), OutcomeReceiver::default());
        let call = PublishCall::new(&outcomes.sender(1));
        unconfirmed.reserve(1).await.expect("capacity");
        unconfirmed.register(&call, 0, &"a".into()).expect("registered");
        unconfirmed.connection_lost();
        assert_eq!(classes(&outcomes), [(0, Some(Class::Unknown))]);
        assert!(unconfirmed.reserve(1).await.is_err());
        assert!(unconfirmed.register(&call, 1, &"a".into()).is_err());
        call.finished().await;
    }

    #[tokio::test]
    async fn a_denied_subject_leaves_the_others_pending() {
        let (unconfirmed, outcomes) = (unconfirmed_messages(), OutcomeReceiver::default());
        let call = PublishCall::new(&outcomes.sender(1));
        unconfirmed.reserve(2).await.expect("capacity");
        unconfirmed.register(&call, 0, &"a".into()).expect("registered");
        unconfirmed.register(&call, 1, &"b".into()).expect("registered");
        unconfirmed.deny("b");
        assert_eq!(classes(&outcomes), [(1, Some(Class::Blocked))]);
    }
}
