//! The same message at two workers: the second waits for a short time, and no attempt is counted.

use std::time::Duration;

use relevo_core::inbox::attempts::ClaimOutcome;
use relevo_core::inbox::retries::RecordOutcome;
use relevo_core::inbox::transactions::{BeginOutcome, CommitOutcome, EnterOutcome};
use relevo_core::inbox::{Fence, InboxState};

use super::harness::Harness;
use super::harness::ports::*;
use super::steps::{
    BILLING, LONG, SHORT, assert_busy, begin, finish, handle, handle_with_retries, inbox_message, line, lines, must,
    retry,
};

/// The first worker hangs, so the duplicate is delayed without a counted attempt.
pub async fn a_duplicate_of_a_message_in_an_open_transaction_is_busy(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = [inbox_message(1, "a")];
    let (transaction, _) = begin(&first, &message).await;
    assert_busy(second.begin(&message, Fence::Live { lane: None }).await);
    let claimed = must(second.claim_call(&message[0], None, LONG).await);
    assert!(matches!(claimed, ClaimOutcome::Busy(_)), "{claimed:?}");
    let recorded = must(second.record_failure(&message[0], Fence::Live { lane: None }, &retry(SHORT, 1)).await);
    assert_eq!(recorded, RecordOutcome::Busy);
    must(first.rollback(transaction).await);
    // No attempt was counted, and nothing was queued.
    assert_eq!(must(second.record_start(&message[0]).await), 1);
    assert_eq!(handle(h, &second, &message).await, [EnterOutcome::New]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A store may block the second worker, or let both work and refuse one commit. Either way, each outcome says what is
/// stored.
pub async fn one_of_two_transactions_of_a_message_is_committed(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = [inbox_message(1, "a")];
    let (mut transaction, _) = begin(&first, &message).await;
    h.effect(&mut transaction, &line(&message[0])).await;
    let rival = must(second.begin(&message, Fence::Live { lane: None }).await);
    let mut outcomes = vec![must(first.commit(transaction, &[]).await)];
    if let BeginOutcome::Open(mut rival, _) = rival {
        h.effect(&mut rival, &line(&message[0])).await;
        outcomes.push(must(second.commit(rival, &[]).await));
    }
    let committed = outcomes.iter().filter(|outcome| matches!(outcome, CommitOutcome::Committed)).count();
    let stale = outcomes.iter().filter(|outcome| matches!(outcome, CommitOutcome::Stale)).count();
    assert_eq!((committed, stale), (1, outcomes.len() - 1), "{outcomes:?}");
    assert_eq!(handle(h, &second, &message).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A worker that waits long enough gets the result of the other one.
pub async fn a_waiting_duplicate_gets_the_outcome(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = [inbox_message(1, "a")];
    let (transaction, entered) = begin(&first, &message).await;
    let end = async {
        tokio::task::yield_now().await;
        finish(h, &first, transaction, &message, &entered).await;
    };
    let ((), learned) = tokio::join!(end, handle_with_retries(h, &second, &message));
    assert_eq!(learned, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// After a rollback the message is new for the waiting worker.
pub async fn a_waiting_duplicate_is_handled_after_a_rollback(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = [inbox_message(1, "a")];
    let (transaction, _) = begin(&first, &message).await;
    let end = async {
        tokio::task::yield_now().await;
        must(first.rollback(transaction).await);
    };
    let ((), learned) = tokio::join!(end, handle_with_retries(h, &second, &message));
    assert_eq!(learned, [EnterOutcome::New]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A worker that was cancelled while waiting holds no locks.
pub async fn a_cancelled_wait_leaves_nothing(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = [inbox_message(1, "a")];
    let (transaction, _) = begin(&first, &message).await;
    let waits = second.begin(&message, Fence::Live { lane: None });
    if let Ok(outcome) = tokio::time::timeout(Duration::from_millis(20), waits).await {
        assert_busy(outcome);
    }
    must(first.rollback(transaction).await);
    assert_eq!(handle_with_retries(h, &first, &message).await, [EnterOutcome::New]);
    assert_eq!(handle(h, &second, &message).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Handlers of different messages do not wait for each other, unless the store allows only one writer.
pub async fn other_messages_are_handled_during_an_open_transaction(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let (message, other) = ([inbox_message(1, "a")], [inbox_message(2, "b")]);
    let (transaction, entered) = begin(&first, &message).await;
    let beside = must(second.begin(&other, Fence::Live { lane: None }).await);
    assert_eq!(matches!(beside, BeginOutcome::Busy), h.capabilities().single_writer);
    if let BeginOutcome::Open(beside, entered) = beside {
        finish(h, &second, beside, &other, &entered).await;
    }
    finish(h, &first, transaction, &message, &entered).await;
    handle(h, &second, &other).await;
    let mut effects = h.effects().await;
    effects.sort();
    assert_eq!(effects, lines(&[1, 2]));
}

/// A batch is one transaction: if one message is busy, none of the others is changed.
pub async fn a_batch_with_a_busy_message_changes_nothing(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let (transaction, _) = begin(&first, &[inbox_message(2, "b")]).await;
    let batch = [inbox_message(3, "c"), inbox_message(2, "b"), inbox_message(1, "a")];
    assert_busy(second.begin(&batch, Fence::Live { lane: None }).await);
    must(first.rollback(transaction).await);
    assert_eq!(handle(h, &first, &batch).await, [EnterOutcome::New; 3]);
    assert_eq!(h.effects().await, lines(&[3, 2, 1]));
}

/// Batches overlap in opposite orders: each message has one effect, and no deadlock occurs.
pub async fn overlapping_batches_handle_each_message_once(h: &mut impl Harness) {
    let workers = [h.inbox(BILLING).await, h.inbox(BILLING).await, h.inbox(BILLING).await];
    let forward: Vec<_> = (0..20).map(|number| inbox_message(number, "a")).collect();
    let backward: Vec<_> = forward.iter().rev().cloned().collect();
    let from_middle: Vec<_> = forward[10..].iter().chain(&forward[..10]).cloned().collect();
    let (one, two, three) = tokio::join!(
        handle_with_retries(h, &workers[0], &forward),
        handle_with_retries(h, &workers[1], &backward),
        handle_with_retries(h, &workers[2], &from_middle),
    );
    let new = one.iter().chain(&two).chain(&three).filter(|entered| **entered == EnterOutcome::New).count();
    assert_eq!(new, 20);
    let mut effects = h.effects().await;
    effects.sort_by_key(|line| line.parse::<u64>().ok());
    assert_eq!(effects, lines(&(0..20).collect::<Vec<_>>()));
}
