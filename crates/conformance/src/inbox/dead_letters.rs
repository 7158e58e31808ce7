//! Dead letters: all received data is retained, and an operator decides.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::AfterDead;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterAdmin as _, DeadLetterContent, DeadLetterFilter, DeadLetterState, MarkRequest,
};
use relevo_core::inbox::admin::ConsumerAdmin as _;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::EnterOutcome;
use relevo_core::inbox::{InboxMessage, InboxState};

use super::harness::Harness;
use super::harness::ports::*;
use super::steps::{
    BILLING, all_dead_letters, assert_fenced, claim_due, claim_one, dead_letter, fail, failure, handle, handle_at,
    handle_queue, id, ids_filter, in_queue, inbox_message, lines, mark, must, numbers, queued, retry,
};
use crate::dead_letters::DeadLetterCalls as _;

/// Binary and repeated headers, a payload that is neither text nor JSON, and offsets and texts at their limits.
fn unusual_message(number: u64) -> InboxMessage {
    let headers = [("x-raw", &b"\xff\x00\xfe"[..]), ("x-twice", b"2"), ("X-Twice", b""), ("x-twice", b"1")];
    InboxMessage {
        raw: RawMessage {
            headers: headers.map(|(name, value)| (name.to_owned(), Bytes::from_static(value))).into(),
            payload: Bytes::from_static(b"\x00\xff{ not json \xc3\x28"),
        },
        address: "órdenes.España".into(),
        lane: Lane::new("lane 'ü' \\ 1"),
        offset: Some(i64::MAX.unsigned_abs()),
        ..inbox_message(number, "a 'key' \\ with ☃")
    }
}

fn attempted(attempts: u32, message: InboxMessage) -> InboxMessage {
    InboxMessage { attempts, ..message }
}

async fn dead_letters(h: &impl Harness) -> Vec<DeadLetter> {
    must(h.operator().await.get_dead_letters(&all_dead_letters(), 100).await)
}

fn content(message: InboxMessage, backtrace: Option<String>) -> DeadLetterContent {
    DeadLetterContent::Inbox { message, backtrace }
}

/// The received message, byte for byte, and why it was dead-lettered.
pub async fn a_dead_letter_keeps_every_field(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let empty = InboxMessage { raw: RawMessage::default(), offset: None, ..inbox_message(2, "b") };
    let panicked = InboxFailure {
        action: InboxFailureAction::DeadLetter(AfterDead::Continue),
        attempts: 5,
        class: "panic",
        error: "index out of bounds".to_owned(),
        backtrace: Some("0: handle\n1: main".to_owned()),
    };
    fail(&inbox, &unusual_message(1), &panicked).await;
    fail(&inbox, &empty, &failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 0)).await;
    let operator = h.operator().await;
    let letter = must(operator.one(&ids_filter(&[1])).await);
    assert_eq!(letter.content, content(attempted(5, unusual_message(1)), panicked.backtrace));
    let row = letter.summary;
    assert_eq!((row.owner.as_str(), row.key.as_str(), row.replay), (BILLING, "a 'key' \\ with ☃", 0));
    assert_eq!((row.class.as_str(), row.error.as_str(), row.attempts), ("panic", "index out of bounds", 5));
    assert_eq!((row.state, row.redrives, row.mark), (DeadLetterState::Dead, 0, None));
    assert_eq!((row.topic, row.kind, row.route), (None, None, None), "its headers are not ours");
    assert!(row.entered_at <= row.dead_at);
    assert_eq!(must(operator.one(&ids_filter(&[2])).await).content, content(empty, None));
}

