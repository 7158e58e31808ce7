//! The retry table: a waiting message keeps its position, and later messages of its queue stay behind it.

use std::time::Duration;

use relevo_core::inbox::operate::{DeadFilter, Operate};
use relevo_core::inbox::{Begun, Claimed, Entered, Inbox, Kept, Setback, State, Stop};

use super::harness::Harness;
use super::stage::{
    BILLING, LONG, SHORT, arrival, begin, bury, due, due_one, handle, keep, lines, numbers, ok, open, retry, setback,
    work, work_on,
};

/// It is not due before its pause is over, and keeps all its data.
pub async fn a_retried_message_is_due_after_its_pause(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = arrival(1, "a");
    keep(&inbox, &message, &retry(SHORT, 4)).await;
    assert!(due(&inbox).await.is_empty());
    h.pass(SHORT).await;
    let due = due_one(&inbox).await;
    assert_eq!((due.messages[0].attempts, due.messages[0].started, due.messages[0].reopened), (4, 1, false));
    assert_eq!((&*due.queue, &due.messages[0].arrival), ("a", &message));
    assert_eq!(handle(h, &inbox, std::slice::from_ref(&message)).await, [Entered::Repeat(State::Waiting)]);
    work(h, &inbox, &due).await;
    assert_eq!(handle(h, &inbox, &[message]).await, [Entered::Repeat(State::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A failure is not recorded for a message that has ended or already waits.
pub async fn what_ended_meanwhile_is_not_set_back(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let [done, waiting, dead] = [1, 2, 3].map(|number| arrival(number, &number.to_string()));
    handle(h, &inbox, std::slice::from_ref(&done)).await;
    keep(&inbox, &waiting, &retry(Duration::ZERO, 1)).await;
    bury(&inbox, &dead, Stop::DeadContinue).await;
    for stop in [Stop::Retry { after: Duration::ZERO }, Stop::DeadHold, Stop::DeadContinue] {
        let states = [(&done, State::Done), (&waiting, State::Waiting), (&dead, State::Dead)];
        for (message, state) in states {
            let kept = inbox.set_back(message, None, None, &setback(stop, 9)).await;
            assert_eq!(ok(kept), Kept::Repeat(state));
        }
    }
    assert_eq!(numbers(&due_one(&inbox).await), [2]);
    assert_eq!(ok(h.operator().await.dead(&DeadFilter::default(), 10).await).len(), 1);
}

/// A message whose start was counted can be queued for a retry.
pub async fn a_started_message_can_be_set_back(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    ok(inbox.start(&arrival(1, "a")).await);
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    assert_eq!(numbers(&due_one(&inbox).await), [1]);
}

/// They wait in the order of arrival, whatever their ids are.
pub async fn later_messages_wait_behind_in_order(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(5, "a"), &retry(SHORT, 1)).await;
    let batch = [arrival(3, "a"), arrival(9, "b"), arrival(2, "a"), arrival(3, "a")];
    let entered = handle(h, &inbox, &batch).await;
    assert_eq!(entered[..3], [Entered::Behind, Entered::New, Entered::Behind]);
    assert!(matches!(entered[3], Entered::Repeat(_)));
    assert_eq!(handle(h, &inbox, &[arrival(1, "a")]).await, [Entered::Behind]);
    assert_eq!(handle(h, &inbox, &[arrival(2, "a")]).await, [Entered::Repeat(State::Waiting)]);
    h.pass(SHORT).await;
    let due = due_one(&inbox).await;
    assert_eq!(numbers(&due), [5, 3, 2, 1]);
    work(h, &inbox, &due).await;
    assert_eq!(handle(h, &inbox, &[arrival(4, "a")]).await, [Entered::New], "the live path again");
    assert_eq!(h.effects().await, lines(&[9, 5, 3, 2, 1, 4]));
}

/// A rolled-back transaction queues nothing.
pub async fn what_rolled_back_does_not_wait(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    let (transaction, entered) = begin(&inbox, &[arrival(2, "a")]).await;
    assert_eq!(entered, [Entered::Behind]);
    ok(inbox.roll_back(transaction).await);
    let due = due_one(&inbox).await;
    assert_eq!(numbers(&due), [1]);
    work(h, &inbox, &due).await;
    assert_eq!(handle(h, &inbox, &[arrival(2, "a")]).await, [Entered::New]);
}

/// A message that fails while its queue waits goes to the end, because the waiting messages came before it.
pub async fn a_message_set_back_into_a_queue_goes_behind(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(SHORT, 5)).await;
    keep(&inbox, &arrival(2, "a"), &retry(Duration::ZERO, 1)).await;
    assert!(due(&inbox).await.is_empty(), "the first one's pause counts");
    h.pass(SHORT).await;
    let due = due_one(&inbox).await;
    assert_eq!((numbers(&due), due.messages[0].attempts), (vec![1, 2], 5));
}

/// Consumers share no queues.
pub async fn each_consumer_has_its_own_queues(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    keep(&billing, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    assert!(due(&shipping).await.is_empty());
    assert_eq!(handle(h, &shipping, &[arrival(2, "a")]).await, [Entered::New]);
    assert_eq!(numbers(&due_one(&billing).await), [1]);
}

/// At most the requested number of queues, the one that waited longest first.
pub async fn the_queue_that_waited_longest_comes_first(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let pauses = [("a", 200), ("b", 0), ("c", 100)];
    for (number, (queue, pause)) in (1..).zip(pauses) {
        keep(&inbox, &arrival(number, queue), &retry(Duration::from_secs(pause), 1)).await;
        handle(h, &inbox, &[arrival(number + 10, queue), arrival(number + 20, queue)]).await;
    }
    h.pass(Duration::from_secs(400)).await;
    let first = ok(inbox.due(2, 2, LONG).await);
    let queues: Vec<&str> = first.iter().map(|due| &*due.queue).collect();
    assert_eq!(queues, ["b", "c"]);
    assert_eq!((numbers(&first[0]), numbers(&first[1])), (vec![2, 12], vec![3, 13]));
    let rest = ok(inbox.due(2, 10, LONG).await);
    assert_eq!((rest.len(), numbers(&rest[0])), (1, vec![1, 11, 21]));
}

/// Members that poll at the same time get different queues.
pub async fn two_members_claim_different_queues(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    for number in 0..12 {
        keep(&first, &arrival(number, &number.to_string()), &retry(Duration::ZERO, 1)).await;
    }
    let (one, other) = tokio::join!(first.due(8, 1, LONG), second.due(8, 1, LONG));
    let mut claimed = ok(one);
    claimed.extend(ok(other));
    claimed.extend(due(&first).await);
    let mut queues: Vec<u64> = claimed.iter().flat_map(numbers).collect();
    queues.sort_unstable();
    assert_eq!(queues, (0..12).collect::<Vec<_>>(), "each is claimed once");
    let mut tokens: Vec<_> = claimed.iter().map(|due| due.token).collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 12, "each claim has its own token");
}

/// The first message stays first, with its count of attempts; no other message overtakes it.
pub async fn a_message_that_fails_again_keeps_its_place(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    let claimed = due_one(&inbox).await;
    let kept = inbox.set_back_due(&claimed, claimed.messages[0].number, &retry(SHORT, 2)).await;
    assert_eq!(ok(kept), Kept::Kept);
    assert!(due(&inbox).await.is_empty());
    assert_eq!(handle(h, &inbox, &[arrival(3, "a")]).await, [Entered::Behind]);
    h.pass(SHORT).await;
    let claimed = due_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts, claimed.messages[0].started), (vec![1, 2, 3], 2, 1));
}

