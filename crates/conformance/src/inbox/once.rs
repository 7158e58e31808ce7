//! One row per message: the effect, the emitted messages and the verdict commit together with it, or not at all.

use relevo_core::inbox::{Arrival, Enter, Entered, Inbox, State};

use super::harness::Harness;
use super::stage::{BILLING, arrival, begin, handle, handle_patiently, line, lines, ok, open};

/// The whole guarantee, in one process and across two.
pub async fn a_new_message_is_handled_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = arrival(1, "a");
    assert_eq!(handle(h, &inbox, std::slice::from_ref(&message)).await, [Entered::New]);
    // A redelivery to the same process, and one to another process.
    let other = h.inbox(BILLING).await;
    assert_eq!(handle(h, &inbox, std::slice::from_ref(&message)).await, [Entered::Repeat(State::Done)]);
    assert_eq!(handle(h, &other, &[message]).await, [Entered::Repeat(State::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A failed handler leaves nothing behind.
pub async fn what_rolled_back_did_not_happen(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = [arrival(1, "a")];
    let (mut transaction, _) = begin(&inbox, &message).await;
    h.effect(&mut transaction, "rolled back").await;
    ok(inbox.roll_back(transaction).await);
    assert!(h.effects().await.is_empty());
    assert_eq!(handle(h, &inbox, &message).await, [Entered::New]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A handler that was cancelled or panicked cannot roll back itself. Dropping its transaction must have the same
/// effect.
pub async fn a_dropped_transaction_did_not_happen(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = [arrival(1, "a")];
    let (mut transaction, _) = begin(&inbox, &message).await;
    h.effect(&mut transaction, "dropped").await;
    drop(transaction);
    // The database may need a moment to detect the drop.
    assert_eq!(handle_patiently(h, &inbox, &message).await, [Entered::New]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Messages handled in turn each have their own transaction, whatever happens to the next one.
pub async fn a_commit_that_begins_the_next_is_a_commit(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let [first, second, third] = [1, 2, 3].map(|number| [arrival(number, "a")]);
    let next = |arrivals| Enter { held: None, arrivals };
    let (mut transaction, _) = begin(&inbox, &first).await;
    h.effect(&mut transaction, &line(&first[0])).await;
    let (mut transaction, entered) = open(ok(inbox.commit_and_begin(transaction, next(&second)).await));
    assert_eq!(entered, [Entered::New]);
    assert_eq!(h.effects().await, lines(&[1]));
    h.effect(&mut transaction, "rolled back").await;
    ok(inbox.roll_back(transaction).await);
    // An already handled message is a duplicate in this call too.
    let (mut transaction, _) = begin(&inbox, &second).await;
    h.effect(&mut transaction, &line(&second[0])).await;
    let (transaction, entered) = open(ok(inbox.commit_and_begin(transaction, next(&first)).await));
    assert_eq!(entered, [Entered::Repeat(State::Done)]);
    let (mut transaction, entered) = open(ok(inbox.commit_and_begin(transaction, next(&third)).await));
    assert_eq!(entered, [Entered::New]);
    h.effect(&mut transaction, &line(&third[0])).await;
    ok(inbox.commit(transaction).await);
    assert_eq!(h.effects().await, lines(&[1, 2, 3]));
}

/// Messages emitted by a handler are published if and only if its effect was committed.
pub async fn effect_emitted_message_and_entry_are_one(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = [arrival(1, "a")];
    let (mut transaction, _) = begin(&inbox, &message).await;
    h.effect(&mut transaction, "rolled back").await;
    h.emit(&mut transaction).await;
    ok(inbox.roll_back(transaction).await);
    assert!(h.emitted().await.is_empty() && h.effects().await.is_empty());

    let (mut transaction, entered) = begin(&inbox, &message).await;
    assert_eq!(entered, [Entered::New]);
    h.effect(&mut transaction, "committed").await;
    let emitted = h.emit(&mut transaction).await;
    ok(inbox.commit(transaction).await);
    assert_eq!((h.emitted().await, h.effects().await), (vec![emitted], vec!["committed".to_owned()]));
    assert_eq!(handle(h, &inbox, &message).await, [Entered::Repeat(State::Done)]);
}

/// Consumers share a database and nothing else.
pub async fn each_consumer_handles_a_message_once(h: &mut impl Harness) {
    let message = [arrival(1, "a")];
    for consumer in [BILLING, "shipping"] {
        let inbox = h.inbox(consumer).await;
        assert_eq!(handle(h, &inbox, &message).await, [Entered::New]);
        assert_eq!(handle(h, &inbox, &message).await, [Entered::Repeat(State::Done)]);
    }
    assert_eq!(h.effects().await, lines(&[1, 1]));
}

/// A replay deliberately handles the message again.
pub async fn each_replay_handles_a_message_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for replay in [0, 1, 2] {
        let mut message = arrival(1, "a");
        message.entry.replay = replay;
        assert_eq!(handle(h, &inbox, std::slice::from_ref(&message)).await, [Entered::New]);
        assert_eq!(handle(h, &inbox, &[message]).await, [Entered::Repeat(State::Done)]);
    }
}

/// A skip is recorded, so that operators can distinguish it from a handled message. A later delivery is a duplicate.
pub async fn a_skipped_message_counts_as_skipped(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let messages = [arrival(1, "a"), arrival(2, "a")];
    // A rolled-back skip is not recorded.
    let (mut transaction, _) = begin(&inbox, &messages).await;
    ok(inbox.skip(&mut transaction, messages[0].entry).await);
    ok(inbox.roll_back(transaction).await);
    let (mut transaction, entered) = begin(&inbox, &messages).await;
    assert_eq!(entered, [Entered::New, Entered::New]);
    ok(inbox.skip(&mut transaction, messages[0].entry).await);
    ok(inbox.commit(transaction).await);
    let again = handle(h, &inbox, &messages).await;
    assert_eq!(again, [Entered::Repeat(State::Skipped), Entered::Repeat(State::Done)]);
}

/// Stores enter rows in the order of their ids to avoid deadlocks between batches, but return outcomes in the order of
/// the request.
pub async fn answers_come_in_the_order_asked(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[arrival(2, "b")]).await;
    let batch: Vec<Arrival> = [3, 2, 1, 4].map(|number| arrival(number, &number.to_string())).into();
    let entered = handle(h, &inbox, &batch).await;
    assert_eq!(entered, [Entered::New, Entered::Repeat(State::Done), Entered::New, Entered::New]);
    assert_eq!(h.effects().await, lines(&[2, 3, 1, 4]));
}

/// The broker delivered it twice before the consumer could acknowledge it.
pub async fn the_same_message_twice_in_a_batch_is_handled_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let batch = [arrival(1, "a"), arrival(2, "b"), arrival(1, "a")];
    let entered = handle(h, &inbox, &batch).await;
    assert_eq!(entered[..2], [Entered::New, Entered::New]);
    assert!(matches!(entered[2], Entered::Repeat(_)), "{entered:?}");
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A batch as large as the runtime makes one, with duplicates in it.
pub async fn a_large_batch_is_one_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[arrival(7, "7"), arrival(300, "300")]).await;
    let batch: Vec<Arrival> = (0..500).map(|number| arrival(number, &number.to_string())).collect();
    let (transaction, entered) = begin(&inbox, &batch).await;
    let repeats: Vec<usize> = (0..500).filter(|index| entered[*index] == Entered::Repeat(State::Done)).collect();
    assert_eq!(repeats, [7, 300]);
    assert_eq!(entered.iter().filter(|entered| **entered == Entered::New).count(), 498);
    ok(inbox.roll_back(transaction).await);
    let (transaction, again) = begin(&inbox, &batch).await;
    assert_eq!(again, entered, "nothing of it happened");
    ok(inbox.commit(transaction).await);
    assert_eq!(handle(h, &inbox, &batch).await, [Entered::Repeat(State::Done); 500]);
}

/// An empty batch is not an error: a handler may still use the transaction.
pub async fn an_empty_batch_is_a_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let (mut transaction, entered) = begin(&inbox, &[]).await;
    assert!(entered.is_empty());
    h.effect(&mut transaction, &line(&arrival(7, "a"))).await;
    ok(inbox.commit(transaction).await);
    assert_eq!(h.effects().await, lines(&[7]));
}
