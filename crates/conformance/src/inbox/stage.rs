//! What cases say again and again.

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::consume::{Lane, Raw};
use relevo_core::inbox::{Arrival, Begun, Enter, Entered, Entry, Inbox};
use relevo_core::store::StoreError;
use uuid::Uuid;

use super::harness::{Handling, Harness};

/// The consumer of most cases.
pub(crate) const BILLING: &str = "billing";

/// What the store answered; a case goes on only if it did.
pub(crate) fn ok<T>(answer: Result<T, StoreError>) -> T {
    answer.unwrap_or_else(|error| panic!("the store failed: {error:?}"))
}

/// The message of this number, waiting in this queue if it has to wait.
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

/// The id of the message of this number; ids order as numbers do.
pub(crate) fn id(number: u64) -> MessageId {
    MessageId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 | u128::from(number)))
}

/// The lane of most cases.
pub(crate) fn lane() -> Lane {
    Lane::new("orders.0")
}

/// What effects of this message say.
pub(crate) fn line(arrival: &Arrival) -> String {
    arrival.place.unwrap_or_default().to_string()
}

/// The lines of these messages.
pub(crate) fn lines(numbers: &[u64]) -> Vec<String> {
    numbers.iter().map(u64::to_string).collect()
}

/// The transaction and what became of each message; anything else ends the case.
pub(crate) fn open<T>(begun: Result<Begun<T>, StoreError>) -> (T, Vec<Entered>) {
    match ok(begun) {
        Begun::Open(transaction, entered) => (transaction, entered),
        Begun::Lost => panic!("the lane or the claim was lost"),
        Begun::Busy => panic!("the message is another's"),
    }
}

/// Enters messages of a consumer that keeps no order.
pub(crate) async fn begin<I: Inbox>(inbox: &I, arrivals: &[Arrival]) -> (I::Transaction, Vec<Entered>) {
    open(inbox.begin(Enter { held: None, arrivals }).await)
}

/// Handles messages in one transaction: an effect for each that is new.
pub(crate) async fn handle<H: Harness>(harness: &H, inbox: &H::Inbox, arrivals: &[Arrival]) -> Vec<Entered> {
    let (transaction, entered) = begin(inbox, arrivals).await;
    finish(harness, inbox, transaction, arrivals, &entered).await;
    entered
}

/// Writes the effect of each message that is new, and commits.
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
