//! The retry table: a waiting message keeps its position, and later messages of its queue stay behind it.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::admin::ConsumerAdmin as _;
use relevo_core::inbox::attempts::ClaimOutcome;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, EnterOutcome};
use relevo_core::inbox::{Fence, InboxMessage, InboxState};

use super::harness::Harness;
use super::harness::ports::*;
use super::steps::{
    BILLING, LONG, SHORT, all_dead_letters, begin, claim_due, claim_one, dead_letter, fail, failure, handle, handle_at,
    handle_queue, in_queue, inbox_message, lines, must, must_commit, must_open, numbers, queued, retry,
};
use crate::dead_letters::DeadLetterCalls as _;

/// It is not due before its pause is over, and keeps all its data.
pub async fn a_retried_message_is_due_after_its_delay(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = inbox_message(1, "a");
    fail(&inbox, &message, &retry(SHORT, 4)).await;
    assert!(claim_due(&inbox).await.is_empty());
    h.advance_time(SHORT).await;
    let claimed = claim_one(&inbox).await;
    let [waiting] = &claimed.messages[..] else { panic!("one message is due") };
    assert_eq!((&*claimed.claim.queue, waiting.unfinished_starts), ("a", 1));
    assert_eq!(waiting.message, InboxMessage { attempts: 4, ..message.clone() });
    assert_eq!(handle(h, &inbox, std::slice::from_ref(&message)).await, [EnterOutcome::Duplicate(InboxState::Waiting)]);
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(handle(h, &inbox, &[message]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A failure is not recorded for a message that has ended or already waits.
pub async fn a_finished_message_is_not_recorded_as_failed(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let [done, waiting, dead] = [1, 2, 3].map(|number| inbox_message(number, &number.to_string()));
    handle(h, &inbox, std::slice::from_ref(&done)).await;
    fail(&inbox, &waiting, &retry(Duration::ZERO, 1)).await;
    dead_letter(&inbox, &dead, InboxFailureAction::DeadLetter(AfterDead::Continue)).await;
    for action in [
        InboxFailureAction::Retry { after: Duration::ZERO },
        InboxFailureAction::DeadLetter(AfterDead::Hold),
        InboxFailureAction::DeadLetter(AfterDead::Continue),
    ] {
        let states = [(&done, InboxState::Done), (&waiting, InboxState::Waiting), (&dead, InboxState::Dead)];
        for (message, state) in states {
            let recorded = inbox.record_failure(message, Fence::Live { lane: None }, &failure(action, 9)).await;
            assert_eq!(must(recorded), RecordOutcome::Duplicate(state));
        }
    }
    assert_eq!(numbers(&claim_one(&inbox).await), [2]);
    assert_eq!(must(h.operator().await.summaries(&all_dead_letters(), 10).await).len(), 1);
}

/// A message whose start was counted can be queued for a retry.
pub async fn a_started_message_can_be_recorded_as_failed(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    must(inbox.record_start(&inbox_message(1, "a")).await);
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    assert_eq!(numbers(&claim_one(&inbox).await), [1]);
}

/// They wait in the order of arrival, whatever their ids are.
pub async fn later_messages_are_queued_behind_in_order(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(5, "a"), &retry(SHORT, 1)).await;
    let batch = [inbox_message(3, "a"), inbox_message(9, "b"), inbox_message(2, "a"), inbox_message(3, "a")];
    let entered = handle(h, &inbox, &batch).await;
    assert_eq!(entered[..3], [EnterOutcome::QueuedBehind, EnterOutcome::New, EnterOutcome::QueuedBehind]);
    assert!(matches!(entered[3], EnterOutcome::Duplicate(_)));
    assert_eq!(handle(h, &inbox, &[inbox_message(1, "a")]).await, [EnterOutcome::QueuedBehind]);
    assert_eq!(handle(h, &inbox, &[inbox_message(2, "a")]).await, [EnterOutcome::Duplicate(InboxState::Waiting)]);
    h.advance_time(SHORT).await;
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [5, 3, 2, 1]);
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(handle(h, &inbox, &[inbox_message(4, "a")]).await, [EnterOutcome::New], "directly again");
    assert_eq!(h.effects().await, lines(&[9, 5, 3, 2, 1, 4]));
}

/// The runtime counts attempts before it stores anything: a queued message keeps them, whichever call queues it.
pub async fn a_message_queued_behind_others_keeps_its_attempts(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let attempted = |number, attempts| InboxMessage { attempts, ..inbox_message(number, "a") };
    assert_eq!(handle(h, &inbox, &[attempted(2, 3)]).await, [EnterOutcome::QueuedBehind]);
    let claim = must(inbox.claim_call(&attempted(3, 2), None, LONG).await);
    assert_eq!(claim, ClaimOutcome::QueuedBehind);
    fail(&inbox, &attempted(4, 1), &failure(InboxFailureAction::Postpone { after: Duration::ZERO }, 1)).await;
    let claimed = claim_one(&inbox).await;
    let attempts: Vec<u32> = claimed.messages.iter().map(|queued| queued.message.attempts).collect();
    assert_eq!((numbers(&claimed), attempts), (vec![1, 2, 3, 4], vec![1, 3, 2, 1]));
}

/// A rolled-back transaction queues nothing.
pub async fn a_rolled_back_message_is_not_queued(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let (transaction, entered) = begin(&inbox, &[inbox_message(2, "a")]).await;
    assert_eq!(entered, [EnterOutcome::QueuedBehind]);
    must(inbox.rollback(transaction).await);
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1]);
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(handle(h, &inbox, &[inbox_message(2, "a")]).await, [EnterOutcome::New]);
}

