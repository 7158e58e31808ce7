//! Traces: the origin of each message, and its state at a consumer.

use std::time::Duration;

use relevo_core::inbox::admin::{ConsumerAdmin as _, Trace};
use relevo_core::inbox::attempts::ClaimOutcome;
use relevo_core::inbox::retries::InboxFailureAction;
use relevo_core::inbox::{Inbox, InboxRetention, InboxState};

use super::harness::{Harness, RETENTION};
use super::steps::{
    BILLING, LONG, begin, claim_one, dead_letter, fail, failure, handle, handle_queue, id, ids_filter, inbox_message,
    mark, must, must_open, retry,
};
use crate::dead_letters::DeadLetterCalls as _;

const TRACED: InboxRetention = InboxRetention { trace: Some(Duration::from_hours(1)), ..RETENTION };

async fn traces(h: &impl Harness, number: u64) -> Vec<Trace> {
    must(h.operator().await.trace(id(number)).await)
}

async fn states(h: &impl Harness, number: u64) -> Vec<(InboxState, u32)> {
    traces(h, number).await.into_iter().map(|trace| (trace.state, trace.repeats)).collect()
}

/// A trace has the broker's address, lane and offset, and the final state.
pub async fn a_trace_contains_the_origin_of_a_message(h: &mut impl Harness) {
    let inbox = h.inbox_with_retention(BILLING, TRACED).await;
    let mut message = inbox_message(1, "a");
    message.correlation = Some("c-1".into());
    handle(h, &inbox, std::slice::from_ref(&message)).await;
    let trace = traces(h, 1).await.remove(0);
    assert_eq!((trace.consumer.as_str(), trace.entry, trace.state), (BILLING, message.dedup_id, InboxState::Done));
    assert_eq!((trace.address.as_str(), trace.lane.as_str(), trace.place), ("orders", "orders.0", Some(1)));
    assert_eq!((trace.correlation.as_deref(), trace.repeats), (Some("c-1"), 0));
}

/// Without a configured trace retention no traces are written.
pub async fn nothing_is_traced_without_a_trace_retention(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[inbox_message(1, "a")]).await;
    dead_letter(&inbox, &inbox_message(2, "a"), InboxFailureAction::DeadContinue).await;
    assert_eq!((traces(h, 1).await, traces(h, 2).await), (vec![], vec![]));
}

/// A duplicate is counted, wherever it is detected.
pub async fn repeats_are_counted(h: &mut impl Harness) {
    let inbox = h.inbox_with_retention(BILLING, TRACED).await;
    let message = [inbox_message(1, "a")];
    handle(h, &inbox, &message).await;
    handle(h, &inbox, &message).await;
    handle(h, &inbox, &message).await;
    assert_eq!(states(h, 1).await, [(InboxState::Done, 2)]);
    assert_eq!(must(inbox.claim_call(&message[0], None, LONG).await), ClaimOutcome::Duplicate(InboxState::Done));
    assert_eq!(states(h, 1).await, [(InboxState::Done, 3)]);
}

/// A rolled-back transaction leaves no trace.
pub async fn a_rolled_back_message_is_not_traced(h: &mut impl Harness) {
    let inbox = h.inbox_with_retention(BILLING, TRACED).await;
    let (transaction, _) = begin(&inbox, &[inbox_message(1, "a")]).await;
    must(inbox.rollback(transaction).await);
    assert_eq!(traces(h, 1).await, []);
}

/// One row per message and consumer follows the state of the message.
pub async fn a_trace_follows_its_message(h: &mut impl Harness) {
    let inbox = h.inbox_with_retention(BILLING, TRACED).await;
    fail(&inbox, &inbox_message(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &inbox, &[inbox_message(2, "a")]).await;
    assert_eq!(
        (states(h, 1).await, states(h, 2).await),
        (vec![(InboxState::Waiting, 0)], vec![(InboxState::Waiting, 0)])
    );
    let claimed = claim_one(&inbox).await;
    must(
        inbox.set_back_due(&claimed, claimed.messages[0].ordinal, &failure(InboxFailureAction::DeadContinue, 2)).await,
    );
    assert_eq!(states(h, 1).await, [(InboxState::Dead, 0)]);
    let (mut transaction, _) = must_open(inbox.begin_due(&claimed, claimed.messages[1].ordinal).await);
    must(inbox.skip(&mut transaction, inbox_message(2, "a").dedup_id).await);
    must(inbox.commit(transaction).await);
    must(inbox.release_queue(&claimed).await);
    assert_eq!(states(h, 2).await, [(InboxState::Skipped, 0)]);
    must(h.operator().await.redrive(&mark(ids_filter(&[1]))).await);
    let claimed = claim_one(&inbox).await;
    handle_queue(h, &inbox, &claimed).await;
    assert_eq!(states(h, 1).await, [(InboxState::Done, 0)]);
}

/// The trace of a call shows its result.
pub async fn a_call_is_traced_by_its_result(h: &mut impl Harness) {
    let inbox = h.inbox_with_retention(BILLING, TRACED).await;
    let message = inbox_message(1, "a");
    let ClaimOutcome::Claimed(claim) = must(inbox.claim_call(&message, None, LONG).await) else { panic!("it is free") };
    let (transaction, _) = must_open(inbox.begin_claimed(&message, None, claim).await);
    must(inbox.commit(transaction).await);
    assert_eq!(states(h, 1).await, [(InboxState::Done, 0)]);
}

/// Each consumer and each replay has its own traces.
pub async fn each_consumer_and_replay_is_traced_apart(h: &mut impl Harness) {
    for consumer in [BILLING, "shipping"] {
        let inbox = h.inbox_with_retention(consumer, TRACED).await;
        for replay in [0, 1] {
            let mut message = inbox_message(1, "a");
            message.dedup_id.replay = replay;
            handle(h, &inbox, &[message]).await;
        }
    }
    let mut found: Vec<(String, u32)> =
        traces(h, 1).await.into_iter().map(|trace| (trace.consumer, trace.entry.replay)).collect();
    found.sort();
    let all = [(BILLING, 0), (BILLING, 1), ("shipping", 0), ("shipping", 1)];
    assert_eq!(found, all.map(|(consumer, replay)| (consumer.to_owned(), replay)));
}

/// Operators can look up the state of a message without traces too, in any state.
pub async fn a_message_is_found_by_its_inbox_rows(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    handle(h, &billing, &[inbox_message(1, "a")]).await;
    fail(&shipping, &inbox_message(1, "a"), &retry(LONG, 1)).await;
    let mut repeated = inbox_message(1, "a");
    repeated.dedup_id.replay = 2;
    dead_letter(&billing, &repeated, InboxFailureAction::DeadContinue).await;
    handle(h, &billing, &[inbox_message(2, "a")]).await;
    let known = must(h.operator().await.find_message(id(1)).await);
    let states: Vec<_> = known.iter().map(|each| (each.consumer.as_str(), each.dedup_id.replay, each.state)).collect();
    assert_eq!(
        states,
        [(BILLING, 0, InboxState::Done), (BILLING, 2, InboxState::Dead), ("shipping", 0, InboxState::Waiting)]
    );
    assert!(known[0].at.is_some());
    assert_eq!(must(h.operator().await.find_message(id(9)).await), []);
}
