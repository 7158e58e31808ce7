//! Cases outside of the conformance suite: savepoints, server restarts and locks.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::MessageId;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::inbox::admin::ConsumerAdmin as _;
use relevo_core::inbox::replays::{ConsumerReplays as _, EnqueueOutcome, ReplayBatch, ReplayPlan};
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, InboxRetries as _};
use relevo_core::inbox::transactions::{BeginOutcome, EnterOutcome, InboxTransactions as _};
use relevo_core::inbox::{DedupId, Fence, InboxMessage, InboxRetention, InboxState};
use relevo_core::store::StoreError;
use uuid::Uuid;

use crate::{Config, Database, Inbox, Transaction};

fn message() -> InboxMessage {
    InboxMessage {
        dedup_id: DedupId { id: MessageId::from_uuid(Uuid::from_u128(7)), replay: 0 },
        queue: "a".into(),
        raw: RawMessage::default(),
        address: "orders".into(),
        lane: Lane::new("0"),
        offset: None,
        attempts: 0,
    }
}

fn batch<'a>(messages: &'a [InboxMessage], from: Option<&'a str>, to: Option<&'a str>) -> ReplayBatch<'a> {
    ReplayBatch { messages, cursor: from, next_cursor: to }
}

async fn begin(inbox: &Inbox) -> (Transaction, Vec<EnterOutcome>) {
    match inbox.begin(&[message()], Fence::Live { lane: None }).await.unwrap() {
        BeginOutcome::Open(transaction, entered) => (transaction, entered),
        BeginOutcome::Fenced | BeginOutcome::Busy => panic!("no other transaction is open"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_savepoint_rolls_back_effects() {
    let outbox = Database::new(Config::default());
    let inbox = outbox.inbox("billing", InboxRetention::default());
    let (mut transaction, _) = begin(&inbox).await;
    transaction.record_effect("before").unwrap();
    let savepoint = transaction.savepoint();
    transaction.record_effect("undone").unwrap();
    transaction.rollback_to(savepoint);
    inbox.commit(transaction, &[]).await.unwrap();
    assert_eq!(outbox.effects(), ["before"]);
    assert_eq!(begin(&inbox).await.1, [EnterOutcome::Duplicate(InboxState::Done)]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_rolls_back_open_transactions() {
    let outbox = Database::new(Config::default());
    let inbox = outbox.inbox("billing", InboxRetention::default());
    let (mut transaction, _) = begin(&inbox).await;
    transaction.record_effect("lost").unwrap();
    outbox.restart();
    assert!(matches!(inbox.commit(transaction, &[]).await, Err(StoreError::Unavailable(_))));
    assert_eq!(begin(&inbox).await.1, [EnterOutcome::New]);
    assert!(outbox.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_stops_by_itself_keeps_queues_with_an_open_append() {
    let outbox = Database::new(Config::default());
    let (inbox, operator) = (outbox.inbox("billing", InboxRetention::default()), outbox.operator());
    let plan = ReplayPlan {
        consumer: "billing".to_owned(),
        source: "a log".to_owned(),
        count: 2,
        rate: 100,
        dead_letters_max: 1,
        requested_by: "an operator".to_owned(),
        reason: "a test".to_owned(),
    };
    let number = operator.create_replay(&plan).await.unwrap();
    let other =
        InboxMessage { dedup_id: DedupId { id: MessageId::from_uuid(Uuid::from_u128(8)), replay: 0 }, ..message() };
    let dead = InboxMessage { queue: "b".into(), ..message() };
    assert_eq!(
        operator.enqueue_replay("billing", number, batch(&[dead, other], None, Some("2"))).await.unwrap(),
        EnqueueOutcome::Enqueued
    );
    // One of the two messages is dead-lettered. The other waits, with a live message behind it.
    let claimed = inbox.claim_due(2, 1, Duration::from_mins(1)).await.unwrap().remove(1);
    assert_eq!(&*claimed.claim.queue, "b");
    let failure = InboxFailure {
        action: InboxFailureAction::DeadLetter(AfterDead::Continue),
        attempts: 1,
        class: "poison",
        error: "no".to_owned(),
        backtrace: None,
    };
    let fence = Fence::Queue { claim: &claimed.claim, ordinal: claimed.messages[0].ordinal };
    inbox.record_failure(&claimed.messages[0].message, fence, &failure).await.unwrap();
    let (transaction, entered) = begin(&inbox).await;
    assert_eq!(entered, [EnterOutcome::QueuedBehind]);
    let enqueued = operator.enqueue_replay("billing", number, batch(&[], Some("2"), None)).await;
    assert!(matches!(enqueued, Err(StoreError::Busy { .. })), "a transaction is appending: {enqueued:?}");
    inbox.commit(transaction, &[]).await.unwrap();
    assert_eq!(
        operator.enqueue_replay("billing", number, batch(&[], Some("2"), None)).await.unwrap(),
        EnqueueOutcome::NotRunning
    );
    assert_eq!(
        operator.list_consumers().await.unwrap()[0].waiting,
        2,
        "one was started, the other arrived from the broker"
    );
}
