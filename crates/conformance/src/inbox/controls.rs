//! Operator controls, and the consumer status that operators see.

use std::time::Duration;

use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::admin::{ConsumerAdmin as _, ConsumerControl, RemoveOutcome};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::InboxFailureAction;
use relevo_core::inbox::transactions::{Enter, EnterOutcome};
use relevo_core::inbox::{Inbox, InboxState};

use super::harness::Harness;
use super::steps::{
    BILLING, LONG, REAL_WAIT, SHORT, acquire_lane, assert_fenced, claim_one, dead_letter, during_write, fail, finish,
    handle, handle_queue, heartbeat, id, ids_filter, inbox_message, lane, lines, mark, member, must, must_open,
    numbers, retry,
};
use crate::dead_letters::DeadLetterCalls as _;

/// Every member receives the pause with its next heartbeat.
pub async fn a_heartbeat_reply_reports_the_pause(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    acquire_lane(&inbox, 1, LONG).await;
    assert_eq!(must(inbox.heartbeat(&heartbeat(1, LONG)).await), HeartbeatReply::default());
    let operator = h.operator().await;
    assert!(must(operator.set_control(BILLING, None, ConsumerControl::Pause).await));
    assert!(must(inbox.heartbeat(&heartbeat(1, LONG)).await).paused);
    assert!(must(h.inbox(BILLING).await.heartbeat(&heartbeat(2, LONG)).await).paused);
    assert!(must(operator.list_consumers().await)[0].paused);
    assert!(must(operator.set_control(BILLING, None, ConsumerControl::Resume).await));
    assert_eq!(must(inbox.heartbeat(&heartbeat(1, LONG)).await), HeartbeatReply::default());
}

/// One lane is paused, and no other.
pub async fn pausing_a_lane_pauses_no_other(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    acquire_lane(&inbox, 1, LONG).await;
    must(inbox.acquire_lanes(member(1), &[Lane::new("other")]).await);
    let operator = h.operator().await;
    assert!(must(operator.set_control(BILLING, Some(lane().name()), ConsumerControl::Pause).await));
    let reply = must(inbox.heartbeat(&heartbeat(1, LONG)).await);
    assert_eq!((reply.paused, reply.paused_lanes), (false, vec![lane()]));
    assert!(must(operator.set_control(BILLING, Some(lane().name()), ConsumerControl::Resume).await));
    assert_eq!(must(inbox.heartbeat(&heartbeat(1, LONG)).await), HeartbeatReply::default());
}

/// An operator opens the breaker, closes it, and removes the override.
pub async fn a_breaker_override_reaches_the_members(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    acquire_lane(&inbox, 1, LONG).await;
    let operator = h.operator().await;
    for (control, forced) in [
        (ConsumerControl::OpenBreaker, Some(true)),
        (ConsumerControl::CloseBreaker, Some(false)),
        (ConsumerControl::AutoBreaker, None),
    ] {
        assert!(must(operator.set_control(BILLING, Some(lane().name()), control).await));
        let overrides = must(inbox.heartbeat(&heartbeat(1, LONG)).await).breaker_overrides;
        assert_eq!(overrides, forced.map(|open| (lane(), open)).into_iter().collect::<Vec<_>>());
        assert_eq!(
            must(operator.get_consumer(BILLING, 1).await).expect("a consumer").lanes[0].breaker_override,
            forced
        );
    }
}

/// Controls stay in effect when the owner of a lane changes.
pub async fn a_lane_that_moves_stays_paused(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    acquire_lane(&old, 1, SHORT).await;
    assert!(must(h.operator().await.set_control(BILLING, Some(lane().name()), ConsumerControl::Pause).await));
    h.advance_time(SHORT).await;
    acquire_lane(&new, 2, LONG).await;
    assert_eq!(must(new.heartbeat(&heartbeat(2, LONG)).await).paused_lanes, [lane()]);
}

/// A control for an unknown consumer or lane is rejected.
pub async fn a_control_for_an_unknown_consumer_is_rejected(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    acquire_lane(&inbox, 1, LONG).await;
    let operator = h.operator().await;
    assert!(!must(operator.set_control("unknown", None, ConsumerControl::Pause).await));
    assert!(!must(operator.set_control("unknown", Some(lane().name()), ConsumerControl::Pause).await));
    assert!(!must(operator.set_control(BILLING, Some("nowhere"), ConsumerControl::Pause).await));
    assert_eq!(must(inbox.heartbeat(&heartbeat(1, LONG)).await), HeartbeatReply::default());
    assert_eq!(must(operator.get_consumer("unknown", 10).await), None);
}

/// The error text of an external service may contain any characters.
const BREAKER_REASON: &str = r"503 from the tax agency: \u0000 \";

