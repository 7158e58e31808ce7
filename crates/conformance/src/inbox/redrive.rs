//! Redrive: a dead letter is handled once more, in its position, however often operators request it.

use std::pin::pin;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterContent, DeadLetterFilter, DeadLetterOwner, DeadLetterState, MarkRequest,
};
use relevo_core::inbox::admin::ConsumerAdmin as _;
use relevo_core::inbox::retries::{InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, EnterOutcome};
use relevo_core::inbox::{Fence, InboxMessage, InboxState};

use super::harness::Harness;
use super::harness::ports::*;
use super::steps::{
    BILLING, LONG, SHORT, begin, claim_due, claim_one, dead_letter, fail, failure, handle, handle_queue, id,
    ids_filter, in_queue, inbox_message, lines, mark, must, must_commit, numbers, queued, retry,
};
use crate::dead_letters::DeadLetterCalls as _;

/// How long to poll a call to check that it waits.
const BLOCKED_CHECK: Duration = Duration::from_millis(30);

fn match_all() -> DeadLetterFilter {
    DeadLetterFilter::of(DeadLetterOwner::AnyConsumer)
}

async fn dead_letter_of(h: &impl Harness, number: u64) -> DeadLetter {
    must(h.operator().await.one(&ids_filter(&[number])).await)
}

/// It goes before the messages that waited for it, is due immediately, and counts its own attempts.
pub async fn a_redriven_message_goes_before_its_successors(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    assert_eq!(must(h.operator().await.redrive(&mark(match_all())).await), 1);
    assert_eq!(dead_letter_of(h, 1).await.summary.state, DeadLetterState::Redriven);
    let claimed = claim_one(&inbox).await;
    let head = &claimed.messages[0];
    assert_eq!((numbers(&claimed), head.message.attempts, head.unfinished_starts), (vec![1, 2], 0, 1));
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(handle(h, &inbox, &[inbox_message(3, "a")]).await, [EnterOutcome::New]);
    assert_eq!(h.effects().await, lines(&[1, 2, 3]));
}

/// The broker redelivers a redriven message before and after it is handled: both are duplicates.
pub async fn a_duplicate_of_a_redriven_message_is_recognised(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    // Its own queue, as for a consumer without order: only the inbox row identifies it.
    let message = [inbox_message(1, "1")];
    dead_letter(&inbox, &message[0], InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    must(h.operator().await.redrive(&mark(match_all())).await);
    assert_eq!(handle(h, &other, &message).await, [EnterOutcome::Duplicate(InboxState::Redriven)]);
    let recorded = other
        .record_failure(
            &message[0],
            Fence::Live { lane: None },
            &failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 1),
        )
        .await;
    assert_eq!(must(recorded), RecordOutcome::Duplicate(InboxState::Redriven));
    let claimed = claim_one(&inbox).await;
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(handle(h, &other, &message).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// As after a double click.
pub async fn a_second_redrive_changes_nothing(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    let operator = h.operator().await;
    assert_eq!(must(operator.redrive(&mark(match_all())).await), 1);
    assert_eq!(must(operator.redrive(&mark(match_all())).await), 0);
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1]);
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(must(operator.redrive(&mark(match_all())).await), 0);
    assert_eq!(must(operator.discard(&mark(match_all())).await), 0);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Two operators redrive at the same time.
pub async fn concurrent_redrives_reopen_once(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in 0..10 {
        dead_letter(
            &inbox,
            &inbox_message(number, &(number % 3).to_string()),
            InboxFailureAction::DeadLetter(AfterDead::Continue),
        )
        .await;
    }
    let (ana, bo) = (h.operator().await, h.operator().await);
    let all = mark(match_all());
    let (one, other) = tokio::join!(ana.redrive(&all), bo.redrive(&all));
    assert_eq!(must(one) + must(other), 10);
    let claimed = claim_due(&inbox).await;
    let queues: Vec<Vec<u64>> = claimed.iter().map(numbers).collect();
    assert_eq!(claimed.len(), 3);
    assert!([vec![0, 3, 6, 9], vec![1, 4, 7], vec![2, 5, 8]].iter().all(|queue| queues.contains(queue)), "{queues:?}");
}

/// A redrive and an archive at the same time: only one succeeds.
pub async fn a_dead_letter_is_redriven_or_discarded(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    let (ana, bo) = (h.operator().await, h.operator().await);
    let all = mark(match_all());
    let (redriven, discarded) = tokio::join!(ana.redrive(&all), bo.discard(&all));
    let (redriven, discarded) = (must(redriven), must(discarded));
    assert_eq!(redriven + discarded, 1);
    assert_eq!(claim_due(&inbox).await.len() as u64, redriven);
}

/// Messages of a queue keep the order of arrival, even if the first one was dead-lettered last.
pub async fn several_redriven_messages_keep_their_order(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2, 3] {
        dead_letter(&inbox, &inbox_message(number, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
        h.advance_time(Duration::from_millis(10)).await;
    }
    let operator = h.operator().await;
    must(operator.redrive(&mark(ids_filter(&[1]))).await);
    let claimed = claim_one(&inbox).await;
    must(
        inbox
            .record_failure(
                &claimed.messages[0].message,
                in_queue(&claimed, 0),
                &failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 9),
            )
            .await,
    );
    must(inbox.release_queue(&claimed.claim).await);
    fail(&inbox, &inbox_message(4, "a"), &retry(LONG, 1)).await;
    assert_eq!(must(operator.redrive(&mark(match_all())).await), 3);
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1, 2, 3]);
    handle_queue(h, &inbox, &claimed).await;
    h.advance_time(LONG).await;
    let claimed = claim_one(&inbox).await;
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2, 3, 4]));
}

