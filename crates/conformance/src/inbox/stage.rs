//! Helpers that many cases share.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::consume::{Lane, Raw};
use relevo_core::inbox::operate::{DeadFilter, Mark};
use relevo_core::inbox::{Arrival, Beat, Begun, Due, Enter, Entered, Entry, Held, Inbox, Kept, Setback, Stop};
use relevo_core::store::StoreError;
use uuid::Uuid;

use super::harness::{Handling, Harness};

/// The consumer of most cases.
pub(crate) const BILLING: &str = "billing";
/// A claim or a heartbeat that outlasts every case.
pub(crate) const LONG: Duration = Duration::from_mins(10);
/// A claim, a heartbeat or a pause that a case lets pass explicitly; it does not pass on its own.
pub(crate) const SHORT: Duration = Duration::from_mins(1);
/// Like `SHORT`, but in real time: stored times cannot change while an open transaction holds the rows.
pub(crate) const WAITED: Duration = Duration::from_secs(4);
/// How often a worker retries a busy message before the case fails.
const TRIES: usize = 100;

/// Unwraps a store result; an error fails the case.
pub(crate) fn ok<T>(answer: Result<T, StoreError>) -> T {
    answer.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
}

/// The message with this number, and the queue in which it waits after a failure.
pub(crate) fn arrival(number: u64, queue: &str) -> Arrival {
    Arrival {
        entry: Entry { id: id(number), replay: 0 },
        queue: queue.into(),
        raw: Raw {
            headers: vec![("x-number".to_owned(), number.to_string().into())],
            payload: Bytes::from_static(b"{}"),
        },
        address: "orders".into(),
        lane: lane(),
        place: Some(number),
        correlation: None,
    }
}

/// The id of the message with this number; ids sort like numbers.
pub(crate) fn id(number: u64) -> MessageId {
    MessageId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | u128::from(number)))
}

/// The lane of most cases.
pub(crate) fn lane() -> Lane {
    Lane::new("orders.0")
}

/// The ledger line of this message.
pub(crate) fn line(arrival: &Arrival) -> String {
    arrival.place.unwrap_or_default().to_string()
}

/// The ledger lines of these messages.
pub(crate) fn lines(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(u64::to_string).collect()
}

/// Returns the transaction and the outcome of each message; any other result fails the case.
pub(crate) fn open<T>(begun: Result<Begun<T>, StoreError>) -> (T, Vec<Entered>) {
    match ok(begun) {
        Begun::Open(transaction, entered) => (transaction, entered),
        Begun::Lost => panic!("the lane or the claim was lost"),
        Begun::Busy => panic!("the message is another's"),
    }
}

/// Checks that another worker has the lane or the claim.
pub(crate) fn lost<T>(begun: Result<Begun<T>, StoreError>) {
    assert!(matches!(ok(begun), Begun::Lost), "the lane or the claim should be lost");
}

/// Checks that another open transaction has the message.
pub(crate) fn busy<T>(begun: Result<Begun<T>, StoreError>) {
    assert!(matches!(ok(begun), Begun::Busy), "another transaction should be in the way");
}

/// Unwraps the result of a call made while a transaction was open. `None` if the store allows one writer and reported
/// an error.
pub(crate) fn beside<H: Harness, T>(harness: &H, answer: Result<T, StoreError>) -> Option<T> {
    if harness.capabilities().one_writer { answer.ok() } else { Some(ok(answer)) }
}

/// Enters messages of a consumer without order.
pub(crate) async fn begin<I: Inbox>(inbox: &I, arrivals: &[Arrival]) -> (I::Transaction, Vec<Entered>) {
    open(inbox.begin(Enter { held: None, arrivals }).await)
}

/// Handles messages in one transaction, with one effect per new message.
pub(crate) async fn handle<H: Harness>(harness: &H, inbox: &H::Inbox, arrivals: &[Arrival]) -> Vec<Entered> {
    let (transaction, entered) = begin(inbox, arrivals).await;
    finish(harness, inbox, transaction, arrivals, &entered).await;
    entered
}

/// Writes the effect of each new message and commits.
pub(crate) async fn finish<H: Harness>(
    harness: &H,
    inbox: &H::Inbox,
    mut transaction: Handling<H>,
    arrivals: &[Arrival],
    entered: &[Entered],
) {
    for (arrival, entered) in arrivals.iter().zip(entered) {
        if *entered == Entered::New {
            harness.effect(&mut transaction, &line(arrival)).await;
        }
    }
    ok(inbox.commit(transaction).await);
}

