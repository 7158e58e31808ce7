//! What the suite cannot say: savepoints, and restarts of the server.

use relevo_core::MessageId;
use relevo_core::consume::{Lane, Raw};
use relevo_core::inbox::{Arrival, Begun, Enter, Entered, Entry, Inbox as _, Keeping, State};
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
