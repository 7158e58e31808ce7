//! Dead letters: all received data is retained, and an operator decides.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::consume::{Lane, Raw};
use relevo_core::inbox::operate::{DeadFilter, DeadLetter, Fate, Mark, Operate};
use relevo_core::inbox::{Arrival, Entered, Inbox, Kept, Setback, State, Stop};

use super::harness::Harness;
use super::stage::{
    BILLING, arrival, bury, due, due_one, handle, id, keep, lines, lost, mark, numbers, of, ok, retry, setback, work,
    work_on,
};

/// Binary and repeated headers, a payload that is neither text nor JSON, and offsets and texts at their limits.
fn strange(number: u64) -> Arrival {
    let headers = [("x-raw", &b"\xff\x00\xfe"[..]), ("x-twice", b"2"), ("X-Twice", b""), ("x-twice", b"1")];
    Arrival {
        raw: Raw {
            headers: headers.map(|(name, value)| (name.to_owned(), Bytes::from_static(value))).into(),
            payload: Bytes::from_static(b"\x00\xff{ not json \xc3\x28"),
        },
        address: "órdenes.España".into(),
        lane: Lane::new("lane 'ü' \\ 1"),
        place: Some(i64::MAX.unsigned_abs()),
        correlation: Some("corrélation".into()),
        ..arrival(number, "a 'key' \\ with ☃")
    }
}

async fn letters(h: &impl Harness) -> Vec<DeadLetter> {
    ok(h.operator().await.dead(&DeadFilter::default(), 100).await)
}

/// The received message, byte for byte, and why it was dead-lettered.
pub async fn a_dead_letter_keeps_everything(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let bare = Arrival { raw: Raw::default(), place: None, ..arrival(2, "b") };
    let panicked = Setback {
        stop: Stop::DeadContinue,
        attempts: 5,
        class: "panic",
        error: "index out of bounds".to_owned(),
        backtrace: Some("0: handle\n1: main".to_owned()),
    };
    keep(&inbox, &strange(1), &panicked).await;
    keep(&inbox, &bare, &setback(Stop::DeadContinue, 0)).await;
    let operator = h.operator().await;
    let letter = ok(operator.dead(&of(&[1]), 10).await).remove(0);
    assert_eq!((letter.consumer.as_str(), &letter.arrival), (BILLING, &strange(1)));
    assert_eq!((letter.class.as_str(), letter.error.as_str(), letter.attempts), ("panic", "index out of bounds", 5));
    assert_eq!(letter.backtrace, panicked.backtrace);
    assert_eq!((letter.fate, letter.redriven, &letter.note), (Fate::Pending, 0, &None));
    assert!(letter.arrived_at <= letter.dead_at);
    let letter = ok(operator.dead(&of(&[2]), 10).await).remove(0);
    assert_eq!((&letter.arrival, letter.backtrace), (&bare, None));
}

/// The bytes stay the same through the retry table and back to a handler.
pub async fn bytes_survive_the_retry_table_and_a_redrive(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &strange(1), &retry(Duration::ZERO, 1)).await;
    assert_eq!(handle(h, &inbox, &[strange(2)]).await, [Entered::Behind]);
    let claimed = due_one(&inbox).await;
    let messages: Vec<&Arrival> = claimed.messages.iter().map(|waiting| &waiting.arrival).collect();
    assert_eq!(messages, [&strange(1), &strange(2)]);
    let kept = inbox.set_back_due(&claimed, claimed.messages[0].number, &setback(Stop::DeadHold, 2)).await;
    assert_eq!(ok(kept), Kept::Kept);
    assert_eq!(letters(h).await[0].arrival, strange(1));
    ok(h.operator().await.redrive(&mark(of(&[1]))).await);
    let claimed = due_one(&inbox).await;
    assert_eq!(claimed.messages[0].arrival, strange(1));
}

/// Its queue continues, and a redelivery of it is a duplicate.
pub async fn a_queue_that_continues_waits_for_nobody(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadContinue).await;
    let entered = handle(h, &inbox, &[arrival(1, "a"), arrival(2, "a")]).await;
    assert_eq!(entered, [Entered::Repeat(State::Dead), Entered::New]);
    assert!(due(&inbox).await.is_empty());
}

