//! Claims of retry queues, and concurrent operations on them.

use std::pin::pin;
use std::time::Duration;

use relevo_core::inbox::Fence;
use relevo_core::inbox::retries::RecordOutcome;
use relevo_core::inbox::transactions::{BeginOutcome, EnterOutcome};

use super::harness::Harness;
use super::harness::ports::*;
use super::steps::{
    BILLING, LONG, REAL_WAIT, SHORT, assert_fenced, begin, claim_due, claim_one, during_write, fail, finish, handle,
    handle_at, handle_queue, handle_with_retries, in_queue, inbox_message, lines, must, must_commit, must_open,
    numbers, queued, retry,
};

/// How long to poll a call to check that it waits. Shorter than the lock timeout of any store.
const BLOCKED_CHECK: Duration = Duration::from_millis(30);

/// A member that was suspended past its claim cannot change a queue that another has claimed.
pub async fn an_expired_claim_can_be_taken_over(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&slow, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &slow, &[inbox_message(2, "a")]).await;
    let late = must(slow.claim_due(1, 10, SHORT).await).remove(0);
    assert!(claim_due(&quick).await.is_empty());
    h.advance_time(SHORT).await;
    let claimed_again = claim_one(&quick).await;
    assert_ne!(claimed_again.claim, late.claim);
    assert_eq!((claimed_again.messages[0].message.attempts, claimed_again.messages[0].unfinished_starts), (1, 2));
    assert_fenced(slow.begin(queued(&late, 0), in_queue(&late, 0)).await);
    assert_eq!(
        must(slow.record_failure(&late.messages[0].message, in_queue(&late, 0), &retry(LONG, 9)).await),
        RecordOutcome::Fenced
    );
    must(slow.release_queue(&late.claim).await);
    assert!(claim_due(&slow).await.is_empty(), "its release freed nothing");
    handle_queue(h, &quick, &claimed_again).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A worker with an expired claim begins nothing, because another worker may be claiming the queue.
pub async fn an_expired_claim_begins_no_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = must(inbox.claim_due(1, 10, SHORT).await).remove(0);
    h.advance_time(SHORT).await;
    assert_fenced(inbox.begin(queued(&claimed, 0), in_queue(&claimed, 0)).await);
    let claimed = claim_one(&inbox).await;
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A queue does not change workers while one of its messages is handled, even if the claim expires meanwhile.
pub async fn a_claim_does_not_move_under_an_open_transaction(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&slow, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &slow, &[inbox_message(2, "a")]).await;
    let late = must(slow.claim_due(1, 10, REAL_WAIT).await).remove(0);
    let (mut transaction, _) = must_open(slow.begin(queued(&late, 0), in_queue(&late, 0)).await);
    h.effect(&mut transaction, "1").await;
    h.advance_time(REAL_WAIT).await;
    let claimed = during_write(h, quick.claim_due(10, 10, LONG).await);
    assert!(claimed.is_none_or(|claimed| claimed.is_empty()), "the old claim may still commit");
    must_commit(slow.commit(transaction, &[]).await);
    let claimed_again = claim_one(&quick).await;
    assert_eq!(numbers(&claimed_again), [2]);
    handle_queue(h, &quick, &claimed_again).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A message that arrives while its queue is claimed is appended at the end.
pub async fn a_message_appended_to_a_claimed_queue_keeps_its_order(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&live, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = claim_one(&worker).await;
    assert_eq!(handle(h, &live, &[inbox_message(2, "a")]).await, [EnterOutcome::QueuedBehind]);
    handle_at(h, &worker, &claimed, 0).await;
    assert_eq!(
        handle(h, &live, &[inbox_message(3, "a")]).await,
        [EnterOutcome::QueuedBehind],
        "it is not released yet"
    );
    must(worker.release_queue(&claimed.claim).await);
    let claimed = claim_one(&worker).await;
    assert_eq!(numbers(&claimed), [2, 3]);
    handle_queue(h, &worker, &claimed).await;
    assert_eq!(handle(h, &live, &[inbox_message(4, "a")]).await, [EnterOutcome::New]);
    assert_eq!(h.effects().await, lines(&[1, 2, 3, 4]));
}