/// A message that waits for its retry goes behind and keeps its own pause. The redriven message does not wait for that
/// pause.
pub async fn a_redriven_message_goes_before_retried_messages(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    fail(&inbox, &inbox_message(2, "a"), &retry(LONG, 6)).await;
    assert!(claim_due(&inbox).await.is_empty());
    must(h.operator().await.redrive(&mark(match_all())).await);
    let claimed = claim_one(&inbox).await;
    let head = &claimed.messages[0];
    assert_eq!((numbers(&claimed), head.message.attempts), (vec![1], 0));
    handle_queue(h, &inbox, &claimed).await;
    assert!(claim_due(&inbox).await.is_empty(), "its own pause counts");
    h.advance_time(LONG).await;
    let claimed = claim_one(&inbox).await;
    let head = &claimed.messages[0];
    assert_eq!((numbers(&claimed), head.message.attempts), (vec![2], 6));
}

/// A worker has claimed the queue while a message is put before it: the claimed message is not handled out of order.
pub async fn a_message_redriven_before_a_claimed_queue_is_not_overtaken(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    fail(&inbox, &inbox_message(2, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = must(inbox.claim_due(1, 10, SHORT).await).remove(0);
    assert_eq!(numbers(&claimed), [2]);
    must(h.operator().await.redrive(&mark(match_all())).await);
    let outcome = must(inbox.begin(queued(&claimed, 0), in_queue(&claimed, 0)).await);
    assert!(!matches!(outcome, BeginOutcome::Open(..)), "another message is before it now");
    let recorded = inbox.record_failure(&claimed.messages[0].message, in_queue(&claimed, 0), &retry(LONG, 2)).await;
    assert_eq!(
        must(recorded),
        RecordOutcome::Fenced,
        "a failure of the claimed message does not delay the redriven one"
    );
    h.advance_time(SHORT).await;
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// The worker of the queue may be making an external call for its first message. No other worker may do so until the
/// queue is released or the claim expires.
pub async fn a_redrive_does_not_take_a_claimed_queue(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    fail(&inbox, &inbox_message(2, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = claim_one(&inbox).await;
    must(h.operator().await.redrive(&mark(match_all())).await);
    assert!(claim_due(&other).await.is_empty(), "a worker has it");
    must(inbox.release_queue(&claimed.claim).await);
    let claimed = claim_one(&other).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    handle_queue(h, &other, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A queue held by another dead letter stays held: its successors must not overtake that message.
pub async fn a_redrive_does_not_free_a_queue_blocked_by_another_dead_letter(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    dead_letter(&inbox, &inbox_message(2, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    handle(h, &inbox, &[inbox_message(3, "a")]).await;
    let operator = h.operator().await;
    must(operator.redrive(&mark(ids_filter(&[1]))).await);
    for claimed in claim_due(&inbox).await {
        assert_eq!(numbers(&claimed), [1], "no successor passes the second");
    }
    must(operator.redrive(&mark(ids_filter(&[2]))).await);
    h.advance_time(SHORT).await;
    assert_eq!(handle(h, &inbox, &[inbox_message(4, "a")]).await, [EnterOutcome::QueuedBehind]);
}

/// It reopens the same dead letter, which counts the redrives.
pub async fn a_redriven_message_that_fails_again_reopens_its_dead_letter(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    let first = dead_letter_of(h, 1).await;
    let operator = h.operator().await;
    for redriven in 1..=2 {
        assert_eq!(must(operator.redrive(&mark(match_all())).await), 1);
        let claimed = claim_one(&inbox).await;
        let recorded = inbox
            .record_failure(
                &claimed.messages[0].message,
                in_queue(&claimed, 0),
                &failure(InboxFailureAction::DeadLetter(AfterDead::Hold), 7),
            )
            .await;
        assert_eq!(must(recorded), RecordOutcome::Recorded);
        let reopened = must(operator.one(&match_all()).await);
        let summary = &reopened.summary;
        assert_eq!((summary.state, summary.redrives, summary.attempts), (DeadLetterState::Dead, redriven, 7));
        assert_eq!(summary.entered_at, first.summary.entered_at);
        let message = InboxMessage { attempts: 7, ..inbox_message(1, "a") };
        assert_eq!(reopened.content, DeadLetterContent::Inbox { message, backtrace: None });
        assert_eq!(handle(h, &inbox, &[inbox_message(1, "a")]).await, [EnterOutcome::Duplicate(InboxState::Dead)]);
    }
}

/// A redriven message that fails again waits with its own attempts.
pub async fn a_redriven_message_that_fails_is_retried(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    must(h.operator().await.redrive(&mark(match_all())).await);
    let claimed = claim_one(&inbox).await;
    let recorded =
        inbox.record_failure(&claimed.messages[0].message, in_queue(&claimed, 0), &retry(Duration::ZERO, 1)).await;
    assert_eq!(must(recorded), RecordOutcome::Recorded);
    let claimed = claim_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].message.attempts), (vec![1], 1));
}

/// A redriven message that waits for its retry is not overtaken by one that was dead-lettered after it.
pub async fn a_redriven_message_that_waits_keeps_its_order(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2] {
        dead_letter(&inbox, &inbox_message(number, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    }
    let operator = h.operator().await;
    must(operator.redrive(&mark(ids_filter(&[1]))).await);
    let claimed = claim_one(&inbox).await;
    must(inbox.record_failure(&claimed.messages[0].message, in_queue(&claimed, 0), &retry(SHORT, 1)).await);
    must(operator.redrive(&mark(ids_filter(&[2]))).await);
    assert!(claim_due(&inbox).await.is_empty(), "the first one's pause counts");
    h.advance_time(SHORT).await;
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// Dead letters outside the filter stay unchanged.
pub async fn a_redrive_affects_only_matching_dead_letters(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    for inbox in [&billing, &shipping] {
        for number in [1, 2] {
            dead_letter(
                inbox,
                &inbox_message(number, &number.to_string()),
                InboxFailureAction::DeadLetter(AfterDead::Continue),
            )
            .await;
        }
    }
    let one = DeadLetterFilter { owner: DeadLetterOwner::Consumer(BILLING.to_owned()), ..ids_filter(&[2]) };
    assert_eq!(must(h.operator().await.redrive(&mark(one)).await), 1);
    assert_eq!(numbers(&claim_one(&billing).await), [2]);
    assert!(claim_due(&shipping).await.is_empty());
}

/// The rate limits messages per second; the first is due immediately.
pub async fn a_rate_spreads_redriven_messages(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in 0..4 {
        dead_letter(
            &inbox,
            &inbox_message(number, &number.to_string()),
            InboxFailureAction::DeadLetter(AfterDead::Continue),
        )
        .await;
        h.advance_time(Duration::from_millis(10)).await;
    }
    let operator = h.operator().await;
    assert_eq!(must(operator.redrive(&MarkRequest { rate_per_second: Some(2), ..mark(match_all()) }).await), 4);
    let queues = must(operator.get_consumer(BILLING, 10).await).expect("a consumer").queues;
    let order: Vec<&str> = queues.iter().map(|queue| &*queue.queue).collect();
    assert_eq!(order, ["0", "1", "2", "3"]);
    let times: Vec<_> = queues.iter().filter_map(|queue| queue.next_attempt_at).collect();
    let pauses: Vec<i64> = times.windows(2).map(|pair| pair[1].as_microsecond() - pair[0].as_microsecond()).collect();
    assert_eq!(pauses, [500_000; 3]);
}

/// The rate also applies to messages of one key: they do not run as fast as the worker can.
pub async fn a_rate_spreads_redriven_messages_of_one_key(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in 0..30 {
        dead_letter(&inbox, &inbox_message(number, "a"), InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    }
    let operator = h.operator().await;
    assert_eq!(must(operator.redrive(&MarkRequest { rate_per_second: Some(1), ..mark(match_all()) }).await), 30);
    assert_eq!(handle(h, &inbox, &[inbox_message(30, "a")]).await, [EnterOutcome::QueuedBehind]);
    // The first is due now, and one more for every second that the case takes.
    let mut claimed = vec![claim_one(&inbox).await];
    while let Some(due_now) = claimed.pop() {
        handle_queue(h, &inbox, &due_now).await;
        claimed = claim_due(&inbox).await;
    }
    let handled = h.effects().await.len() as u64;
    assert!((1..30).contains(&handled), "{handled} were handled");
    let queues = must(operator.get_consumer(BILLING, 10).await).expect("a consumer").queues;
    assert_eq!((queues[0].head.id, queues[0].length), (id(handled), 31 - handled));
    h.advance_time(Duration::from_secs(30)).await;
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), (handled..31).collect::<Vec<_>>());
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&(0..31).collect::<Vec<_>>()));
}

/// The first dead letter is due now, whichever one held the key last.
pub async fn a_rate_begins_with_the_first_of_several_messages_of_a_key(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    for number in [1, 2] {
        dead_letter(&inbox, &inbox_message(number, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    }
    handle(h, &inbox, &[inbox_message(3, "a")]).await;
    // Dead letters of other keys are between them.
    for number in 10..90 {
        dead_letter(
            &inbox,
            &inbox_message(number, &number.to_string()),
            InboxFailureAction::DeadLetter(AfterDead::Continue),
        )
        .await;
    }
    dead_letter(&inbox, &inbox_message(4, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    let slow = MarkRequest { rate_per_second: Some(1), ..mark(match_all()) };
    assert_eq!(must(h.operator().await.redrive(&slow).await), 83);
    let claimed = claim_due(&inbox).await;
    let queue_a = claimed.iter().find(|claimed| &*claimed.claim.queue == "a").expect("its first dead letter is due");
    assert_eq!(numbers(queue_a)[0], 1);
}

/// One message is appended in an open transaction while another is put in front: both are kept.
pub async fn a_redrive_during_an_open_append_loses_nothing(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    dead_letter(&inbox, &inbox_message(1, "a"), InboxFailureAction::DeadLetter(AfterDead::Hold)).await;
    let (transaction, entered) = begin(&inbox, &[inbox_message(2, "a")]).await;
    assert_eq!(entered, [EnterOutcome::QueuedBehind]);
    let operator = h.operator().await;
    let all = mark(match_all());
    let mut redrive = pin!(operator.redrive(&all));
    let early = tokio::time::timeout(BLOCKED_CHECK, &mut redrive).await;
    must_commit(inbox.commit(transaction, &[]).await);
    let redriven = match early {
        Ok(result) => result.unwrap_or(0),
        Err(_) => must(redrive.await),
    };
    // A redrive that timed out changed nothing and is repeated.
    assert_eq!(redriven + must(operator.redrive(&all).await), 1);
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1, 2]);
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2]));
}
