//! Cases outside of the conformance suite: savepoints, server restarts and locks.

use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::consume::{Lane, Raw};
use relevo_core::inbox::operate::{Fed, Operate as _, Plan, Portion};
use relevo_core::inbox::{Arrival, Begun, Enter, Entered, Entry, Inbox as _, Keeping, Setback, State, Stop};
use relevo_core::store::StoreError;
use uuid::Uuid;

use crate::{Inbox, Outbox, Settings, Transaction};

fn arrival() -> Arrival {
    Arrival {
        entry: Entry { id: MessageId::from_uuid(Uuid::from_u128(7)), replay: 0 },
        queue: "a".into(),
        raw: Raw::default(),
        address: "orders".into(),
        lane: Lane::new("0"),
        place: None,
        correlation: None,
    }
}

fn portion<'a>(messages: &'a [Arrival], from: Option<&'a str>, to: Option<&'a str>) -> Portion<'a> {
    Portion { messages, from, to }
}

async fn begin(inbox: &Inbox) -> (Transaction, Vec<Entered>) {
    match inbox.begin(Enter { held: None, arrivals: &[arrival()] }).await.unwrap() {
        Begun::Open(transaction, entered) => (transaction, entered),
        Begun::Lost | Begun::Busy => panic!("nobody is in the way"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_savepoint_undoes_lines_and_verdicts() {
    let outbox = Outbox::new(Settings::default());
    let inbox = outbox.inbox("billing", Keeping::default());
    let (mut transaction, _) = begin(&inbox).await;
    transaction.record("before").unwrap();
    let savepoint = transaction.savepoint();
    transaction.record("undone").unwrap();
    inbox.skip(&mut transaction, arrival().entry).await.unwrap();
    transaction.rollback_to(savepoint);
    inbox.commit(transaction).await.unwrap();
    assert_eq!(outbox.ledger(), ["before"]);
    assert_eq!(begin(&inbox).await.1, [Entered::Repeat(State::Done)]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_takes_what_handlers_began() {
    let outbox = Outbox::new(Settings::default());
    let inbox = outbox.inbox("billing", Keeping::default());
    let (mut transaction, _) = begin(&inbox).await;
    transaction.record("lost").unwrap();
    outbox.restart();
    assert!(matches!(inbox.commit(transaction).await, Err(StoreError::Away(_))));
    assert_eq!(begin(&inbox).await.1, [Entered::New]);
    assert!(outbox.ledger().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_stops_by_itself_takes_no_queue_from_whoever_appends_to_it() {
    let outbox = Outbox::new(Settings::default());
    let (inbox, operator) = (outbox.inbox("billing", Keeping::default()), outbox.operator());
    let plan = Plan {
        consumer: "billing".to_owned(),
        source: "a log".to_owned(),
        count: 2,
        rate: 100,
        dead_max: 1,
        by: "somebody".to_owned(),
        reason: "a test".to_owned(),
    };
    let number = operator.begin_replay(&plan).await.unwrap();
    let other = Arrival { entry: Entry { id: MessageId::from_uuid(Uuid::from_u128(8)), replay: 0 }, ..arrival() };
    let dead = Arrival { queue: "b".into(), ..arrival() };
    assert_eq!(operator.feed("billing", number, portion(&[dead, other], None, Some("2"))).await.unwrap(), Fed::Kept);
    // One of the two messages is dead-lettered. The other waits, with a live message behind it.
    let due = inbox.due(2, 1, Duration::from_mins(1)).await.unwrap().remove(1);
    assert_eq!(&*due.queue, "b");
    let setback =
        Setback { stop: Stop::DeadContinue, attempts: 1, class: "poison", error: "no".to_owned(), backtrace: None };
    inbox.set_back_due(&due, due.messages[0].number, &setback).await.unwrap();
    let (transaction, entered) = begin(&inbox).await;
    assert_eq!(entered, [Entered::Behind]);
    let fed = operator.feed("billing", number, portion(&[], Some("2"), None)).await;
    assert!(matches!(fed, Err(StoreError::Broken(_))), "somebody is in the way: {fed:?}");
    inbox.commit(transaction).await.unwrap();
    assert_eq!(operator.feed("billing", number, portion(&[], Some("2"), None)).await.unwrap(), Fed::Ended);
    assert_eq!(operator.consumers().await.unwrap()[0].waiting, 2, "one was begun, the other came live");
}