/// Messages can be appended while a handler runs, unless the store allows only one writer.
pub async fn messages_are_appended_while_a_handler_runs(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&live, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = claim_one(&worker).await;
    let (mut transaction, _) = must_open(worker.begin(queued(&claimed, 0), in_queue(&claimed, 0)).await);
    h.effect(&mut transaction, "1").await;
    let second = [inbox_message(2, "a")];
    let outcome = must(live.begin(&second, Fence::Live { lane: None }).await);
    assert_eq!(matches!(outcome, BeginOutcome::Busy), h.capabilities().single_writer);
    if let BeginOutcome::Open(behind, entered) = outcome {
        assert_eq!(entered, [EnterOutcome::QueuedBehind]);
        finish(h, &live, behind, &second, &entered).await;
    }
    must_commit(worker.commit(transaction, &[]).await);
    handle(h, &live, &second).await;
    must(worker.release_queue(&claimed.claim).await);
    assert_eq!(numbers(&claim_one(&worker).await), [2]);
}

/// A message is appended in a transaction that is still open when its empty queue is released. It must neither be
/// stranded in a deleted queue nor be overtaken by the next message.
pub async fn a_release_waits_for_an_open_append(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&live, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = must(worker.claim_due(1, 10, SHORT).await).remove(0);
    handle_at(h, &worker, &claimed, 0).await;
    let (transaction, entered) = begin(&live, &[inbox_message(2, "a")]).await;
    assert_eq!(entered, [EnterOutcome::QueuedBehind]);
    let mut release = pin!(worker.release_queue(&claimed.claim));
    let early = tokio::time::timeout(BLOCKED_CHECK, &mut release).await;
    let next = h.inbox(BILLING).await;
    if let BeginOutcome::Open(passing, entered) =
        must(next.begin(&[inbox_message(3, "a")], Fence::Live { lane: None }).await)
    {
        assert_eq!(entered, [EnterOutcome::QueuedBehind], "it does not pass the one that is being appended");
        must(next.rollback(passing).await);
    }
    must_commit(live.commit(transaction, &[]).await);
    if early.is_err() {
        must(release.await);
    }
    // After a release that timed out, the claim expires.
    h.advance_time(SHORT).await;
    assert_eq!(handle(h, &live, &[inbox_message(3, "a")]).await, [EnterOutcome::QueuedBehind]);
    let claimed = claim_one(&worker).await;
    assert_eq!(numbers(&claimed), [2, 3]);
    handle_queue(h, &worker, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2, 3]));
}

/// Recording a failure also waits for an open append.
pub async fn recording_a_failure_waits_for_an_open_append(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&live, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = claim_one(&worker).await;
    let (transaction, _) = begin(&live, &[inbox_message(2, "a")]).await;
    let recorded = must(
        worker.record_failure(&claimed.messages[0].message, in_queue(&claimed, 0), &retry(Duration::ZERO, 2)).await,
    );
    assert_eq!(recorded, RecordOutcome::Busy);
    must_commit(live.commit(transaction, &[]).await);
    assert_eq!(
        must(
            worker.record_failure(&claimed.messages[0].message, in_queue(&claimed, 0), &retry(Duration::ZERO, 2)).await
        ),
        RecordOutcome::Recorded
    );
    let claimed = claim_one(&worker).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].message.attempts), (vec![1, 2], 2));
}

/// Workers empty a queue while messages of its key arrive: each is handled once and in order, whatever the
/// interleaving.
pub async fn a_queue_emptied_while_messages_arrive_loses_and_reorders_nothing(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&live, &inbox_message(0, "a"), &retry(Duration::ZERO, 1)).await;
    let h = &*h;
    let arrive = async {
        for number in 1..=40 {
            handle_with_retries(h, &live, &[inbox_message(number, "a")]).await;
        }
    };
    let empty = async {
        for _ in 0..40 {
            for claimed in claim_due(&worker).await {
                handle_queue(h, &worker, &claimed).await;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(arrive, empty);
    while let [claimed] = &*claim_due(&worker).await {
        handle_queue(h, &worker, claimed).await;
    }
    assert_eq!(h.effects().await, lines(&(0..=40).collect::<Vec<_>>()));
}