/// Handles messages; retries while another worker has one of them.
pub(crate) async fn handle_patiently<H: Harness>(harness: &H, inbox: &H::Inbox, arrivals: &[Arrival]) -> Vec<Entered> {
    for _ in 0..TRIES {
        if let Begun::Open(transaction, entered) = ok(inbox.begin(Enter { held: None, arrivals }).await) {
            finish(harness, inbox, transaction, arrivals, &entered).await;
            return entered;
        }
    }
    panic!("the message stays busy");
}

/// A failure with this action.
pub(crate) fn setback(stop: Stop, attempts: u32) -> Setback {
    Setback { stop, attempts, class: "refused", error: "the far side said no".to_owned(), backtrace: None }
}

/// A failure after which the message is retried.
pub(crate) fn retry(after: Duration, attempts: u32) -> Setback {
    setback(Stop::Retry { after }, attempts)
}

/// Records the failure of a message of a consumer without order; it must succeed.
pub(crate) async fn keep(inbox: &impl Inbox, arrival: &Arrival, setback: &Setback) {
    assert_eq!(ok(inbox.set_back(arrival, None, None, setback).await), Kept::Kept);
}

/// Dead-letters a message; `stop` decides whether its queue continues or is held.
pub(crate) async fn bury(inbox: &impl Inbox, arrival: &Arrival, stop: Stop) {
    keep(inbox, arrival, &setback(stop, 3)).await;
}

/// Claims all due queues for a long time.
pub(crate) async fn due(inbox: &impl Inbox) -> Vec<Due> {
    ok(inbox.due(100, 100, LONG).await)
}

/// Claims the only due queue.
pub(crate) async fn due_one(inbox: &impl Inbox) -> Due {
    let mut claimed = due(inbox).await;
    assert_eq!(claimed.len(), 1, "one queue is due: {claimed:?}");
    claimed.remove(0)
}

/// The numbers of the messages in a claimed queue.
pub(crate) fn numbers(due: &Due) -> Vec<u64> {
    due.messages.iter().filter_map(|waiting| waiting.arrival.place).collect()
}

/// Handles the message at this index of a claimed queue.
pub(crate) async fn work_on<H: Harness>(harness: &H, inbox: &H::Inbox, due: &Due, index: usize) {
    let waiting = &due.messages[index];
    let (mut transaction, entered) = open(inbox.begin_due(due, waiting.number).await);
    assert_eq!(entered, [Entered::New]);
    harness.effect(&mut transaction, &line(&waiting.arrival)).await;
    ok(inbox.commit(transaction).await);
}

/// Handles all messages of a claimed queue and releases it.
pub(crate) async fn work<H: Harness>(harness: &H, inbox: &H::Inbox, due: &Due) {
    for index in 0..due.messages.len() {
        work_on(harness, inbox, due, index).await;
    }
    ok(inbox.release(due).await);
}

/// An operator's request about these dead letters.
pub(crate) fn mark(filter: DeadFilter) -> Mark {
    Mark { filter, dry_run: false, rate: None, by: "ana".to_owned(), note: "mended".to_owned() }
}

/// Selects the dead letters of these messages.
pub(crate) fn of(numbers: &[u64]) -> DeadFilter {
    DeadFilter { ids: numbers.iter().map(|number| id(*number)).collect(), ..DeadFilter::default() }
}

/// A heartbeat of the member with this number, which holds no lanes.
pub(crate) fn beat(number: u64, lasts: Duration) -> Beat {
    Beat {
        owner: member(number),
        name: format!("member {number}"),
        lasts,
        marks: Vec::new(),
        last_message_at: None,
        breakers: Vec::new(),
    }
}

/// The owner token of the member with this number.
pub(crate) fn member(number: u64) -> Uuid {
    Uuid::from_u128(u128::from(number) << 64 | 0x0bad_cafe)
}

/// Sends a heartbeat and acquires the lane of most cases, which must be free.
pub(crate) async fn take(inbox: &impl Inbox, number: u64, lasts: Duration) -> Held {
    ok(inbox.beat(&beat(number, lasts)).await);
    let mut held = ok(inbox.take(member(number), &[lane()]).await);
    assert_eq!(held.len(), 1, "the lane is free");
    held.remove(0)
}