/// A message that may have crashed a process is postponed while others run. It keeps its count of starts and must run
/// alone the next time too.
pub async fn what_was_not_tried_keeps_its_count_of_starts(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 3)).await;
    // A process claims it and crashes.
    assert_eq!(ok(inbox.due(1, 1, SHORT).await)[0].messages[0].started, 1);
    h.pass(SHORT).await;
    for _ in 0..2 {
        let claimed = due_one(&inbox).await;
        assert_eq!((claimed.messages[0].attempts, claimed.messages[0].started), (3, 2));
        let put_off = Setback { error: "others run".to_owned(), ..setback(Stop::Wait { after: SHORT }, 3) };
        assert_eq!(ok(inbox.set_back_due(&claimed, claimed.messages[0].number, &put_off).await), Kept::Kept);
        assert!(due(&inbox).await.is_empty());
        let shown = ok(h.operator().await.consumer(BILLING, 10).await).expect("a consumer");
        assert_eq!(shown.queues[0].error, retry(Duration::ZERO, 3).error, "why it failed when it was tried");
        h.pass(SHORT).await;
    }
    let claimed = due_one(&inbox).await;
    ok(inbox.set_back_due(&claimed, claimed.messages[0].number, &retry(Duration::ZERO, 4)).await);
    assert_eq!(due_one(&inbox).await.messages[0].started, 1, "a try that failed is no crash");
}

