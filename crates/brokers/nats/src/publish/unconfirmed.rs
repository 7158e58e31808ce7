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

/// A waiting message, or the last message of a waiting batch.
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
    /// The number of waiting messages, including all messages of a batch.
    in_flight: usize,
    generation: u64,
    closed: bool,
    ack_rate: AckRate,
    subject_failures: SubjectFailures,
}

/// Bits for the slot. A token consists of a slot and a counter that changes with each use.
const SLOT_BITS: u32 = 16;
/// The maximum number of waiting messages per connection.
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
    pub(crate) fn register(&self, flight: &Arc<PublishCall>, index: usize, subject: &Subject) -> Result<u64, Error> {
        self.insert(AckOwner::Message(Arc::clone(flight), index), subject)
    }

    /// Registers the last message of a batch that has capacity.
    pub(crate) fn register_batch(&self, messages: usize, last: &Subject) -> Result<(u64, BatchAck), Error> {
        let (sender, answer) = oneshot::channel();
        Ok((self.insert(AckOwner::Batch(messages, sender), last)?, answer))
    }

    fn insert(&self, whose: AckOwner, subject: &Subject) -> Result<u64, Error> {
        let now = Instant::now();
        let mut table = self.table.lock();
        if table.closed {
            return Err(Error::Disconnected);
        }
        if let AckOwner::Message(flight, _) = &whose {
            flight.add();
        }
        table.generation += 1;
        let turn = table.generation;
        let waiting = PendingAck {
            owner: whose,
            generation: turn,
            subject: subject.clone(),
            deadline: now + self.confirm_timeout,
        };
        table.in_flight += waiting.messages();
        let place = table.pending.insert(waiting) as u64;
        let in_flight = table.in_flight;
        table.ack_rate.sent(in_flight, now);
        Ok(turn << SLOT_BITS | place)
    }

    /// Cancels a message that was not sent, which the caller then reports. Returns `false` if it already has an
    /// outcome.
    pub(crate) fn cancel(&self, token: u64) -> bool {
        let mut table = self.table.lock();
        let Some(waiting) = table.take(token) else { return false };
        table.update_ack_rate();
        drop(table);
        self.window.release(self.window.weight(waiting.messages()));
        if let AckOwner::Message(flight, _) = waiting.owner {
            flight.complete(1);
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
    pub(crate) fn settle(&self, answers: impl IntoIterator<Item = (u64, Result<usize, Error>)>) {
        let now = Instant::now();
        let mut table = self.table.lock();
        let mut settled = SettledAcks::default();
        for (token, answer) in answers {
            self.stored_any.fetch_or(answer.is_ok(), Ordering::Relaxed);
            if let Some(waiting) = table.take(token) {
                let wanted = waiting.messages();
                let weight = self.window.weight(waiting.messages());
                let answer = table.subject_failures.classify(&waiting.subject, answer, now);
                settled.push(waiting, weight, answer.and_then(|stored| check_batch_count(stored, wanted)));
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
        let within = self.confirm_timeout;
        self.settle_where(|waiting| waiting.deadline <= now, |_| Error::Unconfirmed(within));
    }

    /// Reports messages for a subject that the account may not publish to.
    pub(crate) fn deny(&self, subject: &str) {
        self.settle_where(|waiting| &*waiting.subject == subject, |_| Error::PublishDenied(subject.to_owned()));
    }

    /// Marks the connection as lost: waiting messages may have been stored, and no message can be added.
    pub(crate) fn connection_lost(&self) {
        self.table.lock().closed = true;
        self.window.close();
        self.connection_lost.send_replace(true);
        self.settle_where(|_| true, |_| Error::ConnectionLost);
    }

    /// Removes the messages of a cancelled call.
    pub(crate) fn abandon(&self, flight: &Arc<PublishCall>) {
        let mut table = self.table.lock();
        let gone = |waiting: &PendingAck| match &waiting.owner {
            AckOwner::Message(whose, _) => Arc::ptr_eq(whose, flight),
            AckOwner::Batch(_, answer) => answer.is_closed(),
        };
        let places: Vec<usize> =
            table.pending.iter().filter(|(_, waiting)| gone(waiting)).map(|(place, _)| place).collect();
        let freed = places.into_iter().map(|place| self.window.weight(table.remove(place).messages())).sum();
        table.update_ack_rate();
        self.window.release(freed);
    }

    fn settle_where(&self, which: impl Fn(&PendingAck) -> bool, why: impl Fn(&PendingAck) -> Error) {
        let mut table = self.table.lock();
        let places: Vec<usize> =
            table.pending.iter().filter(|(_, waiting)| which(waiting)).map(|(place, _)| place).collect();
        let mut settled = SettledAcks::default();
        for place in places {
            let waiting = table.remove(place);
            let error = why(&waiting);
            let weight = self.window.weight(waiting.messages());
            settled.push(waiting, weight, Err(error));
        }
        table.update_ack_rate();
        self.report(settled);
    }

    /// Must be called with the table locked, so that a cancelled call receives no more outcomes.
    fn report(&self, settled: SettledAcks) {
        self.window.release(settled.weight);
        for (flight, outcomes) in settled.calls {
            flight.report(outcomes);
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
    /// Tells the rate measurement that a message ended without an acknowledgement.
    fn update_ack_rate(&mut self) {
        self.ack_rate.ended_unacknowledged(self.in_flight);
    }

    /// Removes the waiting message of a slot.
    fn remove(&mut self, place: usize) -> PendingAck {
        let waiting = self.pending.remove(place);
        self.in_flight -= waiting.messages();
        waiting
    }

    fn take(&mut self, token: u64) -> Option<PendingAck> {
        let place = usize::try_from(token % IN_FLIGHT_MAX as u64).ok()?;
        let turn = token >> SLOT_BITS;
        self.pending.get(place).is_some_and(|waiting| waiting.generation == turn).then(|| self.remove(place))
    }
}

/// A server without batch support acknowledges only the last message.
fn check_batch_count(stored: usize, wanted: usize) -> Result<(), Error> {
    let short = || Error::InvalidAck(format!("it is for {stored} messages of {wanted}"));
    (stored == wanted).then_some(()).ok_or_else(short)
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
    fn push(&mut self, waiting: PendingAck, weight: usize, answer: Result<(), Error>) {
        self.count += waiting.messages();
        self.weight += weight;
        match waiting.owner {
            // The call was cancelled if it no longer listens.
            AckOwner::Batch(_, whose) => drop(whose.send(answer)),
            AckOwner::Message(flight, index) => {
                let outcome = answer.map_err(Into::into);
                match self.calls.last_mut() {
                    Some((last, outcomes)) if Arc::ptr_eq(last, &flight) => outcomes.push((index, outcome)),
                    _ => self.calls.push((flight, vec![(index, outcome)])),
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

    fn classes(reports: &OutcomeReceiver) -> Vec<(usize, Option<Class>)> {
        reports
            .take()
            .into_iter()
            .map(|(_, index, outcome)| (index, outcome.err().map(|error| error.class())))
            .collect()
    }

    #[tokio::test]
    async fn a_late_acknowledgement_is_ignored() {
        let (acks, reports) = (unconfirmed_messages(), OutcomeReceiver::default());
        let flight = PublishCall::new(&reports.sender(1));
        acks.reserve(1).await.expect("room");
        let first = acks.register(&flight, 0, &"a".into()).expect("registered");
        acks.expire(Instant::now() + Duration::from_secs(5));
        assert_eq!(classes(&reports), [(0, Some(Class::Unknown))]);
        acks.reserve(1).await.expect("room");
        let second = acks.register(&flight, 1, &"a".into()).expect("registered");
        assert_eq!(first % IN_FLIGHT_MAX as u64, second % IN_FLIGHT_MAX as u64, "the place is used again");
        acks.settle([(first, Ok(1))]);
        assert_eq!(classes(&reports), []);
        acks.settle([(second, Ok(1))]);
        assert_eq!(classes(&reports), [(1, None)]);
        flight.finished().await;
    }

    #[tokio::test]
    async fn an_abandoned_call_gets_no_outcome_and_releases_the_window() {
        let (acks, reports) = (unconfirmed_messages(), OutcomeReceiver::default());
        let flight = PublishCall::new(&reports.sender(1));
        for index in 0..2 {
            acks.reserve(1).await.expect("room");
            acks.register(&flight, index, &"a".into()).expect("registered");
        }
        acks.abandon(&flight);
        acks.reserve(1).await.expect("room again");
        acks.connection_lost();
        assert_eq!(classes(&reports), []);
    }

    #[tokio::test]
    async fn a_lost_connection_settles_pending_messages_and_accepts_no_more() {
        let (acks, reports) = (unconfirmed_messages(), OutcomeReceiver::default());
        let flight = PublishCall::new(&reports.sender(1));
        acks.reserve(1).await.expect("room");
        acks.register(&flight, 0, &"a".into()).expect("registered");
        acks.connection_lost();
        assert_eq!(classes(&reports), [(0, Some(Class::Unknown))]);
        assert!(acks.reserve(1).await.is_err());
        assert!(acks.register(&flight, 1, &"a".into()).is_err());
        flight.finished().await;
    }

    #[tokio::test]
    async fn a_denied_subject_leaves_the_others_pending() {
        let (acks, reports) = (unconfirmed_messages(), OutcomeReceiver::default());
        let flight = PublishCall::new(&reports.sender(1));
        acks.reserve(2).await.expect("room");
        acks.register(&flight, 0, &"a".into()).expect("registered");
        acks.register(&flight, 1, &"b".into()).expect("registered");
        acks.deny("b");
        assert_eq!(classes(&reports), [(1, Some(Class::Blocked))]);
    }
}
