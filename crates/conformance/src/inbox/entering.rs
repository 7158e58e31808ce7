//! One row per message: the effect, the emitted messages and the verdict commit together with it, or not at all.

use relevo_core::inbox::transactions::{Enter, EnterOutcome};
use relevo_core::inbox::{Inbox, InboxMessage, InboxState};
use relevo_core::{Draft, DraftError, EmitError, MessageId, OnDuplicate, StoreTransaction};

use super::harness::Harness;
use super::steps::{BILLING, begin, handle, handle_with_retries, inbox_message, line, lines, must, must_open};

/// The whole guarantee, in one process and across two.
pub async fn a_new_message_is_handled_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = inbox_message(1, "a");
    assert_eq!(handle(h, &inbox, std::slice::from_ref(&message)).await, [EnterOutcome::New]);
    // A redelivery to the same process, and one to another process.
    let other = h.inbox(BILLING).await;
    assert_eq!(handle(h, &inbox, std::slice::from_ref(&message)).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(handle(h, &other, &[message]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A failed handler leaves nothing behind.
pub async fn a_rollback_leaves_no_inbox_row(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = [inbox_message(1, "a")];
    let (mut transaction, _) = begin(&inbox, &message).await;
    h.effect(&mut transaction, "rolled back").await;
    must(inbox.rollback(transaction).await);
    assert!(h.effects().await.is_empty());
    assert_eq!(handle(h, &inbox, &message).await, [EnterOutcome::New]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A handler that was cancelled or panicked cannot roll back itself. Dropping its transaction must have the same
/// effect.
pub async fn a_dropped_transaction_leaves_no_inbox_row(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = [inbox_message(1, "a")];
    let (mut transaction, _) = begin(&inbox, &message).await;
    h.effect(&mut transaction, "dropped").await;
    drop(transaction);
    // The database may need a moment to detect the drop.
    assert_eq!(handle_with_retries(h, &inbox, &message).await, [EnterOutcome::New]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Messages handled in turn each have their own transaction, also if the next one fails.
pub async fn commit_and_begin_commits_the_first_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let [first, second, third] = [1, 2, 3].map(|number| [inbox_message(number, "a")]);
    let next = |messages| Enter { held: None, arrivals: messages };
    let (mut transaction, _) = begin(&inbox, &first).await;
    h.effect(&mut transaction, &line(&first[0])).await;
    let (mut transaction, entered) = must_open(must(inbox.commit_and_begin(transaction, next(&second)).await));
    assert_eq!(entered, [EnterOutcome::New]);
    assert_eq!(h.effects().await, lines(&[1]));
    h.effect(&mut transaction, "rolled back").await;
    must(inbox.rollback(transaction).await);
    // An already handled message is a duplicate in this call too.
    let (mut transaction, _) = begin(&inbox, &second).await;
    h.effect(&mut transaction, &line(&second[0])).await;
    let (transaction, entered) = must_open(must(inbox.commit_and_begin(transaction, next(&first)).await));
    assert_eq!(entered, [EnterOutcome::Duplicate(InboxState::Done)]);
    let (mut transaction, entered) = must_open(must(inbox.commit_and_begin(transaction, next(&third)).await));
    assert_eq!(entered, [EnterOutcome::New]);
    h.effect(&mut transaction, &line(&third[0])).await;
    must(inbox.commit(transaction).await);
    assert_eq!(h.effects().await, lines(&[1, 2, 3]));
}

/// Messages emitted by a handler are published if and only if its effect was committed.
pub async fn effect_emitted_message_and_inbox_row_commit_together(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = [inbox_message(1, "a")];
    let (mut transaction, _) = begin(&inbox, &message).await;
    h.effect(&mut transaction, "rolled back").await;
    must_emit(&mut transaction, Draft::json("bills", "b-1", "BillMade", "{}")).await;
    must(inbox.rollback(transaction).await);
    assert!(h.emitted().await.is_empty() && h.effects().await.is_empty());

    let (mut transaction, entered) = begin(&inbox, &message).await;
    assert_eq!(entered, [EnterOutcome::New]);
    h.effect(&mut transaction, "committed").await;
    let emitted = must_emit(&mut transaction, Draft::json("bills", "b-1", "BillMade", "{}")).await;
    must(inbox.commit(transaction).await);
    assert_eq!((h.emitted().await, h.effects().await), (vec![emitted], vec!["committed".to_owned()]));
    assert_eq!(handle(h, &inbox, &message).await, [EnterOutcome::Duplicate(InboxState::Done)]);
}

/// A handler can choose the id of a message. It can schedule a message and cancel it before its time.
pub async fn a_handler_chooses_ids_and_cancels_scheduled_messages(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let bill = Draft { id: Some(MessageId::v7(1, [9; 10])), ..Draft::json("bills", "b-1", "BillMade", "{}") };
    let reminder = Draft {
        deliver_at: Some("2200-01-01T00:00:00Z".parse().expect("a time")),
        ..Draft::json("bills", "b-1", "BillOverdue", "{}")
    };
    let (mut transaction, _) = begin(&inbox, &[inbox_message(1, "a")]).await;
    let id = must_emit(&mut transaction, bill.clone()).await;
    assert_eq!(Some(id), bill.id);
    let repeated = Draft { on_duplicate: OnDuplicate::Ignore, ..bill.clone() };
    assert_eq!(must_emit(&mut transaction, repeated).await, id);
    let invalid = transaction.emit(Draft { topic: "".into(), ..bill.clone() }).await;
    assert!(matches!(invalid, Err(EmitError::Invalid(DraftError::Empty("topic")))), "{invalid:?}");
    let scheduled = must_emit(&mut transaction, reminder).await;
    must(inbox.commit(transaction).await);
    assert_eq!(h.emitted().await, [id]);

    let (mut transaction, _) = begin(&inbox, &[inbox_message(2, "a")]).await;
    assert!(transaction.cancel(scheduled).await.expect("an open transaction"));
    assert!(!transaction.cancel(scheduled).await.expect("an open transaction"));
    assert!(!transaction.cancel(id).await.expect("an open transaction"), "it is in the log");
    let repeated = transaction.emit(bill).await;
    assert!(matches!(repeated, Err(EmitError::DuplicateId(again)) if again == id), "{repeated:?}");
    must(inbox.rollback(transaction).await);
}

async fn must_emit(transaction: &mut impl StoreTransaction, draft: Draft) -> MessageId {
    transaction.emit(draft).await.expect("a good message")
}

/// Consumers share a database and nothing else.
pub async fn each_consumer_handles_a_message_once(h: &mut impl Harness) {
    let message = [inbox_message(1, "a")];
    for consumer in [BILLING, "shipping"] {
        let inbox = h.inbox(consumer).await;
        assert_eq!(handle(h, &inbox, &message).await, [EnterOutcome::New]);
        assert_eq!(handle(h, &inbox, &message).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    }
    assert_eq!(h.effects().await, lines(&[1, 1]));
}

/// A replay deliberately handles the message again.
pub async fn each_replay_handles_a_message_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for replay in [0, 1, 2] {
        let mut message = inbox_message(1, "a");
        message.dedup_id.replay = replay;
        assert_eq!(handle(h, &inbox, std::slice::from_ref(&message)).await, [EnterOutcome::New]);
        assert_eq!(handle(h, &inbox, &[message]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    }
}

/// A skip is recorded, so that operators can distinguish it from a handled message. A later delivery is a duplicate.
pub async fn a_skipped_message_counts_as_skipped(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let messages = [inbox_message(1, "a"), inbox_message(2, "a")];
    // A rolled-back skip is not recorded.
    let (mut transaction, _) = begin(&inbox, &messages).await;
    must(inbox.skip(&mut transaction, messages[0].dedup_id).await);
    must(inbox.rollback(transaction).await);
    let (mut transaction, entered) = begin(&inbox, &messages).await;
    assert_eq!(entered, [EnterOutcome::New, EnterOutcome::New]);
    must(inbox.skip(&mut transaction, messages[0].dedup_id).await);
    must(inbox.commit(transaction).await);
    let repeated = handle(h, &inbox, &messages).await;
    assert_eq!(repeated, [EnterOutcome::Duplicate(InboxState::Skipped), EnterOutcome::Duplicate(InboxState::Done)]);
}

/// Stores enter rows in the order of their ids to avoid deadlocks between batches, but return outcomes in the order of
/// the request.
pub async fn outcomes_are_in_the_order_of_the_request(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[inbox_message(2, "b")]).await;
    let batch: Vec<InboxMessage> = [3, 2, 1, 4].map(|number| inbox_message(number, &number.to_string())).into();
    let entered = handle(h, &inbox, &batch).await;
    assert_eq!(
        entered,
        [EnterOutcome::New, EnterOutcome::Duplicate(InboxState::Done), EnterOutcome::New, EnterOutcome::New]
    );
    assert_eq!(h.effects().await, lines(&[2, 3, 1, 4]));
}

/// The broker delivered it twice before the consumer could acknowledge it.
pub async fn the_same_message_twice_in_a_batch_is_handled_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let batch = [inbox_message(1, "a"), inbox_message(2, "b"), inbox_message(1, "a")];
    let entered = handle(h, &inbox, &batch).await;
    assert_eq!(entered[..2], [EnterOutcome::New, EnterOutcome::New]);
    assert!(matches!(entered[2], EnterOutcome::Duplicate(_)), "{entered:?}");
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A batch as large as the runtime makes one, with duplicates in it.
pub async fn a_large_batch_is_one_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[inbox_message(7, "7"), inbox_message(300, "300")]).await;
    let batch: Vec<InboxMessage> = (0..500).map(|number| inbox_message(number, &number.to_string())).collect();
    let (transaction, entered) = begin(&inbox, &batch).await;
    let repeats: Vec<usize> =
        (0..500).filter(|index| entered[*index] == EnterOutcome::Duplicate(InboxState::Done)).collect();
    assert_eq!(repeats, [7, 300]);
    assert_eq!(entered.iter().filter(|entered| **entered == EnterOutcome::New).count(), 498);
    must(inbox.rollback(transaction).await);
    let (transaction, repeated) = begin(&inbox, &batch).await;
    assert_eq!(repeated, entered, "nothing was committed");
    must(inbox.commit(transaction).await);
    assert_eq!(handle(h, &inbox, &batch).await, [EnterOutcome::Duplicate(InboxState::Done); 500]);
}

/// An empty batch is not an error: a handler may still use the transaction.
pub async fn an_empty_batch_is_a_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let (mut transaction, entered) = begin(&inbox, &[]).await;
    assert!(entered.is_empty());
    h.effect(&mut transaction, &line(&inbox_message(7, "a"))).await;
    must(inbox.commit(transaction).await);
    assert_eq!(h.effects().await, lines(&[7]));
}