/// A message that fails while its queue waits goes to the end, because the waiting messages came before it.
pub async fn a_failed_message_is_queued_behind_earlier_ones(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(SHORT, 5)).await;
    fail(&inbox, &inbox_message(2, "a"), &retry(Duration::ZERO, 1)).await;
    assert!(claim_due(&inbox).await.is_empty(), "the first one's pause counts");
    h.advance_time(SHORT).await;
    let claimed = claim_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].message.attempts), (vec![1, 2], 5));
}

/// Consumers share no queues.
pub async fn each_consumer_has_its_own_queues(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    fail(&billing, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    assert!(claim_due(&shipping).await.is_empty());
    assert_eq!(handle(h, &shipping, &[inbox_message(2, "a")]).await, [EnterOutcome::New]);
    assert_eq!(numbers(&claim_one(&billing).await), [1]);
}

/// At most the requested number of queues, the one that waited longest first.
pub async fn the_longest_waiting_queue_is_claimed_first(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let pauses = [("a", 200), ("b", 0), ("c", 100)];
    for (number, (queue, pause)) in (1..).zip(pauses) {
        fail(&inbox, &inbox_message(number, queue), &retry(Duration::from_secs(pause), 1)).await;
        handle(h, &inbox, &[inbox_message(number + 10, queue), inbox_message(number + 20, queue)]).await;
    }
    h.advance_time(Duration::from_secs(400)).await;
    let first = must(inbox.claim_due(2, 2, LONG).await);
    let queues: Vec<&str> = first.iter().map(|claimed| &*claimed.claim.queue).collect();
    assert_eq!(queues, ["b", "c"]);
    assert_eq!((numbers(&first[0]), numbers(&first[1])), (vec![2, 12], vec![3, 13]));
    let rest = must(inbox.claim_due(2, 10, LONG).await);
    assert_eq!((rest.len(), numbers(&rest[0])), (1, vec![1, 11, 21]));
}

/// Members that poll at the same time get different queues.
pub async fn two_members_claim_different_queues(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    for number in 0..12 {
        fail(&first, &inbox_message(number, &number.to_string()), &retry(Duration::ZERO, 1)).await;
    }
    let (one, other) = tokio::join!(first.claim_due(8, 1, LONG), second.claim_due(8, 1, LONG));
    let mut claimed = must(one);
    claimed.extend(must(other));
    claimed.extend(claim_due(&first).await);
    let mut queues: Vec<u64> = claimed.iter().flat_map(numbers).collect();
    queues.sort_unstable();
    assert_eq!(queues, (0..12).collect::<Vec<_>>(), "each is claimed once");
    let mut tokens: Vec<_> = claimed.iter().map(|claimed| claimed.claim.token).collect();
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 12, "each claim has its own token");
}