/// Members, lanes, settled offsets and breakers, as the members last reported them.
pub async fn a_consumer_is_shown_as_its_members_report(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    acquire_lane(&inbox, 1, SHORT).await;
    must(inbox.acquire_lanes(member(1), &[Lane::new("other")]).await);
    let report = Heartbeat {
        settled_offsets: vec![(lane(), Some(41)), (Lane::new("other"), None), (Lane::new("without an owner"), Some(1))],
        breakers: vec![(lane(), BREAKER_REASON.to_owned())],
        ..heartbeat(1, SHORT)
    };
    must(inbox.heartbeat(&report).await);
    must(inbox.heartbeat(&heartbeat(2, LONG)).await);
    // A member cannot write the settled offset of another member's lane.
    must(inbox.heartbeat(&Heartbeat { settled_offsets: vec![(lane(), Some(99))], ..heartbeat(2, LONG) }).await);
    let operator = h.operator().await;
    let shown = must(operator.get_consumer(BILLING, 10).await).expect("a consumer");
    assert_eq!((shown.summary.name.as_str(), shown.summary.members), (BILLING, 2));
    assert!(shown.summary.heartbeat_at.is_some());
    let lanes: Vec<_> =
        shown.lanes.iter().map(|lane| (lane.name.as_str(), lane.owner.as_deref(), lane.settled_offset)).collect();
    let owner = Some("member 1");
    assert_eq!(lanes, [("orders.0", owner, Some(41)), ("other", owner, None)]);
    assert_eq!(shown.lanes[0].breaker.as_deref(), Some(BREAKER_REASON));
    assert_eq!(shown.lanes[1].breaker, None);
    assert_eq!(shown.summary.last_message_at, None);
    let last_message_at = shown.summary.heartbeat_at;
    must(inbox.heartbeat(&Heartbeat { last_message_at, ..heartbeat(2, LONG) }).await);
    h.advance_time(SHORT).await;
    let shown = must(operator.get_consumer(BILLING, 10).await).expect("a consumer");
    assert_eq!((shown.summary.last_message_at, shown.members[0].last_message_at), (last_message_at, last_message_at));
    let members: Vec<_> = shown.members.iter().map(|member| (member.name.as_str(), member.alive)).collect();
    assert_eq!(members, [("member 2", true), ("member 1", false)], "live members first");
    assert_eq!(shown.summary.members, 1);
    // A breaker that is no longer reported has closed.
    acquire_lane(&inbox, 1, LONG).await;
    must(inbox.heartbeat(&heartbeat(1, LONG)).await);
    assert_eq!(must(operator.get_consumer(BILLING, 10).await).expect("a consumer").lanes[0].breaker, None);
}

/// Counts of waiting messages, and the reasons they wait.
pub async fn queued_messages_are_counted_and_shown(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    must(billing.heartbeat(&heartbeat(1, LONG)).await);
    must(shipping.heartbeat(&heartbeat(2, LONG)).await);
    fail(&billing, &inbox_message(1, "a"), &retry(Duration::from_mins(9), 4)).await;
    fail(&billing, &inbox_message(2, "b"), &retry(Duration::from_mins(1), 1)).await;
    handle(h, &billing, &[inbox_message(3, "a"), inbox_message(4, "a")]).await;
    dead_letter(&billing, &inbox_message(5, "c"), InboxFailureAction::DeadContinue).await;
    let operator = h.operator().await;
    let list = must(operator.list_consumers().await);
    let counts: Vec<_> = list.iter().map(|each| (each.name.as_str(), each.waiting, each.dead)).collect();
    assert_eq!(counts, [(BILLING, 4, 1), ("shipping", 0, 0)]);
    let queues = must(operator.get_consumer(BILLING, 10).await).expect("a consumer").queues;
    let shown: Vec<_> = queues.iter().map(|queue| (&*queue.queue, queue.length, queue.attempts)).collect();
    assert_eq!(shown, [("b", 1, 1), ("a", 3, 4)], "in the order of their next attempts");
    assert_eq!(
        (queues[1].head, queues[1].error.as_str()),
        (inbox_message(1, "a").dedup_id, "the external service refused it")
    );
    assert_eq!(must(operator.get_consumer(BILLING, 1).await).expect("a consumer").queues.len(), 1);
}

