//! Redrive: a dead letter is handled once more, in its position, however often operators request it.

use std::pin::pin;
use std::time::Duration;

use relevo_core::inbox::operate::{DeadFilter, DeadLetter, Fate, Mark, Operate};
use relevo_core::inbox::{Begun, Entered, Inbox, Kept, State, Stop};

use super::harness::Harness;
use super::stage::{
    BILLING, LONG, SHORT, arrival, begin, bury, due, due_one, handle, id, keep, lines, mark, numbers, of, ok, retry,
    setback, work,
};

/// How long to poll a call to check that it waits.
const BRIEF: Duration = Duration::from_millis(30);

fn all() -> DeadFilter {
    DeadFilter::default()
}

async fn letter(h: &impl Harness, number: u64) -> DeadLetter {
    ok(h.operator().await.dead(&of(&[number]), 10).await).remove(0)
}

/// It goes before the messages that waited for it, is due immediately, and counts its own attempts.
pub async fn a_redriven_message_goes_before_its_successors(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    assert_eq!(ok(h.operator().await.redrive(&mark(all())).await), 1);
    assert_eq!(letter(h, 1).await.fate, Fate::Replayed);
    let claimed = due_one(&inbox).await;
    assert_eq!(
        (numbers(&claimed), claimed.messages[0].attempts, claimed.messages[0].started, claimed.messages[0].reopened),
        (vec![1, 2], 0, 1, true)
    );
    work(h, &inbox, &claimed).await;
    assert_eq!(handle(h, &inbox, &[arrival(3, "a")]).await, [Entered::New]);
    assert_eq!(h.effects().await, lines(&[1, 2, 3]));
}

/// The broker redelivers a redriven message before and after it is handled: both are duplicates.
pub async fn a_duplicate_of_a_redriven_message_is_a_repeat(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    // Its own queue, as for a consumer without order: only the inbox row identifies it.
    let message = [arrival(1, "1")];
    bury(&inbox, &message[0], Stop::DeadContinue).await;
    ok(h.operator().await.redrive(&mark(all())).await);
    assert_eq!(handle(h, &other, &message).await, [Entered::Repeat(State::Reopened)]);
    let kept = other.set_back(&message[0], None, None, &setback(Stop::DeadContinue, 1)).await;
    assert_eq!(ok(kept), Kept::Repeat(State::Reopened));
    let claimed = due_one(&inbox).await;
    work(h, &inbox, &claimed).await;
    assert_eq!(handle(h, &other, &message).await, [Entered::Repeat(State::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// As after a double click.
pub async fn a_second_redrive_reopens_nothing(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.redrive(&mark(all())).await), 1);
    assert_eq!(ok(operator.redrive(&mark(all())).await), 0);
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1]);
    work(h, &inbox, &claimed).await;
    assert_eq!(ok(operator.redrive(&mark(all())).await), 0);
    assert_eq!(ok(operator.archive(&mark(all())).await), 0);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Two operators redrive at the same time.
pub async fn two_redrives_at_once_reopen_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in 0..10 {
        bury(&inbox, &arrival(number, &(number % 3).to_string()), Stop::DeadContinue).await;
    }
    let (ana, bo) = (h.operator().await, h.operator().await);
    let all = mark(all());
    let (one, other) = tokio::join!(ana.redrive(&all), bo.redrive(&all));
    assert_eq!(ok(one) + ok(other), 10);
    let claimed = due(&inbox).await;
    let queues: Vec<Vec<u64>> = claimed.iter().map(numbers).collect();
    assert_eq!(claimed.len(), 3);
    assert!([vec![0, 3, 6, 9], vec![1, 4, 7], vec![2, 5, 8]].iter().all(|queue| queues.contains(queue)), "{queues:?}");
}

/// A redrive and an archive at the same time: only one succeeds.
pub async fn a_letter_is_redriven_or_archived(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    let (ana, bo) = (h.operator().await, h.operator().await);
    let all = mark(all());
    let (redriven, archived) = tokio::join!(ana.redrive(&all), bo.archive(&all));
    let (redriven, archived) = (ok(redriven), ok(archived));
    assert_eq!(redriven + archived, 1);
    assert_eq!(due(&inbox).await.len() as u64, redriven);
}

/// Messages of a queue keep the order of arrival, even if the first one died last.
pub async fn several_redriven_messages_keep_their_order(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2, 3] {
        bury(&inbox, &arrival(number, "a"), Stop::DeadContinue).await;
        h.pass(Duration::from_millis(10)).await;
    }
    let operator = h.operator().await;
    ok(operator.redrive(&mark(of(&[1]))).await);
    let claimed = due_one(&inbox).await;
    ok(inbox.set_back_due(&claimed, claimed.messages[0].number, &setback(Stop::DeadContinue, 9)).await);
    ok(inbox.release(&claimed).await);
    keep(&inbox, &arrival(4, "a"), &retry(LONG, 1)).await;
    assert_eq!(ok(operator.redrive(&mark(all())).await), 3);
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1, 2, 3]);
    work(h, &inbox, &claimed).await;
    h.pass(LONG).await;
    let claimed = due_one(&inbox).await;
    work(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2, 3, 4]));
}

