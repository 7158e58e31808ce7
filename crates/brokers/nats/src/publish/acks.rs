//! Messages of one connection that wait for their acknowledgement.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_nats::Subject;
use relevo_core::{Confirms, Outcome};
use slab::Slab;
use tokio::sync::{Notify, oneshot, watch};

use super::absent::Absent;
use super::pace::Pace;
use super::room::Room;
use crate::classify::Error;

/// The outcome of a batch.
pub(crate) type Answer = oneshot::Receiver<Result<(), Error>>;

/// A call of `publish` with messages in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    confirms: Confirms,
    /// The number of messages without an outcome, plus one while the call is still sending.
    left: AtomicUsize,
    landed: Notify,
}

impl Flight {
    pub(crate) fn new(confirms: &Confirms) -> Arc<Self> {
        Arc::new(Self { confirms: confirms.clone(), left: AtomicUsize::new(1), landed: Notify::new() })
    }

    /// Completes when every message has an outcome. Must be called once, after the last message was sent.
    pub(crate) async fn landed(&self) {
        self.leave(1);
        self.landed.notified().await;
    }

    fn leave(&self, count: usize) {
        if self.left.fetch_sub(count, Ordering::AcqRel) == count {
            self.landed.notify_one();
        }
    }
}

/// The receiver of an outcome.
#[derive(Debug)]
enum Whose {
    /// A message of a call, by its index.
    Message(Arc<Flight>, usize),
    /// A batch of this many messages, which share one acknowledgement.
    Batch(usize, oneshot::Sender<Result<(), Error>>),
}

/// A waiting message, or the last message of a waiting batch.
#[derive(Debug)]
struct Waiting {
    whose: Whose,
    /// Distinguishes successive users of a slot, because an acknowledgement may arrive after its deadline.
    turn: u64,
    subject: Subject,
    deadline: Instant,
}

/// All messages of one connection that wait for an acknowledgement, limited by the window.
#[derive(Debug)]
pub(crate) struct Acks {
    room: Room,
    table: Mutex<Table>,
    within: Duration,
    lost: watch::Sender<bool>,
    /// Whether a message was stored.
    useful: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    waiting: Slab<Waiting>,
    /// The number of waiting messages, including all messages of a batch.
    in_flight: usize,
    turn: u64,
    closed: bool,
    pace: Pace,
    absent: Absent,
}

/// Bits for the slot. A token consists of a slot and a counter that changes with each use.
const PLACES_BITS: u32 = 16;
/// The maximum number of waiting messages per connection.
pub(crate) const IN_FLIGHT_MAX: usize = 1 << PLACES_BITS;

impl Acks {
    pub(crate) fn new(in_flight_max: usize, within: Duration, clustered: bool) -> Self {
        let table = Mutex::new(Table { absent: Absent::new(clustered), ..Table::default() });
        let lost = watch::Sender::new(false);
        Self { room: Room::new(in_flight_max), table, within, lost, useful: AtomicBool::new(false) }
    }

    /// Waits for capacity for one message or a batch. Fails when the connection is lost.
    pub(crate) async fn room(&self, messages: usize) -> Result<(), Error> {
        self.room.take(messages).await
    }

    /// Registers a message that has capacity. Its acknowledgement carries the returned token. Fails when the connection
    /// is lost.
    pub(crate) fn expect(&self, flight: &Arc<Flight>, index: usize, subject: &Subject) -> Result<u64, Error> {
        self.register(Whose::Message(Arc::clone(flight), index), subject)
    }

    /// Registers the last message of a batch that has capacity.
    pub(crate) fn expect_batch(&self, messages: usize, last: &Subject) -> Result<(u64, Answer), Error> {
        let (sender, answer) = oneshot::channel();
        Ok((self.register(Whose::Batch(messages, sender), last)?, answer))
    }

    fn register(&self, whose: Whose, subject: &Subject) -> Result<u64, Error> {
        let now = Instant::now();
        let mut table = self.lock();
        if table.closed {
            return Err(Error::Disconnected);
        }
        if let Whose::Message(flight, _) = &whose {
            flight.left.fetch_add(1, Ordering::AcqRel);
        }
        table.turn += 1;
        let turn = table.turn;
        let waiting = Waiting { whose, turn, subject: subject.clone(), deadline: now + self.within };
        table.in_flight += waiting.messages();
        let place = table.waiting.insert(waiting) as u64;
        let in_flight = table.in_flight;
        table.pace.sent(in_flight, now);
        Ok(turn << PLACES_BITS | place)
    }