/// The first message stays first, with its count of attempts; no other message overtakes it.
pub async fn a_message_that_fails_again_stays_first(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    let claimed = claim_one(&inbox).await;
    let recorded = inbox.record_failure(&claimed.messages[0].message, in_queue(&claimed, 0), &retry(SHORT, 2)).await;
    assert_eq!(must(recorded), RecordOutcome::Recorded);
    assert!(claim_due(&inbox).await.is_empty());
    assert_eq!(handle(h, &inbox, &[inbox_message(3, "a")]).await, [EnterOutcome::QueuedBehind]);
    h.advance_time(SHORT).await;
    let claimed = claim_one(&inbox).await;
    assert_eq!(
        (numbers(&claimed), claimed.messages[0].message.attempts, claimed.messages[0].unfinished_starts),
        (vec![1, 2, 3], 2, 1)
    );
}

/// A message that may have crashed a process is postponed while others run. It keeps its count of starts and must run
/// alone the next time too.
pub async fn a_postponed_message_keeps_its_starts(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 3)).await;
    // A process claims it and crashes.
    assert_eq!(must(inbox.claim_due(1, 1, SHORT).await)[0].messages[0].unfinished_starts, 1);
    h.advance_time(SHORT).await;
    for _ in 0..2 {
        let claimed = claim_one(&inbox).await;
        assert_eq!((claimed.messages[0].message.attempts, claimed.messages[0].unfinished_starts), (3, 2));
        let put_off = InboxFailure {
            error: "others run".to_owned(),
            ..failure(InboxFailureAction::Postpone { after: SHORT }, 3)
        };
        assert_eq!(
            must(inbox.record_failure(&claimed.messages[0].message, in_queue(&claimed, 0), &put_off).await),
            RecordOutcome::Recorded
        );
        assert!(claim_due(&inbox).await.is_empty());
        let shown = must(h.operator().await.get_consumer(BILLING, 10).await).expect("a consumer");
        assert_eq!(shown.queues[0].error, retry(Duration::ZERO, 3).error, "the error of its last attempt");
        h.advance_time(SHORT).await;
    }
    let claimed = claim_one(&inbox).await;
    must(inbox.record_failure(&claimed.messages[0].message, in_queue(&claimed, 0), &retry(Duration::ZERO, 4)).await);
    assert_eq!(claim_one(&inbox).await.messages[0].unfinished_starts, 1, "a failed attempt is no crash");
}

/// The same for a live message with an external call.
pub async fn a_postponed_call_keeps_its_starts(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = inbox_message(1, "a");
    for started in 1..=2 {
        let ClaimOutcome::Claimed(claim) = must(inbox.claim_call(&message, None, SHORT).await) else {
            panic!("the message is free")
        };
        assert_eq!(claim.unfinished_starts, started);
        if started == 2 {
            let put_off = failure(InboxFailureAction::Postpone { after: Duration::ZERO }, 0);
            assert_eq!(
                must(inbox.record_failure(&message, Fence::Call { lane: None, claim }, &put_off).await),
                RecordOutcome::Recorded
            );
        }
        // The first time its process crashes.
        h.advance_time(SHORT).await;
    }
    let claimed = claim_one(&inbox).await;
    assert_eq!((claimed.messages[0].message.attempts, claimed.messages[0].unfinished_starts), (0, 2));
}

/// A live message deferred without an attempt waits for its own pause, and not only for its turn in the queue.
pub async fn a_deferred_live_message_is_not_tried_before_its_time(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    fail(&inbox, &inbox_message(2, "a"), &failure(InboxFailureAction::Postpone { after: SHORT }, 0)).await;
    let claimed = claim_one(&inbox).await;
    assert_eq!(numbers(&claimed), [1], "the claim ends before the deferred message");
    handle_queue(h, &inbox, &claimed).await;
    assert!(claim_due(&inbox).await.is_empty(), "the release keeps the pause of the deferred message");
    h.advance_time(SHORT).await;
    let claimed = claim_one(&inbox).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].message.attempts), (vec![2], 0));
}

