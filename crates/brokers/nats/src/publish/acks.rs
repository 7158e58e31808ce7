//! What waits for its acknowledgement on one connection.

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

/// What becomes of a batch.
pub(crate) type Answer = oneshot::Receiver<Result<(), Error>>;

/// One call of `publish`, whose messages wait.
#[derive(Debug)]
pub(crate) struct Flight {
    confirms: Confirms,
    /// Messages without an outcome, and one more while the call is still sending.
    left: AtomicUsize,
    landed: Notify,
}

impl Flight {
    pub(crate) fn new(confirms: &Confirms) -> Arc<Self> {
        Arc::new(Self { confirms: confirms.clone(), left: AtomicUsize::new(1), landed: Notify::new() })
    }

    /// Ready when every message has an outcome. Called once, after the last was sent.
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

/// Who is told.
#[derive(Debug)]
enum Whose {
    /// A message of a call, by its index.
    Message(Arc<Flight>, usize),
    /// A batch of so many messages, which have one acknowledgement.
    Batch(usize, oneshot::Sender<Result<(), Error>>),
}

/// A message, or the last one of a batch, that waits.
#[derive(Debug)]
struct Waiting {
    whose: Whose,
    /// Tells the users of one place apart: an acknowledgement may come after its deadline.
    turn: u64,
    subject: Subject,
    deadline: Instant,
}

/// Everything of one connection that waits for an acknowledgement, at most so much as there is room.
#[derive(Debug)]
pub(crate) struct Acks {
    room: Room,
    table: Mutex<Table>,
    within: Duration,
    lost: watch::Sender<bool>,
    /// Something was stored.
    useful: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    waiting: Slab<Waiting>,
    /// How many messages wait: of a batch all.
    in_flight: usize,
    turn: u64,
    closed: bool,
    pace: Pace,
    absent: Absent,
}

/// Places in the table; a token is a place and the turn in which it was used.
const PLACES_BITS: u32 = 16;
/// The most that can wait on one connection.
pub(crate) const IN_FLIGHT_MAX: usize = 1 << PLACES_BITS;

impl Acks {
    pub(crate) fn new(in_flight_max: usize, within: Duration, clustered: bool) -> Self {
        let table = Mutex::new(Table { absent: Absent::new(clustered), ..Table::default() });
        let lost = watch::Sender::new(false);
        Self { room: Room::new(in_flight_max), table, within, lost, useful: AtomicBool::new(false) }
    }

    /// Waits for room for a message, or for a batch of so many; an error when the connection is lost.
    pub(crate) async fn room(&self, messages: usize) -> Result<(), Error> {
        self.room.take(messages).await
    }

    /// Registers a message for which there is room. The token comes back with its acknowledgement; an error when the
    /// connection is lost.
    pub(crate) fn expect(&self, flight: &Arc<Flight>, index: usize, subject: &Subject) -> Result<u64, Error> {
        self.register(Whose::Message(Arc::clone(flight), index), subject)
    }

    /// Registers the last message of a batch for which there is room.
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

    /// The message of this token was not sent after all, and the caller reports it; unless it has its outcome already.
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

    /// Whether the server was slow to acknowledge when there was enough to acknowledge.
    pub(crate) fn is_slow(&self) -> bool {
        self.lock().pace.is_slow()
    }

    /// Whether anything was ever stored over this connection.
    pub(crate) fn was_useful(&self) -> bool {
        self.useful.load(Ordering::Relaxed)
    }

    /// Ready when the connection is lost.
    pub(crate) async fn lost(&self) {
        // The sender lives as long as `self`.
        self.lost.subscribe().wait_for(|lost| *lost).await.ok();
    }

    /// Settles what acknowledgements say; tokens that nobody waits for any more are ignored.
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

    /// Settles what has waited too long.
    pub(crate) fn expire(&self, now: Instant) {
        let within = self.within;
        self.settle_where(|waiting| waiting.deadline <= now, |_| Error::Unconfirmed(within));
    }

    /// Settles what waits for this subject, where the server permits us nothing.
    pub(crate) fn deny(&self, subject: &str) {
        self.settle_where(|waiting| &*waiting.subject == subject, |_| Error::NotPermitted(subject.to_owned()));
    }

    /// The connection is lost: whatever waits may have arrived, and nothing can be added.
    pub(crate) fn lose(&self) {
        self.lock().closed = true;
        self.room.close();
        self.lost.send_replace(true);
        self.settle_where(|_| true, |_| Error::Lost);
    }

    /// Nobody waits for this call any more.
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

    /// Called with the table locked, so that a call that was given up hears nothing any more.
    fn report(&self, settled: Settled) {
        self.room.leave(settled.weight);
        for (flight, outcomes) in settled.runs {
            let count = outcomes.len();
            flight.confirms.report_all(outcomes);
            flight.leave(count);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        // Nothing panics while it is held.
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
    /// Something ended that the server did not acknowledge.
    fn tell_pace(&mut self) {
        self.pace.left(self.in_flight);
    }

    /// Takes what waits in a place out.
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

/// A server that knows nothing of batches acknowledges the last message alone.
fn whole(stored: usize, wanted: usize) -> Result<(), Error> {
    let short = || Error::Acknowledgement(format!("it is for {stored} messages of {wanted}"));
    (stored == wanted).then_some(()).ok_or_else(short)
}

/// Outcomes of one call.
type Run = (Arc<Flight>, Vec<(usize, Outcome)>);

/// Outcomes, those of one call together: acknowledgements mostly come in the order of sending.
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
            // Whoever does not listen any more gave the call up.
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
