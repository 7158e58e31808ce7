//! External calls outside of any transaction: one caller at a time, and a late one cannot commit.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::retries::{InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::EnterOutcome;
use relevo_core::inbox::{Fence, Inbox, InboxMessage, InboxState};

use super::harness::Harness;
use super::harness::ports::*;
use super::steps::{
    BILLING, LONG, SHORT, assert_fenced, begin, claim_one, fail, failure, handle, inbox_message, line, lines, must,
    must_commit, must_open, numbers, retry,
};

/// Claims a message that must be free.
async fn claim_call(inbox: &impl Inbox, message: &InboxMessage, duration: Duration) -> CallClaim {
    match must(inbox.claim_call(message, None, duration).await) {
        ClaimOutcome::Claimed(claim) => claim,
        other => panic!("the message is free: {other:?}"),
    }
}

/// Commits the result of a call.
async fn commit<H: Harness>(h: &H, inbox: &H::Inbox, message: &InboxMessage, claim: CallClaim) {
    let (mut transaction, entered) =
        must_open(inbox.begin(std::slice::from_ref(message), Fence::Call { lane: None, claim }).await);
    assert_eq!(entered, [EnterOutcome::New]);
    h.effect(&mut transaction, &line(message)).await;
    must_commit(inbox.commit(transaction, &[]).await);
}