/// Its queue waits for an operator, other queues continue.
pub async fn a_held_queue_waits_for_a_person(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    let entered = handle(h, &inbox, &[arrival(1, "a"), arrival(2, "a"), arrival(3, "b")]).await;
    assert_eq!(entered, [Entered::Repeat(State::Dead), Entered::Behind, Entered::New]);
    assert!(due(&inbox).await.is_empty());
    let shown = ok(h.operator().await.consumer(BILLING, 10).await).expect("a consumer");
    assert_eq!(shown.queues.len(), 1);
    assert_eq!((&*shown.queues[0].queue, shown.queues[0].length), ("a", 1));
    assert_eq!(shown.queues[0].next_attempt_at, None);
}

/// The first message of a retry queue is dead-lettered.
pub async fn a_waiting_message_is_given_up_and_its_queue_goes_on(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 4)).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    let claimed = due_one(&inbox).await;
    let kept = inbox.set_back_due(&claimed, claimed.messages[0].number, &setback(Stop::DeadContinue, 5)).await;
    assert_eq!(ok(kept), Kept::Kept);
    assert_eq!((letters(h).await.len(), letters(h).await[0].attempts), (1, 5));
    // The claim stays valid: the next message may be handled, or fail with its own count of attempts.
    work_on(h, &inbox, &claimed, 1).await;
    ok(inbox.release(&claimed).await);
    let entered = handle(h, &inbox, &[arrival(1, "a"), arrival(2, "a"), arrival(3, "a")]).await;
    assert_eq!(entered, [Entered::Repeat(State::Dead), Entered::Repeat(State::Done), Entered::New]);
}

/// After the first message was dead-lettered, attempts and starts of the next one begin at zero.
pub async fn what_follows_a_dead_message_counts_from_zero(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 4)).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    let claimed = due_one(&inbox).await;
    ok(inbox.set_back_due(&claimed, claimed.messages[0].number, &setback(Stop::DeadContinue, 5)).await);
    ok(inbox.release(&claimed).await);
    let claimed = due_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].attempts, claimed.messages[0].started), (vec![2], 0, 1));
}

/// The same with `hold`: the claim ends, and no message of the queue is handled.
pub async fn a_waiting_message_is_given_up_and_its_queue_waits(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 4)).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    let claimed = due_one(&inbox).await;
    let kept = inbox.set_back_due(&claimed, claimed.messages[0].number, &setback(Stop::DeadHold, 5)).await;
    assert_eq!(ok(kept), Kept::Kept);
    lost(inbox.begin_due(&claimed, claimed.messages[1].number).await);
    ok(inbox.release(&claimed).await);
    assert!(due(&inbox).await.is_empty(), "a release of a claim that ended frees nothing");
    assert_eq!(handle(h, &inbox, &[arrival(3, "a")]).await, [Entered::Behind]);
}

/// Archiving releases the queue that waited for it. Its inbox row stays, so that a redelivery is a duplicate.
pub async fn an_archived_letter_frees_its_queue(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.archive(&mark(of(&[1]))).await), 1);
    assert_eq!(ok(operator.archive(&mark(of(&[1]))).await), 0);
    assert_eq!(ok(operator.redrive(&mark(of(&[1]))).await), 0, "it is not pending any more");
    let letter = letters(h).await.remove(0);
    assert_eq!(letter.fate, Fate::Archived);
    assert!(letter.note.is_some_and(|note| note.contains("mended")));
    let claimed = due_one(&inbox).await;
    assert_eq!(numbers(&claimed), [2]);
    work(h, &inbox, &claimed).await;
    let entered = handle(h, &inbox, &[arrival(1, "a"), arrival(3, "a")]).await;
    assert_eq!(entered, [Entered::Repeat(State::Dead), Entered::New]);
    assert_eq!(h.effects().await, lines(&[2, 3]));
}

/// Without successors the key takes the live path again.
pub async fn an_archived_letter_without_successors_frees_its_queue(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    assert_eq!(ok(h.operator().await.archive(&mark(of(&[1]))).await), 1);
    assert!(due(&inbox).await.is_empty());
    assert_eq!(handle(h, &inbox, &[arrival(2, "a")]).await, [Entered::New]);
}

/// A queue waits for the dead letter that holds it, not for any other of its key.
pub async fn another_letter_does_not_free_a_held_queue(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadContinue).await;
    bury(&inbox, &arrival(2, "a"), Stop::DeadHold).await;
    handle(h, &inbox, &[arrival(3, "a")]).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.archive(&mark(of(&[1]))).await), 1);
    assert!(due(&inbox).await.is_empty(), "it waits for the second");
    assert_eq!(ok(operator.archive(&mark(of(&[2]))).await), 1);
    assert_eq!(numbers(&due_one(&inbox).await), [3]);
}

