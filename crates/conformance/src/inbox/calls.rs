//! External calls outside of any transaction: one caller at a time, and a late one cannot commit.

use std::time::Duration;

use relevo_core::inbox::{Arrival, Claim, Claimed, Entered, Inbox, Kept, State, Stop};

use super::harness::Harness;
use super::stage::{
    BILLING, LONG, SHORT, arrival, begin, due_one, handle, keep, line, lines, lost, numbers, ok, open, retry, setback,
};

/// Claims a message that must be free.
async fn claim(inbox: &impl Inbox, message: &Arrival, lasts: Duration) -> Claim {
    match ok(inbox.claim(message, None, lasts).await) {
        Claimed::Mine(claim) => claim,
        other => panic!("the message is free: {other:?}"),
    }
}

/// Commits the result of a call.
async fn commit<H: Harness>(h: &H, inbox: &H::Inbox, message: &Arrival, claim: Claim) {
    let (mut transaction, entered) = open(inbox.begin_claimed(message, None, claim).await);
    assert_eq!(entered, [Entered::New]);
    h.effect(&mut transaction, &line(message)).await;
    ok(inbox.commit(transaction).await);
}

/// While a call may be running, no other worker makes it.
pub async fn a_claimed_message_is_called_by_one(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = arrival(1, "a");
    let mine = claim(&first, &message, LONG).await;
    assert_eq!(mine.started, 1);
    match ok(second.claim(&message, None, LONG).await) {
        Claimed::Busy(rest) => assert!(!rest.is_zero() && rest <= LONG, "{rest:?}"),
        other => panic!("another's call runs: {other:?}"),
    }
    commit(h, &first, &message, mine).await;
    assert_eq!(ok(second.claim(&message, None, LONG).await), Claimed::Repeat(State::Done));
    assert_eq!(handle(h, &second, &[message]).await, [Entered::Repeat(State::Done)]);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Two workers claim the message at the same time.
pub async fn two_claims_at_once_give_one(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    for number in 0..10 {
        let message = arrival(number, "a");
        let (one, other) = tokio::join!(first.claim(&message, None, LONG), second.claim(&message, None, LONG));
        let claims = [ok(one), ok(other)];
        let mine = claims.iter().filter(|claimed| matches!(claimed, Claimed::Mine(_))).count();
        let busy = claims.iter().filter(|claimed| matches!(claimed, Claimed::Busy(_))).count();
        assert_eq!((mine, busy), (1, 1), "{claims:?}");
    }
}

/// The last version of a program made a call for the message; the next version may handle it inside a transaction.
pub async fn a_call_whose_time_is_over_is_handled_inside(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = arrival(1, "a");
    let late = claim(&slow, &message, SHORT).await;
    h.pass(SHORT).await;
    assert_eq!(handle(h, &quick, std::slice::from_ref(&message)).await, [Entered::New]);
    lost(slow.begin_claimed(&message, None, late).await);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Two workers both made the call: the result of the slower one is not committed.
pub async fn a_late_caller_cannot_commit(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = arrival(1, "a");
    let late = claim(&slow, &message, SHORT).await;
    h.pass(SHORT).await;
    let mine = claim(&quick, &message, LONG).await;
    assert_eq!(mine.started, 2);
    assert_ne!(mine.token, late.token);
    lost(slow.begin_claimed(&message, None, late).await);
    commit(h, &quick, &message, mine).await;
    lost(slow.begin_claimed(&message, None, late).await);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// An expired claim remains valid until another worker claims the message.
pub async fn an_expired_claim_that_nobody_took_commits(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = arrival(1, "a");
    let mine = claim(&inbox, &message, SHORT).await;
    h.pass(SHORT).await;
    commit(h, &inbox, &message, mine).await;
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A failed commit can be retried without another call.
pub async fn a_result_that_rolled_back_leaves_the_claim(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = arrival(1, "a");
    let mine = claim(&inbox, &message, LONG).await;
    let (mut transaction, _) = open(inbox.begin_claimed(&message, None, mine).await);
    h.effect(&mut transaction, "rolled back").await;
    ok(inbox.roll_back(transaction).await);
    assert!(matches!(ok(other.claim(&message, None, LONG).await), Claimed::Busy(_)));
    commit(h, &inbox, &message, mine).await;
    assert_eq!(h.effects().await, lines(&[1]));
}

/// A handler inside a transaction does not take a message that another worker is calling for.
pub async fn a_message_in_a_call_is_not_handled_beside_it(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = [arrival(1, "a")];
    let mine = claim(&inbox, &message[0], LONG).await;
    assert_eq!(handle(h, &inbox, &message).await, [Entered::Repeat(State::Calling)]);
    commit(h, &inbox, &message[0], mine).await;
}

/// The result of a call may be a skip.
pub async fn a_call_may_end_as_skipped(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let message = arrival(1, "a");
    let mine = claim(&inbox, &message, LONG).await;
    let (mut transaction, _) = open(inbox.begin_claimed(&message, None, mine).await);
    ok(inbox.skip(&mut transaction, message.entry).await);
    ok(inbox.commit(transaction).await);
    assert_eq!(ok(inbox.claim(&message, None, LONG).await), Claimed::Repeat(State::Skipped));
}

/// No call is made for a message while others wait before it in its queue.
pub async fn a_claim_behind_a_waiting_queue_waits_too(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    let message = arrival(2, "a");
    assert_eq!(ok(inbox.claim(&message, None, LONG).await), Claimed::Behind);
    assert_eq!(ok(inbox.claim(&message, None, LONG).await), Claimed::Repeat(State::Waiting));
    assert_eq!(numbers(&due_one(&inbox).await), [1, 2]);
}

/// Only the worker that made the call can record its failure.
pub async fn only_the_caller_sets_its_call_back(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = arrival(1, "a");
    let late = claim(&slow, &message, SHORT).await;
    h.pass(SHORT).await;
    let mine = claim(&quick, &message, LONG).await;
    let failed = setback(Stop::Retry { after: Duration::ZERO }, 1);
    assert_eq!(ok(slow.set_back(&message, None, Some(late), &failed).await), Kept::Lost);
    assert_eq!(ok(slow.set_back(&message, None, None, &failed).await), Kept::Busy, "its call may still run");
    assert_eq!(ok(quick.set_back(&message, None, Some(mine), &failed).await), Kept::Kept);
    // The message waits now, and the claim has ended.
    lost(quick.begin_claimed(&message, None, mine).await);
    assert_eq!(ok(slow.claim(&message, None, LONG).await), Claimed::Repeat(State::Waiting));
    assert_eq!(numbers(&due_one(&quick).await), [1]);
}

/// The caller crashed, and no call may be made for the message any more: it can still be dead-lettered.
pub async fn a_call_whose_time_is_over_can_be_set_back(h: &mut impl Harness) {
    let (gone, inbox) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let [dead, waiting] = [1, 2].map(|number| arrival(number, &number.to_string()));
    let late = claim(&gone, &dead, SHORT).await;
    claim(&gone, &waiting, SHORT).await;
    let stopped = setback(Stop::DeadContinue, 0);
    assert_eq!(ok(inbox.set_back(&dead, None, None, &stopped).await), Kept::Busy);
    h.pass(SHORT).await;
    assert_eq!(ok(inbox.set_back(&dead, None, None, &stopped).await), Kept::Kept);
    keep(&inbox, &waiting, &retry(Duration::ZERO, 1)).await;
    lost(gone.begin_claimed(&dead, None, late).await);
    assert_eq!(ok(gone.set_back(&dead, None, Some(late), &stopped).await), Kept::Repeat(State::Dead));
    assert_eq!(handle(h, &inbox, &[dead]).await, [Entered::Repeat(State::Dead)]);
    assert_eq!(numbers(&due_one(&inbox).await), [2]);
}

/// The count of starts survives the process, so that a message which crashes it each time is found.
pub async fn starts_are_counted_across_processes(h: &mut impl Harness) {
    let message = arrival(1, "a");
    for count in 1..=3 {
        assert_eq!(ok(h.inbox(BILLING).await.start(&message).await), count);
    }
    let inbox = h.inbox(BILLING).await;
    // A start counts even if its transaction was rolled back.
    let (transaction, entered) = begin(&inbox, std::slice::from_ref(&message)).await;
    assert_eq!(entered, [Entered::New]);
    ok(inbox.roll_back(transaction).await);
    assert_eq!(ok(inbox.start(&message).await), 4);
    let claimed = claim(&inbox, &message, LONG).await;
    assert_eq!(claimed.started, 5);
}

/// Counting a start does not reopen a message that has ended, waits or is in a call.
pub async fn a_start_changes_nothing_of_what_is_not_open(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let [done, waiting, dead, calling] = [1, 2, 3, 4].map(|number| arrival(number, &number.to_string()));
    ok(inbox.start(&done).await);
    handle(h, &inbox, std::slice::from_ref(&done)).await;
    keep(&inbox, &waiting, &retry(LONG, 1)).await;
    keep(&inbox, &dead, &setback(Stop::DeadContinue, 1)).await;
    let mine = claim(&inbox, &calling, LONG).await;
    assert_eq!(ok(inbox.start(&done).await), 1);
    assert_eq!(ok(inbox.start(&done).await), 1);
    for message in [&waiting, &dead, &calling] {
        let before = ok(inbox.start(message).await);
        assert_eq!(ok(inbox.start(message).await), before);
    }
    let states = handle(h, &inbox, &[done, waiting, dead]).await;
    assert_eq!(states, [State::Done, State::Waiting, State::Dead].map(Entered::Repeat));
    commit(h, &inbox, &calling, mine).await;
}

/// An attempt that failed without a crash resets the count of starts, and its claim ends.
pub async fn what_ended_in_peace_counts_from_zero(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let (opened, called) = (arrival(1, "a"), arrival(2, "b"));
    ok(inbox.ended(opened.entry, None).await);
    assert_eq!((ok(inbox.start(&opened).await), ok(inbox.start(&opened).await)), (1, 2));
    ok(inbox.ended(opened.entry, None).await);
    assert_eq!(ok(inbox.start(&opened).await), 1);
    let mine = claim(&inbox, &called, LONG).await;
    ok(inbox.ended(called.entry, Some(mine)).await);
    lost(inbox.begin_claimed(&called, None, mine).await);
    let theirs = claim(&other, &called, LONG).await;
    assert_eq!(theirs.started, 1);
    commit(h, &other, &called, theirs).await;
    // An ended message stays ended.
    ok(inbox.ended(called.entry, None).await);
    assert_eq!(handle(h, &inbox, &[called]).await, [Entered::Repeat(State::Done)]);
}

/// A late caller can only end its own call.
pub async fn the_end_of_a_late_call_leaves_the_next_one_alone(h: &mut impl Harness) {
    let (slow, quick) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let message = arrival(1, "a");
    let late = claim(&slow, &message, SHORT).await;
    h.pass(SHORT).await;
    let mine = claim(&quick, &message, LONG).await;
    ok(slow.ended(message.entry, Some(late)).await);
    ok(slow.ended(message.entry, None).await);
    assert!(matches!(ok(slow.claim(&message, None, LONG).await), Claimed::Busy(_)));
    commit(h, &quick, &message, mine).await;
    assert_eq!(h.effects().await, lines(&[1]));
}