/// While a call may be running, no other worker makes it.
pub async fn a_claimed_message_is_called_once(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = inbox_message(1, "a");
    let claim = claim_call(&first, &message, LONG).await;
    assert_eq!(claim.unfinished_starts, 1);
    match must(second.claim_call(&message, None, LONG).await) {
        ClaimOutcome::Busy(rest) => assert!(!rest.is_zero() && rest <= LONG, "{rest:?}"),
        other => panic!("another worker's call runs: {other:?}"),
    }
    commit(h, &first, &message, claim).await;
    assert_eq!(must(second.claim_call(&message, None, LONG).await), ClaimOutcome::Duplicate(InboxState::Done));
    assert_eq!(handle(h, &second, &[message]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Two workers claim the message at the same time.
pub async fn concurrent_claims_of_a_message_succeed_once(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    for number in 0..10 {
        let message = inbox_message(number, "a");
        let (one, other) =
            tokio::join!(first.claim_call(&message, None, LONG), second.claim_call(&message, None, LONG));
        let claims = [must(one), must(other)];
        let claim = claims.iter().filter(|claimed| matches!(claimed, ClaimOutcome::Claimed(_))).count();
        let busy = claims.iter().filter(|claimed| matches!(claimed, ClaimOutcome::Busy(_))).count();
        assert_eq!((claim, busy), (1, 1), "{claims:?}");
    }
}

/// The old version of a program made a call for the message. The new version may handle it inside a transaction.
pub async fn an_expired_call_can_be_handled_in_a_transaction(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = inbox_message(1, "a");
    let late = claim_call(&slow, &message, SHORT).await;
    h.advance_time(SHORT).await;
    assert_eq!(handle(h, &quick, std::slice::from_ref(&message)).await, [EnterOutcome::New]);
    assert_fenced(slow.begin(std::slice::from_ref(&message), Fence::Call { lane: None, claim: late }).await);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Two workers both made the call: the result of the slower one is not committed.
pub async fn a_fenced_caller_cannot_commit(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = inbox_message(1, "a");
    let late = claim_call(&slow, &message, SHORT).await;
    h.advance_time(SHORT).await;
    let claim = claim_call(&quick, &message, LONG).await;
    assert_eq!(claim.unfinished_starts, 2);
    assert_ne!(claim.token, late.token);
    assert_fenced(slow.begin(std::slice::from_ref(&message), Fence::Call { lane: None, claim: late }).await);
    commit(h, &quick, &message, claim).await;
    assert_fenced(slow.begin(std::slice::from_ref(&message), Fence::Call { lane: None, claim: late }).await);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// An expired claim remains valid until another worker claims the message.
pub async fn an_expired_claim_that_was_not_taken_over_commits(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = inbox_message(1, "a");
    let claim = claim_call(&inbox, &message, SHORT).await;
    h.advance_time(SHORT).await;
    commit(h, &inbox, &message, claim).await;
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A failed commit can be retried without another call.
pub async fn a_rolled_back_result_keeps_the_claim(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = inbox_message(1, "a");
    let claim = claim_call(&inbox, &message, LONG).await;
    let (mut transaction, _) =
        must_open(inbox.begin(std::slice::from_ref(&message), Fence::Call { lane: None, claim }).await);
    h.effect(&mut transaction, "rolled back").await;
    must(inbox.rollback(transaction).await);
    assert!(matches!(must(other.claim_call(&message, None, LONG).await), ClaimOutcome::Busy(_)));
    commit(h, &inbox, &message, claim).await;
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A handler inside a transaction does not get a message for which another worker makes a call.
pub async fn a_message_in_a_call_is_not_handled_in_a_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = [inbox_message(1, "a")];
    let claim = claim_call(&inbox, &message[0], LONG).await;
    assert_eq!(handle(h, &inbox, &message).await, [EnterOutcome::Duplicate(InboxState::Calling)]);
    commit(h, &inbox, &message[0], claim).await;
}

/// The result of a call may be a skip.
pub async fn a_call_may_end_as_skipped(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = inbox_message(1, "a");
    let claim = claim_call(&inbox, &message, LONG).await;
    let (transaction, _) =
        must_open(inbox.begin(std::slice::from_ref(&message), Fence::Call { lane: None, claim }).await);
    must_commit(inbox.commit(transaction, &[message.dedup_id]).await);
    assert_eq!(must(inbox.claim_call(&message, None, LONG).await), ClaimOutcome::Duplicate(InboxState::Skipped));
}

/// No call is made for a message while others wait before it in its queue.
pub async fn a_claim_behind_a_retry_queue_is_queued(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    let message = inbox_message(2, "a");
    assert_eq!(must(inbox.claim_call(&message, None, LONG).await), ClaimOutcome::QueuedBehind);
    assert_eq!(must(inbox.claim_call(&message, None, LONG).await), ClaimOutcome::Duplicate(InboxState::Waiting));
    assert_eq!(numbers(&claim_one(&inbox).await), [1, 2]);
}

/// Only the worker that made the call can record its failure.
pub async fn only_the_caller_records_the_failure_of_its_call(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = inbox_message(1, "a");
    let late = claim_call(&slow, &message, SHORT).await;
    h.advance_time(SHORT).await;
    let claim = claim_call(&quick, &message, LONG).await;
    let failed = failure(InboxFailureAction::Retry { after: Duration::ZERO }, 1);
    assert_eq!(
        must(slow.record_failure(&message, Fence::Call { lane: None, claim: late }, &failed).await),
        RecordOutcome::Fenced
    );
    assert_eq!(
        must(slow.record_failure(&message, Fence::Live { lane: None }, &failed).await),
        RecordOutcome::Busy,
        "its call may still run"
    );
    assert_eq!(
        must(quick.record_failure(&message, Fence::Call { lane: None, claim }, &failed).await),
        RecordOutcome::Recorded
    );
    // The message waits now, and the claim has ended.
    assert_fenced(quick.begin(std::slice::from_ref(&message), Fence::Call { lane: None, claim }).await);
    assert_eq!(must(slow.claim_call(&message, None, LONG).await), ClaimOutcome::Duplicate(InboxState::Waiting));
    assert_eq!(numbers(&claim_one(&quick).await), [1]);
}

/// The caller crashed, and no call may be made for the message any more: it can still be dead-lettered.
pub async fn an_expired_call_can_be_recorded_as_failed(h: &mut impl Harness) {
    let (crashed, inbox) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let [dead, waiting] = [1, 2].map(|number| inbox_message(number, &number.to_string()));
    let late = claim_call(&crashed, &dead, SHORT).await;
    claim_call(&crashed, &waiting, SHORT).await;
    let failure = failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 0);
    assert_eq!(must(inbox.record_failure(&dead, Fence::Live { lane: None }, &failure).await), RecordOutcome::Busy);
    h.advance_time(SHORT).await;
    assert_eq!(must(inbox.record_failure(&dead, Fence::Live { lane: None }, &failure).await), RecordOutcome::Recorded);
    fail(&inbox, &waiting, &retry(Duration::ZERO, 1)).await;
    assert_fenced(crashed.begin(std::slice::from_ref(&dead), Fence::Call { lane: None, claim: late }).await);
    assert_eq!(
        must(crashed.record_failure(&dead, Fence::Call { lane: None, claim: late }, &failure).await),
        RecordOutcome::Duplicate(InboxState::Dead)
    );
    assert_eq!(handle(h, &inbox, &[dead]).await, [EnterOutcome::Duplicate(InboxState::Dead)]);
    assert_eq!(numbers(&claim_one(&inbox).await), [2]);
}

/// The count of starts survives the process, so that a message which crashes it each time is found.
pub async fn starts_are_counted_across_members(h: &mut impl Harness) {
    let message = inbox_message(1, "a");
    for count in 1..=3 {
        assert_eq!(must(h.inbox(BILLING).await.record_start(&message).await), count);
    }
    let inbox = h.inbox(BILLING).await;
    // A start counts even if its transaction was rolled back.
    let (transaction, entered) = begin(&inbox, std::slice::from_ref(&message)).await;
    assert_eq!(entered, [EnterOutcome::New]);
    must(inbox.rollback(transaction).await);
    assert_eq!(must(inbox.record_start(&message).await), 4);
    let claimed = claim_call(&inbox, &message, LONG).await;
    assert_eq!(claimed.unfinished_starts, 5);
}

/// Counting a start does not reopen a message that has ended, waits or is in a call.
pub async fn recording_a_start_changes_only_started_messages(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let [done, waiting, dead, calling] = [1, 2, 3, 4].map(|number| inbox_message(number, &number.to_string()));
    must(inbox.record_start(&done).await);
    handle(h, &inbox, std::slice::from_ref(&done)).await;
    fail(&inbox, &waiting, &retry(LONG, 1)).await;
    fail(&inbox, &dead, &failure(InboxFailureAction::DeadLetter(AfterDead::Continue), 1)).await;
    let claim = claim_call(&inbox, &calling, LONG).await;
    assert_eq!(must(inbox.record_start(&done).await), 1);
    assert_eq!(must(inbox.record_start(&done).await), 1);
    for message in [&waiting, &dead, &calling] {
        let before = must(inbox.record_start(message).await);
        assert_eq!(must(inbox.record_start(message).await), before);
    }
    let states = handle(h, &inbox, &[done, waiting, dead]).await;
    assert_eq!(states, [InboxState::Done, InboxState::Waiting, InboxState::Dead].map(EnterOutcome::Duplicate));
    commit(h, &inbox, &calling, claim).await;
}

/// An attempt that failed without a crash resets the count of starts, and its claim ends.
pub async fn ending_an_attempt_resets_its_starts(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let (opened, called) = (inbox_message(1, "a"), inbox_message(2, "b"));
    must(inbox.end_attempt(opened.dedup_id, None).await);
    assert_eq!((must(inbox.record_start(&opened).await), must(inbox.record_start(&opened).await)), (1, 2));
    must(inbox.end_attempt(opened.dedup_id, None).await);
    assert_eq!(must(inbox.record_start(&opened).await), 1);
    let claim = claim_call(&inbox, &called, LONG).await;
    must(inbox.end_attempt(called.dedup_id, Some(claim)).await);
    assert_fenced(inbox.begin(std::slice::from_ref(&called), Fence::Call { lane: None, claim }).await);
    let other_claim = claim_call(&other, &called, LONG).await;
    assert_eq!(other_claim.unfinished_starts, 1);
    commit(h, &other, &called, other_claim).await;
    // An ended message stays ended.
    must(inbox.end_attempt(called.dedup_id, None).await);
    assert_eq!(handle(h, &inbox, &[called]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
}

/// A late caller can only end its own call.
pub async fn ending_a_late_call_does_not_affect_the_next_one(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = inbox_message(1, "a");
    let late = claim_call(&slow, &message, SHORT).await;
    h.advance_time(SHORT).await;
    let claim = claim_call(&quick, &message, LONG).await;
    must(slow.end_attempt(message.dedup_id, Some(late)).await);
    must(slow.end_attempt(message.dedup_id, None).await);
    assert!(matches!(must(slow.claim_call(&message, None, LONG).await), ClaimOutcome::Busy(_)));
    commit(h, &quick, &message, claim).await;
    assert_eq!(h.effects().await, lines(&[1]));
}
