//! Traces: where each message came from, and what a consumer did with it.

use std::time::Duration;

use relevo_core::inbox::operate::{Operate, Trace};
use relevo_core::inbox::{Claimed, Inbox, Keeping, State, Stop};

use super::harness::{Harness, KEEPING};
use super::stage::{
    BILLING, LONG, arrival, begin, bury, due_one, handle, id, keep, mark, of, ok, open, retry, setback, work,
};

const TRACED: Keeping = Keeping { trace: Some(Duration::from_hours(1)), ..KEEPING };

async fn traces(h: &impl Harness, number: u64) -> Vec<Trace> {
    ok(h.operator().await.trace(id(number)).await)
}

async fn states(h: &impl Harness, number: u64) -> Vec<(State, u32)> {
    traces(h, number).await.into_iter().map(|trace| (trace.state, trace.repeats)).collect()
}

/// A trace has the broker's address, lane and offset, and the final state.
pub async fn a_trace_says_where_a_message_came_from(h: &mut impl Harness) {
    let inbox = h.inbox_keeping(BILLING, TRACED).await;
    let mut message = arrival(1, "a");
    message.correlation = Some("c-1".into());
    handle(h, &inbox, std::slice::from_ref(&message)).await;
    let trace = traces(h, 1).await.remove(0);
    assert_eq!((trace.consumer.as_str(), trace.entry, trace.state), (BILLING, message.entry, State::Done));
    assert_eq!((trace.address.as_str(), trace.lane.as_str(), trace.place), ("orders", "orders.0", Some(1)));
    assert_eq!((trace.correlation.as_deref(), trace.repeats), (Some("c-1"), 0));
}

/// Without a configured trace retention no traces are written.
pub async fn nothing_is_traced_unless_asked_for(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    handle(h, &inbox, &[arrival(1, "a")]).await;
    bury(&inbox, &arrival(2, "a"), Stop::DeadContinue).await;
    assert_eq!((traces(h, 1).await, traces(h, 2).await), (vec![], vec![]));
}

/// A duplicate is counted, wherever it is detected.
pub async fn repeats_are_counted(h: &mut impl Harness) {
    let inbox = h.inbox_keeping(BILLING, TRACED).await;
    let message = [arrival(1, "a")];
    handle(h, &inbox, &message).await;
    handle(h, &inbox, &message).await;
    handle(h, &inbox, &message).await;
    assert_eq!(states(h, 1).await, [(State::Done, 2)]);
    assert_eq!(ok(inbox.claim(&message[0], None, LONG).await), Claimed::Repeat(State::Done));
    assert_eq!(states(h, 1).await, [(State::Done, 3)]);
}

/// A rolled-back transaction leaves no trace.
pub async fn what_rolled_back_is_not_traced(h: &mut impl Harness) {
    let inbox = h.inbox_keeping(BILLING, TRACED).await;
    let (transaction, _) = begin(&inbox, &[arrival(1, "a")]).await;
    ok(inbox.roll_back(transaction).await);
    assert_eq!(traces(h, 1).await, []);
}

/// One row per message and consumer follows the state of the message.
pub async fn a_trace_follows_its_message(h: &mut impl Harness) {
    let inbox = h.inbox_keeping(BILLING, TRACED).await;
    keep(&inbox, &arrival(1, "a"), &retry(Duration::ZERO, 1)).await;
    handle(h, &inbox, &[arrival(2, "a")]).await;
    assert_eq!((states(h, 1).await, states(h, 2).await), (vec![(State::Waiting, 0)], vec![(State::Waiting, 0)]));
    let claimed = due_one(&inbox).await;
    ok(inbox.set_back_due(&claimed, claimed.messages[0].number, &setback(Stop::DeadContinue, 2)).await);
    assert_eq!(states(h, 1).await, [(State::Dead, 0)]);
    let (mut transaction, _) = open(inbox.begin_due(&claimed, claimed.messages[1].number).await);
    ok(inbox.skip(&mut transaction, arrival(2, "a").entry).await);
    ok(inbox.commit(transaction).await);
    ok(inbox.release(&claimed).await);
    assert_eq!(states(h, 2).await, [(State::Skipped, 0)]);
    ok(h.operator().await.redrive(&mark(of(&[1]))).await);
    let claimed = due_one(&inbox).await;
    work(h, &inbox, &claimed).await;
    assert_eq!(states(h, 1).await, [(State::Done, 0)]);
}

/// The trace of a call shows its result.
pub async fn a_call_is_traced_by_its_result(h: &mut impl Harness) {
    let inbox = h.inbox_keeping(BILLING, TRACED).await;
    let message = arrival(1, "a");
    let Claimed::Mine(claim) = ok(inbox.claim(&message, None, LONG).await) else { panic!("it is free") };
    let (transaction, _) = open(inbox.begin_claimed(&message, None, claim).await);
    ok(inbox.commit(transaction).await);
    assert_eq!(states(h, 1).await, [(State::Done, 0)]);
}

/// Each consumer and each replay has its own traces.
pub async fn each_consumer_and_replay_is_traced_apart(h: &mut impl Harness) {
    for consumer in [BILLING, "shipping"] {
        let inbox = h.inbox_keeping(consumer, TRACED).await;
        for replay in [0, 1] {
            let mut message = arrival(1, "a");
            message.entry.replay = replay;
            handle(h, &inbox, &[message]).await;
        }
    }
    let mut found: Vec<(String, u32)> =
        traces(h, 1).await.into_iter().map(|trace| (trace.consumer, trace.entry.replay)).collect();
    found.sort();
    let all = [(BILLING, 0), (BILLING, 1), ("shipping", 0), ("shipping", 1)];
    assert_eq!(found, all.map(|(consumer, replay)| (consumer.to_owned(), replay)));
}

/// Operators can look up the state of a message without traces too, whatever that state is.
pub async fn what_is_known_is_told_without_traces(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    handle(h, &billing, &[arrival(1, "a")]).await;
    keep(&shipping, &arrival(1, "a"), &retry(LONG, 1)).await;
    let mut again = arrival(1, "a");
    again.entry.replay = 2;
    bury(&billing, &again, Stop::DeadContinue).await;
    handle(h, &billing, &[arrival(2, "a")]).await;
    let known = ok(h.operator().await.known(id(1)).await);
    let told: Vec<_> = known.iter().map(|each| (each.consumer.as_str(), each.entry.replay, each.state)).collect();
    assert_eq!(told, [(BILLING, 0, State::Done), (BILLING, 2, State::Dead), ("shipping", 0, State::Waiting)]);
    assert!(known[0].at.is_some());
    assert_eq!(ok(h.operator().await.known(id(9)).await), []);
}