/// Members and controls are deleted. A member that returns starts without controls, and handled messages stay handled.
pub async fn a_consumer_without_members_is_removed(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let before = acquire_lane(&old, 1, SHORT).await;
    handle(h, &old, &[inbox_message(1, "a")]).await;
    must(old.prune(10).await);
    let operator = h.operator().await;
    assert!(must(operator.set_control(BILLING, None, ConsumerControl::Pause).await));
    for control in [ConsumerControl::Pause, ConsumerControl::OpenBreaker] {
        assert!(must(operator.set_control(BILLING, Some(lane().name()), control).await));
    }
    h.advance_time(SHORT).await;
    assert_eq!(must(operator.remove_consumer("unknown").await), RemoveOutcome::Unknown);
    assert_eq!(must(operator.remove_consumer(BILLING).await), RemoveOutcome::Removed);
    assert_eq!(must(operator.list_consumers().await), []);
    assert_eq!(must(operator.get_consumer(BILLING, 10).await), None);
    assert!(!must(operator.set_control(BILLING, None, ConsumerControl::Pause).await), "the consumer does not exist");
    assert_eq!(must(operator.remove_consumer(BILLING).await), RemoveOutcome::Unknown, "a second time");
    assert_fenced(old.begin(Enter { held: Some(&before), arrivals: &[inbox_message(2, "a")] }).await);
    acquire_lane(&new, 2, LONG).await;
    assert_eq!(must(new.heartbeat(&heartbeat(2, LONG)).await), HeartbeatReply::default());
    let shown = must(operator.get_consumer(BILLING, 10).await).expect("it is listed again");
    let members: Vec<_> = shown.members.iter().map(|member| (member.name.as_str(), member.alive)).collect();
    assert_eq!(members, [("member 2", true)]);
    assert!(shown.summary.done_retention.is_some(), "its inbox was pruned");
    assert_eq!(handle(h, &new, &[inbox_message(1, "a")]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
}

/// One live member is enough to reject the request, and nothing changes.
pub async fn a_consumer_with_a_live_member_is_not_removed(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    acquire_lane(&inbox, 1, SHORT).await;
    must(inbox.heartbeat(&heartbeat(2, LONG)).await);
    let operator = h.operator().await;
    assert!(must(operator.set_control(BILLING, Some(lane().name()), ConsumerControl::Pause).await));
    h.advance_time(SHORT).await;
    let shown = must(operator.get_consumer(BILLING, 10).await);
    assert_eq!(must(operator.remove_consumer(BILLING).await), RemoveOutcome::MembersAlive);
    assert_eq!(must(operator.get_consumer(BILLING, 10).await), shown);
    assert_eq!(must(inbox.heartbeat(&heartbeat(2, LONG)).await).paused_lanes, [lane()]);
    must(inbox.leave(member(2)).await);
    assert_eq!(must(operator.remove_consumer(BILLING).await), RemoveOutcome::Removed);
}

/// Its member has expired but may still commit.
pub async fn a_consumer_is_not_removed_during_an_open_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let lease = acquire_lane(&inbox, 1, REAL_WAIT).await;
    let message = [inbox_message(1, "a")];
    let (transaction, entered) = must_open(inbox.begin(Enter { held: Some(&lease), arrivals: &message }).await);
    h.advance_time(REAL_WAIT).await;
    let removed = during_write(h, operator.remove_consumer(BILLING).await);
    assert!(removed.is_none_or(|removed| removed == RemoveOutcome::MembersAlive), "{removed:?}");
    finish(h, &inbox, transaction, &message, &entered).await;
    assert_eq!(h.effects().await, lines(&[1]));
    assert_eq!(must(operator.remove_consumer(BILLING).await), RemoveOutcome::Removed);
    assert_fenced(inbox.begin(Enter { held: Some(&lease), arrivals: &[inbox_message(2, "a")] }).await);
}

/// The consumer is listed while it has waiting messages or dead letters, and a returning member continues with them.
pub async fn a_returning_consumer_finds_its_queued_messages(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    acquire_lane(&old, 1, SHORT).await;
    handle(h, &old, &[inbox_message(1, "a")]).await;
    fail(&old, &inbox_message(2, "b"), &retry(Duration::ZERO, 1)).await;
    dead_letter(&old, &inbox_message(3, "c"), InboxFailureAction::DeadHold).await;
    h.advance_time(SHORT).await;
    let operator = h.operator().await;
    assert_eq!(must(operator.remove_consumer(BILLING).await), RemoveOutcome::Removed);
    let shown = must(operator.get_consumer(BILLING, 10).await).expect("a message waits, and one is dead");
    assert_eq!((shown.summary.waiting, shown.summary.dead), (1, 1));
    assert_eq!((shown.summary.members, shown.summary.heartbeat_at, shown.summary.last_message_at), (0, None, None));
    assert_eq!((shown.members.len(), shown.lanes.len(), shown.queues.len()), (0, 0, 2));
    acquire_lane(&new, 2, LONG).await;
    assert_eq!(handle(h, &new, &[inbox_message(1, "a")]).await, [EnterOutcome::Duplicate(InboxState::Done)]);
    assert_eq!(handle(h, &new, &[inbox_message(4, "c")]).await, [EnterOutcome::QueuedBehind]);
    let claimed = claim_one(&new).await;
    assert_eq!(numbers(&claimed), [2]);
    handle_queue(h, &new, &claimed).await;
    assert_eq!(must(operator.redrive(&mark(ids_filter(&[3]))).await), 1);
    let claimed = claim_one(&new).await;
    assert_eq!(numbers(&claimed), [3, 4]);
    handle_queue(h, &new, &claimed).await;
    assert_eq!(h.effects().await, lines(&[1, 2, 3, 4]));
    let listed = must(operator.list_consumers().await);
    assert_eq!((listed[0].members, listed[0].waiting, listed[0].dead), (1, 0, 0));
}

/// Operators can look up the state of a message in any state.
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