/// Attempts and starts of a message do not count for the next one, even if the queue was not released.
pub async fn attempts_belong_to_the_first_message(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 7)).await;
    handle(h, &inbox, &[inbox_message(2, "a"), inbox_message(3, "a")]).await;
    let claimed = must(inbox.claim_due(1, 10, SHORT).await).remove(0);
    assert_eq!(claimed.messages[0].message.attempts, 7);
    handle_at(h, &inbox, &claimed, 0).await;
    h.advance_time(SHORT).await;
    let claimed = claim_one(&other).await;
    assert_eq!(
        (numbers(&claimed), claimed.messages[0].message.attempts, claimed.messages[0].unfinished_starts),
        (vec![2, 3], 0, 1)
    );
    handle_at(h, &other, &claimed, 0).await;
    must(other.release_queue(&claimed.claim).await);
    let claimed = claim_one(&inbox).await;
    assert_eq!(
        (numbers(&claimed), claimed.messages[0].message.attempts, claimed.messages[0].unfinished_starts),
        (vec![3], 0, 1)
    );
}

/// Under one claim, only the first remaining message can be handled, one after the other.
pub async fn a_queue_is_handled_from_its_front(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    let claimed = claim_one(&inbox).await;
    let second = inbox.begin(queued(&claimed, 1), in_queue(&claimed, 1)).await;
    assert!(!matches!(must(second), BeginOutcome::Open(..)), "another is before it");
    // After a rollback it is the first again.
    let (mut transaction, _) = must_open(inbox.begin(queued(&claimed, 0), in_queue(&claimed, 0)).await);
    h.effect(&mut transaction, "rolled back").await;
    must(inbox.rollback(transaction).await);
    handle_at(h, &inbox, &claimed, 0).await;
    let repeated = inbox.begin(queued(&claimed, 0), in_queue(&claimed, 0)).await;
    assert!(!matches!(must(repeated), BeginOutcome::Open(..)), "it is done");
    handle_at(h, &inbox, &claimed, 1).await;
    must(inbox.release_queue(&claimed.claim).await);
    assert_eq!(h.effects().await, lines(&[1, 2]));
}

/// A message from the retry table can be skipped like any other.
pub async fn a_queued_message_can_be_skipped(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = inbox_message(1, "a");
    fail(&inbox, &message, &retry(Duration::ZERO, 1)).await;
    let claimed = claim_one(&inbox).await;
    let (transaction, _) = must_open(inbox.begin(queued(&claimed, 0), in_queue(&claimed, 0)).await);
    must_commit(inbox.commit(transaction, &[message.dedup_id]).await);
    must(inbox.release_queue(&claimed.claim).await);
    assert_eq!(handle(h, &inbox, &[message]).await, [EnterOutcome::Duplicate(InboxState::Skipped)]);
}

/// Messages that a member did not handle are due for others immediately.
pub async fn a_released_queue_is_due_at_once(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 2)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    let claimed = claim_one(&inbox).await;
    assert!(claim_due(&other).await.is_empty());
    must(inbox.release_queue(&claimed.claim).await);
    must(inbox.release_queue(&claimed.claim).await);
    let claimed = claim_one(&other).await;
    assert_eq!((numbers(&claimed), claimed.messages[0].message.attempts), (vec![1, 2], 2));
}

/// A member emptied the queue and crashed: the next worker that claims it only has to release it.
pub async fn an_empty_unreleased_queue_is_released_by_the_next_claim(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let claimed = must(inbox.claim_due(1, 10, SHORT).await).remove(0);
    handle_at(h, &inbox, &claimed, 0).await;
    assert!(claim_due(&other).await.is_empty());
    h.advance_time(SHORT).await;
    let claimed = claim_one(&other).await;
    assert!(claimed.messages.is_empty());
    must(other.release_queue(&claimed.claim).await);
    assert!(claim_due(&other).await.is_empty());
    assert_eq!(handle(h, &inbox, &[inbox_message(2, "a")]).await, [EnterOutcome::New]);
}