/// A message that waits for its retry goes behind and keeps its own pause. The redriven message does not wait for that
/// pause.
pub async fn a_redriven_message_goes_before_what_is_retried(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadContinue).await;
    keep(&inbox, &arrival(2, "a"), &retry(LONG, 6)).await;
    assert!(due(&inbox).await.is_empty());
    ok(h.operator().await.redrive(&mark(all())).await);
    let claimed = due_one(&inbox).await;
    let head = &claimed.messages[0];
    assert_eq!((numbers(&claimed), head.attempts, head.reopened), (vec![1], 0, true));
    work(h, &inbox, &claimed).await;
    assert!(due(&inbox).await.is_empty(), "its own pause counts");
    h.pass(LONG).await;
    let claimed = due_one(&inbox).await;
    let head = &claimed.messages[0];
    assert_eq!((numbers(&claimed), head.attempts, head.reopened), (vec![2], 6, false));
}

/// A worker has claimed the queue while a message is put before it: the claimed message is not handled out of order.
pub async fn a_message_redriven_before_a_claimed_queue_is_not_overtaken(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadContinue).await;
    keep(&inbox, &arrival(2, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = ok(inbox.due(1, 10, SHORT).await).remove(0);
    assert_eq!(numbers(&claimed), [2]);
    ok(h.operator().await.redrive(&mark(all())).await);
    let begun = ok(inbox.begin_due(&claimed, claimed.messages[0].number).await);
    assert!(!matches!(begun, Begun::Open(..)), "another is before it now");
    let kept = inbox.set_back_due(&claimed, claimed.messages[0].number, &retry(LONG, 2)).await;
    assert_eq!(ok(kept), Kept::Lost, "what failed meanwhile does not hold back the other");
    h.pass(SHORT).await;
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    work(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// The worker of the queue may be making an external call for its first message. No other worker may do so until the
/// queue is released or the claim expires.
pub async fn a_redrive_takes_no_queue_from_its_worker(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    bury(&inbox, &arrival(1, "a"), Stop::DeadContinue).await;
    keep(&inbox, &arrival(2, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = due_one(&inbox).await;
    ok(h.operator().await.redrive(&mark(all())).await);
    assert!(due(&other).await.is_empty(), "a worker has it");
    ok(inbox.release(&claimed).await);
    let claimed = due_one(&other).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    work(h, &other, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A queue held by another dead letter stays held: its successors must not overtake that letter.
pub async fn a_redriven_letter_does_not_free_a_queue_held_by_another(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadContinue).await;
    bury(&inbox, &arrival(2, "a"), Stop::DeadHold).await;
    handle(h, &inbox, &[arrival(3, "a")]).await;
    let operator = h.operator().await;
    ok(operator.redrive(&mark(of(&[1]))).await);
    for claimed in due(&inbox).await {
        assert_eq!(numbers(&claimed), [1], "no successor passes the second");
    }
    ok(operator.redrive(&mark(of(&[2]))).await);
    h.pass(SHORT).await;
    assert_eq!(handle(h, &inbox, &[arrival(4, "a")]).await, [Entered::Behind]);
}

/// It reopens the same dead letter, which counts the redrives.
pub async fn a_redriven_message_that_dies_again_reopens_its_letter(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    let first = letter(h, 1).await;
    let operator = h.operator().await;
    for redriven in 1..=2 {
        assert_eq!(ok(operator.redrive(&mark(all())).await), 1);
        let claimed = due_one(&inbox).await;
        let kept = inbox.set_back_due(&claimed, claimed.messages[0].number, &setback(Stop::DeadHold, 7)).await;
        assert_eq!(ok(kept), Kept::Kept);
        let letters = ok(operator.dead(&all(), 10).await);
        assert_eq!(letters.len(), 1);
        let again = &letters[0];
        assert_eq!((again.fate, again.redriven, again.attempts), (Fate::Pending, redriven, 7));
        assert_eq!((again.arrived_at, &again.arrival), (first.arrived_at, &first.arrival));
        assert_eq!(handle(h, &inbox, &[arrival(1, "a")]).await, [Entered::Repeat(State::Dead)]);
    }
}

/// A redriven message that has to wait again still counts as redriven.
pub async fn a_redriven_message_that_fails_waits_again(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    ok(h.operator().await.redrive(&mark(all())).await);
    let claimed = due_one(&inbox).await;
    let kept = inbox.set_back_due(&claimed, claimed.messages[0].number, &retry(Duration::ZERO, 1)).await;
    assert_eq!(ok(kept), Kept::Kept);
    let claimed = due_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts, claimed.messages[0].reopened), (vec![1], 1, true));
}

/// A redriven message that waits for its retry is not overtaken by a letter that died after it.
pub async fn a_redriven_message_that_waits_keeps_its_place(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2] {
        bury(&inbox, &arrival(number, "a"), Stop::DeadContinue).await;
    }
    let operator = h.operator().await;
    ok(operator.redrive(&mark(of(&[1]))).await);
    let claimed = due_one(&inbox).await;
    ok(inbox.set_back_due(&claimed, claimed.messages[0].number, &retry(SHORT, 1)).await);
    ok(operator.redrive(&mark(of(&[2]))).await);
    assert!(due(&inbox).await.is_empty(), "the first one's pause counts");
    h.pass(SHORT).await;
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    work(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// Letters outside the filter stay unchanged.
pub async fn a_redrive_touches_only_what_it_names(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    for inbox in [&billing, &shipping] {
        for number in [1, 2] {
            bury(inbox, &arrival(number, &number.to_string()), Stop::DeadContinue).await;
        }
    }
    let one = DeadFilter { consumer: Some(BILLING.to_owned()), ..of(&[2]) };
    assert_eq!(ok(h.operator().await.redrive(&mark(one)).await), 1);
    assert_eq!(numbers(&due_one(&billing).await), [2]);
    assert!(due(&shipping).await.is_empty());
}

/// The rate limits messages per second; the first is due immediately.
pub async fn a_rate_spreads_what_is_redriven(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in 0..4 {
        bury(&inbox, &arrival(number, &number.to_string()), Stop::DeadContinue).await;
        h.pass(Duration::from_millis(10)).await;
    }
    let operator = h.operator().await;
    assert_eq!(ok(operator.redrive(&Mark { rate: Some(2), ..mark(all()) }).await), 4);
    let queues = ok(operator.consumer(BILLING, 10).await).expect("a consumer").queues;
    let order: Vec<&str> = queues.iter().map(|queue| &*queue.queue).collect();
    assert_eq!(order, ["0", "1", "2", "3"]);
    let times: Vec<_> = queues.iter().filter_map(|queue| queue.next_attempt_at).collect();
    let pauses: Vec<i64> = times.windows(2).map(|pair| pair[1].as_microsecond() - pair[0].as_microsecond()).collect();
    assert_eq!(pauses, [500_000; 3]);
}

/// The rate also applies to messages of one key: they do not run as fast as the worker can.
pub async fn a_rate_spreads_what_is_redriven_of_one_key(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in 0..30 {
        bury(&inbox, &arrival(number, "a"), Stop::DeadContinue).await;
    }
    let operator = h.operator().await;
    assert_eq!(ok(operator.redrive(&Mark { rate: Some(1), ..mark(all()) }).await), 30);
    assert_eq!(handle(h, &inbox, &[arrival(30, "a")]).await, [Entered::Behind]);
    // The first is due now, and one more for every second that the case takes.
    let mut claimed = vec![due_one(&inbox).await];
    while let Some(due_now) = claimed.pop() {
        work(h, &inbox, &due_now).await;
        claimed = due(&inbox).await;
    }
    let handled = h.effects().await.len() as u64;
    assert!((1..30).contains(&handled), "{handled} were handled");
    let queues = ok(operator.consumer(BILLING, 10).await).expect("a consumer").queues;
    assert_eq!((queues[0].head.id, queues[0].length), (id(handled), 31 - handled));
    h.pass(Duration::from_secs(30)).await;
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), (handled..31).collect::<Vec<_>>());
    work(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&(0..31).collect::<Vec<_>>()));
}

/// The first letter is due now, whichever letter held the key last.
pub async fn a_rate_goes_on_with_the_first_of_several_that_held_a_key(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2] {
        bury(&inbox, &arrival(number, "a"), Stop::DeadHold).await;
    }
    handle(h, &inbox, &[arrival(3, "a")]).await;
    // Letters of other keys lie between them.
    for number in 10..90 {
        bury(&inbox, &arrival(number, &number.to_string()), Stop::DeadContinue).await;
    }
    bury(&inbox, &arrival(4, "a"), Stop::DeadHold).await;
    let slow = Mark { rate: Some(1), ..mark(all()) };
    assert_eq!(ok(h.operator().await.redrive(&slow).await), 83);
    let claimed = due(&inbox).await;
    let mine = claimed.iter().find(|due| &*due.queue == "a").expect("its first letter is due");
    assert_eq!(numbers(mine)[0], 1);
}

/// One message is appended in an open transaction while another is put in front: both are kept.
pub async fn a_redrive_beside_an_open_append_loses_nothing(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    let (transaction, entered) = begin(&inbox, &[arrival(2, "a")]).await;
    assert_eq!(entered, [Entered::Behind]);
    let operator = h.operator().await;
    let all = mark(all());
    let mut redrive = pin!(operator.redrive(&all));
    let early = tokio::time::timeout(BRIEF, &mut redrive).await;
    ok(inbox.commit(transaction).await);
    let redriven = match early {
        Ok(answer) => answer.unwrap_or(0),
        Err(_) => ok(redrive.await),
    };
    // A redrive that gave up changed nothing and is repeated.
    assert_eq!(redriven + ok(operator.redrive(&all).await), 1);
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    work(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}