/// The bytes stay the same through the retry table and back to a handler.
pub async fn bytes_survive_a_retry_queue_and_a_redrive(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &unusual_message(1), &retry(Duration::ZERO, 1)).await;
    assert_eq!(handle(h, &inbox, &[unusual_message(2)]).await, [EnterOutcome::QueuedBehind]);
    let claimed = claim_one(&inbox).await;
    let messages: Vec<&InboxMessage> = claimed.messages.iter().map(|waiting| &waiting.message).collect();
    assert_eq!(messages, [&attempted(1, unusual_message(1)), &unusual_message(2)]);
    let kept = inbox
        .record_failure(
            &claimed.messages[0].message,
            in_queue(&claimed, 0),
            &failure(InboxFailureAction::DeadLetter(AfterDead::Hold), 2),
        )
        .await;
    assert_eq!(must(kept), RecordOutcome::Recorded);
    assert_eq!(dead_letters(h).await[0].content, content(attempted(2, unusual_message(1)), None));
    must(h.operator().await.redrive(&mark(ids_filter(&[1]))).await);
    let claimed = claim_one(&inbox).await;
    assert_eq!(claimed.messages[0].message, unusual_message(1));
}

/// Its queue continues, and a redelivery of it is a duplicate.
pub async fn a_queue_that_continues_is_not_blocked(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    let entered = handle(h, &inbox, &[inbox_message(1, "a"), inbox_message(2, "a")]).await;
    assert_eq!(entered, [EnterOutcome::Duplicate(InboxState::Dead), EnterOutcome::New]);
    assert!(claim_due(&inbox).await.is_empty());
}

/// Its queue waits for an operator, other queues continue.
pub async fn a_blocked_queue_waits_for_an_operator(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    let entered = handle(h, &inbox, &[inbox_message(1, "a"), inbox_message(2, "a"), inbox_message(3, "b")]).await;
    assert_eq!(entered, [EnterOutcome::Duplicate(InboxState::Dead), EnterOutcome::QueuedBehind, EnterOutcome::New]);
    assert!(claim_due(&inbox).await.is_empty());
    let shown = must(h.operator().await.get_consumer(BILLING, 10).await).expect("a consumer");
    assert_eq!(shown.queues.len(), 1);
    assert_eq!((&*shown.queues[0].queue, shown.queues[0].length), ("a", 1));
    assert_eq!(shown.queues[0].next_attempt_at, None);
}

/// The first message of a retry queue is dead-lettered.
pub async fn a_queued_message_is_dead_lettered_and_its_queue_continues(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 4)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    let claimed = claim_one(&inbox).await;
    let kept = inbox
        .record_failure(
            &claimed.messages[0].message,
            in_queue(&claimed, 0),
            &failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 5),
        )
        .await;
    assert_eq!(must(kept), RecordOutcome::Recorded);
    assert_eq!((dead_letters(h).await.len(), dead_letters(h).await[0].summary.attempts), (1, 5));
    // The claim stays valid: the next message may be handled, or fail with its own count of attempts.
    handle_at(h, &inbox, &claimed, 1).await;
    must(inbox.release_queue(&claimed.claim).await);
    let entered = handle(h, &inbox, &[inbox_message(1, "a"), inbox_message(2, "a"), inbox_message(3, "a")]).await;
    assert_eq!(
        entered,
        [EnterOutcome::Duplicate(InboxState::Dead), EnterOutcome::Duplicate(InboxState::Done), EnterOutcome::New]
    );
}

/// After the first message was dead-lettered, attempts and starts of the next one begin at zero.
pub async fn the_successor_of_a_dead_message_starts_with_no_attempts(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 4)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    let claimed = claim_one(&inbox).await;
    must(
        inbox
            .record_failure(
                &claimed.messages[0].message,
                in_queue(&claimed, 0),
                &failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 5),
            )
            .await,
    );
    must(inbox.release_queue(&claimed.claim).await);
    let claimed = claim_one(&inbox).await;
    assert_eq!(
        (numbers(&claimed), claimed.messages[0].message.attempts, claimed.messages[0].unfinished_starts),
        (vec![2], 0, 1)
    );
}