/// A queue held by two dead letters waits for both.
pub async fn a_queue_held_by_two_letters_waits_for_both(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    bury(&inbox, &arrival(1, "a"), Stop::DeadHold).await;
    bury(&inbox, &arrival(2, "a"), Stop::DeadHold).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.archive(&mark(of(&[1]))).await), 1);
    assert_eq!(handle(h, &inbox, &[arrival(3, "a")]).await, [Entered::Behind], "it waits for the second");
    assert!(due(&inbox).await.is_empty());
    assert_eq!(ok(operator.archive(&mark(of(&[2]))).await), 1);
    assert_eq!(numbers(&due_one(&inbox).await), [3]);
}

/// An operator can check the effect before acting.
pub async fn a_dry_run_only_counts(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2, 3] {
        bury(&inbox, &arrival(number, &number.to_string()), Stop::DeadHold).await;
    }
    let before = letters(h).await;
    let operator = h.operator().await;
    let dry = Mark { dry_run: true, ..mark(of(&[1, 2])) };
    assert_eq!((ok(operator.redrive(&dry).await), ok(operator.archive(&dry).await)), (2, 2));
    assert_eq!(letters(h).await, before);
    assert!(due(&inbox).await.is_empty());
}

/// Every field that is set must match.
pub async fn letters_are_found_by_what_is_known_of_them(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    let other = Setback { class: "undecodable", ..setback(Stop::DeadContinue, 1) };
    bury(&billing, &arrival(1, "a"), Stop::DeadContinue).await;
    h.pass(Duration::from_secs(1)).await;
    keep(&billing, &arrival(2, "b"), &other).await;
    bury(&shipping, &arrival(1, "a"), Stop::DeadContinue).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.archive(&mark(of(&[2]))).await), 1);
    let found = async |filter: DeadFilter, limit: usize| {
        let letters = ok(operator.dead(&filter, limit).await);
        letters.into_iter().map(|letter| (letter.consumer, letter.arrival.entry.id)).collect::<Vec<_>>()
    };
    let names = |names: &[(&str, u64)]| {
        names.iter().map(|(consumer, number)| ((*consumer).to_owned(), id(*number))).collect::<Vec<_>>()
    };
    let any = DeadFilter::default;
    let all = ok(operator.dead(&any(), 10).await);
    assert!(all.is_sorted_by_key(|letter| letter.dead_at), "the oldest first");
    assert_eq!(all.len(), 3);
    let of_billing = DeadFilter { consumer: Some(BILLING.to_owned()), ..any() };
    assert_eq!(found(of_billing.clone(), 10).await, names(&[(BILLING, 1), (BILLING, 2)]));
    assert_eq!(found(of_billing.clone(), 1).await, names(&[(BILLING, 1)]));
    assert_eq!(found(DeadFilter { ids: vec![id(1)], ..of_billing.clone() }, 10).await, names(&[(BILLING, 1)]));
    assert_eq!(found(DeadFilter { queue: Some("b".to_owned()), ..any() }, 10).await, names(&[(BILLING, 2)]));
    let undecodable = DeadFilter { class: Some("undecodable".to_owned()), ..any() };
    assert_eq!(found(undecodable, 10).await, names(&[(BILLING, 2)]));
    assert_eq!(found(DeadFilter { fate: Some(Fate::Archived), ..any() }, 10).await, names(&[(BILLING, 2)]));
    assert_eq!(found(DeadFilter { fate: Some(Fate::Pending), ..of_billing.clone() }, 10).await, names(&[(BILLING, 1)]));
    let second = all.iter().find(|letter| letter.arrival.entry.id == id(2)).expect("it is there").dead_at;
    let since = DeadFilter { since: Some(second), ..of_billing.clone() };
    assert_eq!(found(since, 10).await, names(&[(BILLING, 2)]));
    assert_eq!(found(DeadFilter { until: Some(second), ..of_billing }, 10).await, names(&[(BILLING, 1)]));
    let neither = DeadFilter { queue: Some("a".to_owned()), class: Some("undecodable".to_owned()), ..any() };
    assert_eq!(found(neither, 10).await, []);
}