    /// Cancels a message that was not sent, which the caller then reports. Returns `false` if it already has an
    /// outcome.
    pub(crate) fn forget(&self, token: u64) -> bool {
        let mut table = self.lock();
        let Some(waiting) = table.take(token) else { return false };
        table.tell_pace();
        drop(table);
        self.room.leave(self.room.weight(waiting.messages()));
        if let Whose::Message(flight, _) = waiting.whose {
            flight.leave(1);
        }
        true
    }

    /// Whether the server was slow to acknowledge while enough messages were in flight.
    pub(crate) fn is_slow(&self) -> bool {
        self.lock().pace.is_slow()
    }

    /// Whether this connection ever stored a message.
    pub(crate) fn was_useful(&self) -> bool {
        self.useful.load(Ordering::Relaxed)
    }

    /// Completes when the connection is lost.
    pub(crate) async fn lost(&self) {
        // The sender lives as long as `self`.
        self.lost.subscribe().wait_for(|lost| *lost).await.ok();
    }

    /// Applies acknowledgements. Tokens that no longer wait are ignored.
    pub(crate) fn settle(&self, answers: impl IntoIterator<Item = (u64, Result<usize, Error>)>) {
        let now = Instant::now();
        let mut table = self.lock();
        let mut settled = Settled::default();
        for (token, answer) in answers {
            self.useful.fetch_or(answer.is_ok(), Ordering::Relaxed);
            if let Some(waiting) = table.take(token) {
                let wanted = waiting.messages();
                let weight = self.room.weight(waiting.messages());
                let answer = table.absent.judged(&waiting.subject, answer, now);
                settled.push(waiting, weight, answer.and_then(|stored| whole(stored, wanted)));
            }
        }
        let in_flight = table.in_flight;
        let window = table.pace.settled(settled.count, in_flight);
        self.report(settled);
        if let Some(window) = window {
            self.room.resize(window);
        }
    }

    /// Reports messages that have passed their deadline.
    pub(crate) fn expire(&self, now: Instant) {
        let within = self.within;
        self.settle_where(|waiting| waiting.deadline <= now, |_| Error::Unconfirmed(within));
    }

    /// Reports messages for a subject that the account may not publish to.
    pub(crate) fn deny(&self, subject: &str) {
        self.settle_where(|waiting| &*waiting.subject == subject, |_| Error::NotPermitted(subject.to_owned()));
    }

    /// Marks the connection as lost: waiting messages may have been stored, and no message can be added.
    pub(crate) fn lose(&self) {
        self.lock().closed = true;
        self.room.close();
        self.lost.send_replace(true);
        self.settle_where(|_| true, |_| Error::Lost);
    }

    /// Removes the messages of a cancelled call.
    pub(crate) fn abandon(&self, flight: &Arc<Flight>) {
        let mut table = self.lock();
        let gone = |waiting: &Waiting| match &waiting.whose {
            Whose::Message(whose, _) => Arc::ptr_eq(whose, flight),
            Whose::Batch(_, answer) => answer.is_closed(),
        };
        let places: Vec<usize> =
            table.waiting.iter().filter(|(_, waiting)| gone(waiting)).map(|(place, _)| place).collect();
        let freed = places.into_iter().map(|place| self.room.weight(table.remove(place).messages())).sum();
        table.tell_pace();
        self.room.leave(freed);
    }

    fn settle_where(&self, which: impl Fn(&Waiting) -> bool, why: impl Fn(&Waiting) -> Error) {
        let mut table = self.lock();
        let places: Vec<usize> =
            table.waiting.iter().filter(|(_, waiting)| which(waiting)).map(|(place, _)| place).collect();
        let mut settled = Settled::default();
        for place in places {
            let waiting = table.remove(place);
            let error = why(&waiting);
            let weight = self.room.weight(waiting.messages());
            settled.push(waiting, weight, Err(error));
        }
        table.tell_pace();
        self.report(settled);
    }

    /// Must be called with the table locked, so that a cancelled call receives no more outcomes.
    fn report(&self, settled: Settled) {
        self.room.leave(settled.weight);
        for (flight, outcomes) in settled.runs {
            let count = outcomes.len();
            flight.confirms.report_all(outcomes);
            flight.leave(count);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        // No code panics while it holds the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn messages(&self) -> usize {
        match self.whose {
            Whose::Message(..) => 1,
            Whose::Batch(messages, _) => messages,
        }
    }
}

impl Table {
    /// Tells the rate measurement that a message ended without an acknowledgement.
    fn tell_pace(&mut self) {
        self.pace.left(self.in_flight);
    }

    /// Removes the waiting message of a slot.
    fn remove(&mut self, place: usize) -> Waiting {
        let waiting = self.waiting.remove(place);
        self.in_flight -= waiting.messages();
        waiting
    }