/// The same for a live message with an external call.
pub async fn a_call_that_was_not_made_keeps_its_count_of_starts(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = arrival(1, "a");
    for started in 1..=2 {
        let Claimed::Mine(claim) = ok(inbox.claim(&message, None, SHORT).await) else { panic!("nobody has it") };
        assert_eq!(claim.started, started);
        if started == 2 {
            let put_off = setback(Stop::Wait { after: Duration::ZERO }, 0);
            assert_eq!(ok(inbox.set_back(&message, None, Some(claim), &put_off).await), Kept::Kept);
        }
        // The first time its process crashes.
        h.pass(SHORT).await;
    }
    let claimed = due_one(&inbox).await;
    assert_eq!((claimed.messages[0].attempts, claimed.messages[0].started), (0, 2));
}

/// A live message deferred without an attempt waits for its own pause, and not only for its turn in the queue.
pub async fn a_deferred_live_message_is_not_tried_before_its_time(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    keep(&inbox, &arrival(2, "a"), &setback(Stop::Wait { after: SHORT }, 0)).await;
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1], "the claim ends before the deferred message");
    work(h, &inbox, &claimed).await;
    assert!(due(&inbox).await.is_empty(), "the release keeps the pause of the deferred message");
    h.pass(SHORT).await;
    let claimed = due_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts), (vec![2], 0));
}

/// Attempts and starts of a message do not count for the next one, even if the queue was not released.
pub async fn attempts_belong_to_the_first_message(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 7)).await;
    handle(h, &inbox, &[arrival(2, "a"), arrival(3, "a")]).await;
    let claimed = ok(inbox.due(1, 10, SHORT).await).remove(0);
    assert_eq!(claimed.messages[0].attempts, 7);
    work_on(h, &inbox, &claimed, 0).await;
    h.pass(SHORT).await;
    let claimed = due_one(&other).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts, claimed.messages[0].started), (vec![2, 3], 0, 1));
    work_on(h, &other, &claimed, 0).await;
    ok(other.release(&claimed).await);
    let claimed = due_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts, claimed.messages[0].started), (vec![3], 0, 1));
}

/// Under one claim, only the first remaining message can be handled, one after the other.
pub async fn a_queue_is_handled_from_its_front(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    let claimed = due_one(&inbox).await;
    let second = inbox.begin_due(&claimed, claimed.messages[1].number).await;
    assert!(!matches!(ok(second), Begun::Open(..)), "another is before it");
    // After a rollback it is the first again.
    let (mut transaction, _) = open(inbox.begin_due(&claimed, claimed.messages[0].number).await);
    h.effect(&mut transaction, "rolled back").await;
    ok(inbox.roll_back(transaction).await);
    work_on(h, &inbox, &claimed, 0).await;
    let again = inbox.begin_due(&claimed, claimed.messages[0].number).await;
    assert!(!matches!(ok(again), Begun::Open(..)), "it is done");
    work_on(h, &inbox, &claimed, 1).await;
    ok(inbox.release(&claimed).await);
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A message from the retry table can be skipped like any other.
pub async fn a_waiting_message_may_be_skipped(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = arrival(1, "a");
    keep(&inbox, &message, &retry(Duration::ZERO, 1)).await;
    let claimed = due_one(&inbox).await;
    let (mut transaction, _) = open(inbox.begin_due(&claimed, claimed.messages[0].number).await);
    ok(inbox.skip(&mut transaction, message.entry).await);
    ok(inbox.commit(transaction).await);
    ok(inbox.release(&claimed).await);
    assert_eq!(handle(h, &inbox, &[message]).await, [Entered::Repeat(State::Skipped)]);
}

/// Messages that a member did not handle are due for others immediately.
pub async fn what_is_released_is_due_at_once(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 2)).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    let claimed = due_one(&inbox).await;
    assert!(due(&other).await.is_empty());
    ok(inbox.release(&claimed).await);
    ok(inbox.release(&claimed).await);
    let claimed = due_one(&other).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts), (vec![1, 2], 2));
}

/// A member emptied the queue and crashed: the next worker that claims it only has to release it.
pub async fn an_empty_queue_that_nobody_released_is_released_later(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = ok(inbox.due(1, 10, SHORT).await).remove(0);
    work_on(h, &inbox, &claimed, 0).await;
    assert!(due(&other).await.is_empty());
    h.pass(SHORT).await;
    let claimed = due_one(&other).await;
    assert!(claimed.messages.is_empty());
    ok(other.release(&claimed).await);
    assert!(due(&other).await.is_empty());
    assert_eq!(handle(h, &inbox, &[arrival(2, "a")]).await, [Entered::New]);
}