/// The same with `hold`: the claim ends, and no message of the queue is handled.
pub async fn a_queued_message_is_dead_lettered_and_its_queue_is_blocked(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 4)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    let claimed = claim_one(&inbox).await;
    let kept = inbox
        .record_failure(
            &claimed.messages[0].message,
            in_queue(&claimed, 0),
            &failure(InboxFailureAction::DeadLetter(AfterDead::Hold), 5),
        )
        .await;
    assert_eq!(must(kept), RecordOutcome::Recorded);
    assert_fenced(inbox.begin(queued(&claimed, 1), in_queue(&claimed, 1)).await);
    must(inbox.release_queue(&claimed.claim).await);
    assert!(claim_due(&inbox).await.is_empty(), "releasing an ended claim frees nothing");
    assert_eq!(handle(h, &inbox, &[inbox_message(3, "a")]).await, [EnterOutcome::QueuedBehind]);
}

/// Archiving releases the queue that waited for it. Its inbox row stays, so that a redelivery is a duplicate.
pub async fn a_discarded_dead_letter_frees_its_queue(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    let operator = h.operator().await;
    assert_eq!(must(operator.discard(&mark(ids_filter(&[1]))).await), 1);
    assert_eq!(must(operator.discard(&mark(ids_filter(&[1]))).await), 0);
    assert_eq!(must(operator.redrive(&mark(ids_filter(&[1]))).await), 0, "it is no longer pending");
    let row = dead_letters(h).await.remove(0).summary;
    assert_eq!(row.state, DeadLetterState::Discarded);
    let by = row.mark.expect("it was marked");
    assert_eq!((&*by.by, &*by.reason), ("ana", "fixed"));
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [2]);
    handle_queue(h, &inbox, &claimed).await;
    let entered = handle(h, &inbox, &[inbox_message(1, "a"), inbox_message(3, "a")]).await;
    assert_eq!(entered, [EnterOutcome::Duplicate(InboxState::Dead), EnterOutcome::New]);
    assert_eq!(h.effects().await, lines(&[2, 3]));
}

/// Without successors the queue is empty, and the next message is handled directly.
pub async fn a_discarded_dead_letter_without_successors_frees_its_queue(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    assert_eq!(must(h.operator().await.discard(&mark(ids_filter(&[1]))).await), 1);
    assert!(claim_due(&inbox).await.is_empty());
    assert_eq!(handle(h, &inbox, &[inbox_message(2, "a")]).await, [EnterOutcome::New]);
}

