//! Claims of retry queues, and concurrent operations on them.

use std::pin::pin;
use std::time::Duration;

use relevo_core::inbox::{Begun, Enter, Entered, Inbox, Kept};

use super::harness::Harness;
use super::stage::{
    BILLING, LONG, SHORT, WAITED, arrival, begin, beside, due, due_one, finish, handle, handle_patiently, keep, lines,
    lost, numbers, ok, open, retry, work, work_on,
};

/// How long to poll a call to check that it waits. Shorter than the lock timeout of any store.
const BRIEF: Duration = Duration::from_millis(30);

/// A member that was suspended past its claim cannot change a queue that another has claimed.
pub async fn an_expired_claim_is_anothers(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&slow, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &slow, &[arrival(2, "a")]).await;
    let late = ok(slow.due(1, 10, SHORT).await).remove(0);
    assert!(due(&quick).await.is_empty());
    h.pass(SHORT).await;
    let mine = due_one(&quick).await;
    assert_ne!(mine.token, late.token);
    assert_eq!((mine.messages[0].attempts, mine.messages[0].started), (1, 2));
    let number = late.messages[0].number;
    lost(slow.begin_due(&late, number).await);
    assert_eq!(ok(slow.set_back_due(&late, number, &retry(LONG, 9)).await), Kept::Lost);
    ok(slow.release(&late).await);
    assert!(due(&slow).await.is_empty(), "its release freed nothing");
    work(h, &quick, &mine).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A worker with an expired claim begins nothing, because another worker may be claiming the queue.
pub async fn an_expired_claim_begins_nothing(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = ok(inbox.due(1, 10, SHORT).await).remove(0);
    h.pass(SHORT).await;
    lost(inbox.begin_due(&claimed, claimed.messages[0].number).await);
    let claimed = due_one(&inbox).await;
    work(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A queue does not change workers while one of its messages is handled, even if the claim expires meanwhile.
pub async fn a_claim_does_not_move_under_an_open_transaction(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&slow, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &slow, &[arrival(2, "a")]).await;
    let late = ok(slow.due(1, 10, WAITED).await).remove(0);
    let (mut transaction, _) = open(slow.begin_due(&late, late.messages[0].number).await);
    h.effect(&mut transaction, "1").await;
    h.pass(WAITED).await;
    let claimed = beside(h, quick.due(10, 10, LONG).await);
    assert!(claimed.is_none_or(|claimed| claimed.is_empty()), "the old claim may still commit");
    ok(slow.commit(transaction).await);
    let mine = due_one(&quick).await;
    assert_eq!(numbers(&mine), [2]);
    work(h, &quick, &mine).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A message that arrives while its queue is claimed is appended at the end.
pub async fn a_message_appended_while_its_queue_is_out_keeps_its_place(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&live, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = due_one(&worker).await;
    assert_eq!(handle(h, &live, &[arrival(2, "a")]).await, [Entered::Behind]);
    work_on(h, &worker, &claimed, 0).await;
    assert_eq!(handle(h, &live, &[arrival(3, "a")]).await, [Entered::Behind], "nobody released it yet");
    ok(worker.release(&claimed).await);
    let claimed = due_one(&worker).await;
    assert_eq!(numbers(&claimed), [2, 3]);
    work(h, &worker, &claimed).await;
    assert_eq!(handle(h, &live, &[arrival(4, "a")]).await, [Entered::New]);
    assert_eq!(h.effects().await, lines(&[1, 2, 3, 4]));
}

/// Messages can be appended while a handler runs, unless the store allows only one writer.
pub async fn messages_are_appended_beside_a_handler(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&live, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = due_one(&worker).await;
    let (mut transaction, _) = open(worker.begin_due(&claimed, claimed.messages[0].number).await);
    h.effect(&mut transaction, "1").await;
    let second = [arrival(2, "a")];
    let begun = ok(live.begin(Enter { held: None, arrivals: &second }).await);
    assert_eq!(matches!(begun, Begun::Busy), h.capabilities().one_writer);
    if let Begun::Open(behind, entered) = begun {
        assert_eq!(entered, [Entered::Behind]);
        finish(h, &live, behind, &second, &entered).await;
    }
    ok(worker.commit(transaction).await);
    handle(h, &live, &second).await;
    ok(worker.release(&claimed).await);
    assert_eq!(numbers(&due_one(&worker).await), [2]);
}

/// A message is appended in a transaction that is still open when its empty queue is released. It must neither be
/// stranded in a deleted queue nor be overtaken by the next message.
pub async fn a_release_waits_for_an_append_that_is_open(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&live, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = ok(worker.due(1, 10, SHORT).await).remove(0);
    work_on(h, &worker, &claimed, 0).await;
    let (transaction, entered) = begin(&live, &[arrival(2, "a")]).await;
    assert_eq!(entered, [Entered::Behind]);
    let mut release = pin!(worker.release(&claimed));
    let early = tokio::time::timeout(BRIEF, &mut release).await;
    let next = h.inbox(BILLING).await;
    if let Begun::Open(passing, entered) = ok(next.begin(Enter { held: None, arrivals: &[arrival(3, "a")] }).await) {
        assert_eq!(entered, [Entered::Behind], "it does not pass the one that is being appended");
        ok(next.roll_back(passing).await);
    }
    ok(live.commit(transaction).await);
    if early.is_err() {
        ok(release.await);
    }
    // A release that gave up leaves the claim to expire.
    h.pass(SHORT).await;
    assert_eq!(handle(h, &live, &[arrival(3, "a")]).await, [Entered::Behind]);
    let claimed = due_one(&worker).await;
    assert_eq!(numbers(&claimed), [2, 3]);
    work(h, &worker, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2, 3]));
}

/// Recording a failure also waits for an open append.
pub async fn a_setback_waits_for_an_append_that_is_open(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&live, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = due_one(&worker).await;
    let (transaction, _) = begin(&live, &[arrival(2, "a")]).await;
    let number = claimed.messages[0].number;
    let kept = ok(worker.set_back_due(&claimed, number, &retry(Duration::ZERO, 2)).await);
    assert_eq!(kept, Kept::Busy);
    ok(live.commit(transaction).await);
    assert_eq!(ok(worker.set_back_due(&claimed, number, &retry(Duration::ZERO, 2)).await), Kept::Kept);
    let claimed = due_one(&worker).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts), (vec![1, 2], 2));
}

/// Workers empty a queue while messages of its key arrive: each is handled once and in order, whatever the
/// interleaving.
pub async fn a_queue_emptied_while_messages_arrive_loses_and_inverts_nothing(h: &mut impl Harness) {
    let (worker, live) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&live, &arrival(0, "a"), &retry(Duration::ZERO, 1)).await;
    let h = &*h;
    let arrive = async {
        for number in 1..=40 {
            handle_patiently(h, &live, &[arrival(number, "a")]).await;
        }
    };
    let empty = async {
        for _ in 0..40 {
            for claimed in due(&worker).await {
                work(h, &worker, &claimed).await;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(arrive, empty);
    while let [claimed] = &*due(&worker).await {
        work(h, &worker, claimed).await;
    }
    assert_eq!(h.effects().await, lines(&(0..=40).collect::<Vec<_>>()));
}