    fn take(&mut self, token: u64) -> Option<Waiting> {
        let place = usize::try_from(token % IN_FLIGHT_MAX as u64).ok()?;
        let turn = token >> PLACES_BITS;
        self.waiting.get(place).is_some_and(|waiting| waiting.turn == turn).then(|| self.remove(place))
    }
}

/// A server without batch support acknowledges only the last message.
fn whole(stored: usize, wanted: usize) -> Result<(), Error> {
    let short = || Error::Acknowledgement(format!("it is for {stored} messages of {wanted}"));
    (stored == wanted).then_some(()).ok_or_else(short)
}

/// Outcomes of one call.
type Run = (Arc<Flight>, Vec<(usize, Outcome)>);

/// Outcomes grouped by call. Acknowledgements mostly arrive in the order of sending.
#[derive(Default)]
struct Settled {
    runs: Vec<Run>,
    count: usize,
    weight: usize,
}

impl Settled {
    fn push(&mut self, waiting: Waiting, weight: usize, answer: Result<(), Error>) {
        self.count += waiting.messages();
        self.weight += weight;
        match waiting.whose {
            // The call was cancelled if it no longer listens.
            Whose::Batch(_, whose) => drop(whose.send(answer)),
            Whose::Message(flight, index) => {
                let outcome = answer.map_err(Into::into);
                match self.runs.last_mut() {
                    Some((last, outcomes)) if Arc::ptr_eq(last, &flight) => outcomes.push((index, outcome)),
                    _ => self.runs.push((flight, vec![(index, outcome)])),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use relevo_core::Class;
    use relevo_core::broker::Reports;

    use super::*;

    fn acks() -> Acks {
        Acks::new(2, Duration::from_secs(4), false)
    }

    fn classes(reports: &Reports) -> Vec<(usize, Option<Class>)> {
        reports
            .take()
            .into_iter()
            .map(|(_, index, outcome)| (index, outcome.err().map(|error| error.class())))
            .collect()
    }

    #[tokio::test]
    async fn an_acknowledgement_that_comes_too_late_is_nobodys() {
        let (acks, reports) = (acks(), Reports::default());
        let flight = Flight::new(&reports.confirms(1));
        acks.room(1).await.expect("room");
        let first = acks.expect(&flight, 0, &"a".into()).expect("registered");
        acks.expire(Instant::now() + Duration::from_secs(5));
        assert_eq!(classes(&reports), [(0, Some(Class::Unknown))]);
        acks.room(1).await.expect("room");
        let second = acks.expect(&flight, 1, &"a".into()).expect("registered");
        assert_eq!(first % IN_FLIGHT_MAX as u64, second % IN_FLIGHT_MAX as u64, "the place is used again");
        acks.settle([(first, Ok(1))]);
        assert_eq!(classes(&reports), []);
        acks.settle([(second, Ok(1))]);
        assert_eq!(classes(&reports), [(1, None)]);
        flight.landed().await;
    }

    #[tokio::test]
    async fn a_call_that_was_given_up_hears_nothing_and_leaves_room() {
        let (acks, reports) = (acks(), Reports::default());
        let flight = Flight::new(&reports.confirms(1));
        for index in 0..2 {
            acks.room(1).await.expect("room");
            acks.expect(&flight, index, &"a".into()).expect("registered");
        }
        acks.abandon(&flight);
        acks.room(1).await.expect("room again");
        acks.lose();
        assert_eq!(classes(&reports), []);
    }

    #[tokio::test]
    async fn a_lost_connection_settles_what_waits_and_takes_nothing_more() {
        let (acks, reports) = (acks(), Reports::default());
        let flight = Flight::new(&reports.confirms(1));
        acks.room(1).await.expect("room");
        acks.expect(&flight, 0, &"a".into()).expect("registered");
        acks.lose();
        assert_eq!(classes(&reports), [(0, Some(Class::Unknown))]);
        assert!(acks.room(1).await.is_err());
        assert!(acks.expect(&flight, 1, &"a".into()).is_err());
        flight.landed().await;
    }

    #[tokio::test]
    async fn a_denied_subject_leaves_the_others_waiting() {
        let (acks, reports) = (acks(), Reports::default());
        let flight = Flight::new(&reports.confirms(1));
        acks.room(2).await.expect("room");
        acks.expect(&flight, 0, &"a".into()).expect("registered");
        acks.expect(&flight, 1, &"b".into()).expect("registered");
        acks.deny("b");
        assert_eq!(classes(&reports), [(1, Some(Class::Blocked))]);
    }
}