/// A queue waits for the dead letter that holds it, not for any other of its key.
pub async fn a_blocked_queue_is_not_freed_by_another_dead_letter(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    dead_letter(&inbox, &inbox_message(2, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    handle(h, &inbox, &[inbox_message(3, "a")]).await;
    let operator = h.operator().await;
    assert_eq!(must(operator.discard(&mark(ids_filter(&[1]))).await), 1);
    assert!(claim_due(&inbox).await.is_empty(), "it waits for the second");
    assert_eq!(must(operator.discard(&mark(ids_filter(&[2]))).await), 1);
    assert_eq!(numbers(&claim_one(&inbox).await), [3]);
}

/// A queue held by two dead letters waits for both.
pub async fn a_queue_blocked_by_two_dead_letters_waits_for_both(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    dead_letter(&inbox, &inbox_message(2, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    let operator = h.operator().await;
    assert_eq!(must(operator.discard(&mark(ids_filter(&[1]))).await), 1);
    assert_eq!(
        handle(h, &inbox, &[inbox_message(3, "a")]).await,
        [EnterOutcome::QueuedBehind],
        "it waits for the second"
    );
    assert!(claim_due(&inbox).await.is_empty());
    assert_eq!(must(operator.discard(&mark(ids_filter(&[2]))).await), 1);
    assert_eq!(numbers(&claim_one(&inbox).await), [3]);
}

/// An operator can check the effect before acting.
pub async fn a_dry_run_only_counts(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2, 3] {
        dead_letter(
            &inbox,
            &inbox_message(number, &number.to_string()),
            InboxFailureAction::DeadLetter(AfterDead::Hold),
        )
        .await;
    }
    let before = dead_letters(h).await;
    let operator = h.operator().await;
    let dry = MarkRequest { dry_run: true, ..mark(ids_filter(&[1, 2])) };
    assert_eq!((must(operator.redrive(&dry).await), must(operator.discard(&dry).await)), (2, 2));
    assert_eq!(dead_letters(h).await, before);
    assert!(claim_due(&inbox).await.is_empty());
}

/// Every field that is set must match.
pub async fn dead_letters_are_found_by_every_filter(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    let other =
        InboxFailure { class: "undecodable", ..failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 1) };
    dead_letter(&billing, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    h.advance_time(Duration::from_secs(1)).await;
    fail(&billing, &inbox_message(2, "b"), &other).await;
    dead_letter(&shipping, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    let operator = h.operator().await;
    assert_eq!(must(operator.discard(&mark(ids_filter(&[2]))).await), 1);
    let list = async |filter: DeadLetterFilter, limit: usize| {
        let rows = must(operator.summaries(&filter, limit).await);
        rows.into_iter().map(|row| (row.owner, row.id)).collect::<Vec<_>>()
    };
    let names = |names: &[(&str, u64)]| {
        names.iter().map(|(consumer, number)| ((*consumer).to_owned(), id(*number))).collect::<Vec<_>>()
    };
    let any = all_dead_letters;
    let all = must(operator.summaries(&any(), 10).await);
    assert!(all.is_sorted_by_key(|row| row.dead_at), "the oldest first");
    assert_eq!(all.len(), 3);
    let of_billing = DeadLetterFilter::of_consumer(BILLING);
    assert_eq!(list(of_billing.clone(), 10).await, names(&[(BILLING, 1), (BILLING, 2)]));
    assert_eq!(list(of_billing.clone(), 1).await, names(&[(BILLING, 1)]));
    assert_eq!(list(DeadLetterFilter { ids: vec![id(1)], ..of_billing.clone() }, 10).await, names(&[(BILLING, 1)]));
    assert_eq!(list(DeadLetterFilter { key: Some("b".to_owned()), ..any() }, 10).await, names(&[(BILLING, 2)]));
    let undecodable = DeadLetterFilter { class: Some("undecodable".to_owned()), ..any() };
    assert_eq!(list(undecodable, 10).await, names(&[(BILLING, 2)]));
    assert_eq!(
        list(DeadLetterFilter { states: vec![DeadLetterState::Discarded], ..any() }, 10).await,
        names(&[(BILLING, 2)])
    );
    assert_eq!(
        list(DeadLetterFilter { states: vec![DeadLetterState::Dead], ..of_billing.clone() }, 10).await,
        names(&[(BILLING, 1)])
    );
    let refused = DeadLetterFilter { error: Some("REFUSED".to_owned()), ..any() };
    assert_eq!(list(refused, 10).await.len(), 3);
    assert_eq!(list(DeadLetterFilter { error: Some("%".to_owned()), ..any() }, 10).await, []);
    let pages = must(operator.pages(&any(), 2).await);
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(pages.concat(), all);
    assert!(operator.list_dead_letters(&any(), Some("?"), 1).await.is_err(), "no position of a list");
    assert!(operator.summaries(&DeadLetterFilter { route: Some("r".to_owned()), ..any() }, 1).await.is_err());
    let second = all.iter().find(|row| row.id == id(2)).expect("it is listed").dead_at;
    let since = DeadLetterFilter { since: Some(second), ..of_billing.clone() };
    assert_eq!(list(since, 10).await, names(&[(BILLING, 2)]));
    assert_eq!(list(DeadLetterFilter { until: Some(second), ..of_billing }, 10).await, names(&[(BILLING, 1)]));
    let neither = DeadLetterFilter { key: Some("a".to_owned()), class: Some("undecodable".to_owned()), ..any() };
    assert_eq!(list(neither, 10).await, []);
}
