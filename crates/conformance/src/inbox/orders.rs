//! Operator controls, and the consumer status that operators see.

use std::time::Duration;

use relevo_core::consume::Lane;
use relevo_core::inbox::operate::{Forgotten, Operate, Order};
use relevo_core::inbox::{Beat, Enter, Entered, Inbox, Orders, State, Stop};

use super::harness::Harness;
use super::stage::{
    BILLING, LONG, SHORT, WAITED, arrival, beat, beside, bury, due_one, finish, handle, keep, lane, lines, lost, mark,
    member, numbers, of, ok, open, retry, take, work,
};

/// Every member learns of the pause with its next heartbeat.
pub async fn a_paused_consumer_hears_of_it(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    take(&inbox, 1, LONG).await;
    assert_eq!(ok(inbox.beat(&beat(1, LONG)).await), Orders::default());
    let operator = h.operator().await;
    assert!(ok(operator.order(BILLING, None, Order::Pause).await));
    assert!(ok(inbox.beat(&beat(1, LONG)).await).paused);
    assert!(ok(h.inbox(BILLING).await.beat(&beat(2, LONG)).await).paused);
    assert!(ok(operator.consumers().await)[0].paused);
    assert!(ok(operator.order(BILLING, None, Order::Resume).await));
    assert_eq!(ok(inbox.beat(&beat(1, LONG)).await), Orders::default());
}

/// One lane is paused, and no other.
pub async fn a_lane_is_paused_alone(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    take(&inbox, 1, LONG).await;
    ok(inbox.take(member(1), &[Lane::new("other")]).await);
    let operator = h.operator().await;
    assert!(ok(operator.order(BILLING, Some(lane().name()), Order::Pause).await));
    let orders = ok(inbox.beat(&beat(1, LONG)).await);
    assert_eq!((orders.paused, orders.paused_lanes), (false, vec![lane()]));
    assert!(ok(operator.order(BILLING, Some(lane().name()), Order::Resume).await));
    assert_eq!(ok(inbox.beat(&beat(1, LONG)).await), Orders::default());
}

/// An operator opens the breaker, closes it, and removes the override.
pub async fn a_breaker_is_forced(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    take(&inbox, 1, LONG).await;
    let operator = h.operator().await;
    for (order, forced) in
        [(Order::OpenBreaker, Some(true)), (Order::CloseBreaker, Some(false)), (Order::FreeBreaker, None)]
    {
        assert!(ok(operator.order(BILLING, Some(lane().name()), order).await));
        let told = ok(inbox.beat(&beat(1, LONG)).await).forced;
        assert_eq!(told, forced.map(|open| (lane(), open)).into_iter().collect::<Vec<_>>());
        assert_eq!(ok(operator.consumer(BILLING, 1).await).expect("a consumer").lanes[0].forced, forced);
    }
}

/// Controls stay in effect when the owner of a lane changes.
pub async fn a_lane_that_moves_stays_paused(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    take(&old, 1, SHORT).await;
    assert!(ok(h.operator().await.order(BILLING, Some(lane().name()), Order::Pause).await));
    h.pass(SHORT).await;
    take(&new, 2, LONG).await;
    assert_eq!(ok(new.beat(&beat(2, LONG)).await).paused_lanes, [lane()]);
}

/// A control for an unknown consumer or lane is rejected.
pub async fn an_order_to_nobody_is_refused(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    take(&inbox, 1, LONG).await;
    let operator = h.operator().await;
    assert!(!ok(operator.order("nobody", None, Order::Pause).await));
    assert!(!ok(operator.order("nobody", Some(lane().name()), Order::Pause).await));
    assert!(!ok(operator.order(BILLING, Some("nowhere"), Order::Pause).await));
    assert_eq!(ok(inbox.beat(&beat(1, LONG)).await), Orders::default());
    assert_eq!(ok(operator.consumer("nobody", 10).await), None);
}

/// The error text of an external service may contain any characters.
const BREAKER: &str = r"503 from the tax agency: \u0000 \";

/// Members, lanes, settled offsets and breakers, as the members last reported them.
pub async fn a_consumer_is_shown_as_its_members_tell(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    take(&inbox, 1, SHORT).await;
    ok(inbox.take(member(1), &[Lane::new("other")]).await);
    let told = Beat {
        marks: vec![(lane(), Some(41)), (Lane::new("other"), None), (Lane::new("of nobody"), Some(1))],
        breakers: vec![(lane(), BREAKER.to_owned())],
        ..beat(1, SHORT)
    };
    ok(inbox.beat(&told).await);
    ok(inbox.beat(&beat(2, LONG)).await);
    // A member cannot write the settled offset of another member's lane.
    ok(inbox.beat(&Beat { marks: vec![(lane(), Some(99))], ..beat(2, LONG) }).await);
    let operator = h.operator().await;
    let shown = ok(operator.consumer(BILLING, 10).await).expect("a consumer");
    assert_eq!((shown.consumer.name.as_str(), shown.consumer.members), (BILLING, 2));
    assert!(shown.consumer.beat_at.is_some());
    let lanes: Vec<_> = shown.lanes.iter().map(|lane| (lane.name.as_str(), lane.owner.as_deref(), lane.mark)).collect();
    let owner = Some("member 1");
    assert_eq!(lanes, [("orders.0", owner, Some(41)), ("other", owner, None)]);
    assert_eq!(shown.lanes[0].breaker.as_deref(), Some(BREAKER));
    assert_eq!(shown.lanes[1].breaker, None);
    assert_eq!(shown.consumer.last_message_at, None);
    let last_message_at = shown.consumer.beat_at;
    ok(inbox.beat(&Beat { last_message_at, ..beat(2, LONG) }).await);
    h.pass(SHORT).await;
    let shown = ok(operator.consumer(BILLING, 10).await).expect("a consumer");
    assert_eq!((shown.consumer.last_message_at, shown.members[0].last_message_at), (last_message_at, last_message_at));
    let members: Vec<_> = shown.members.iter().map(|member| (member.name.as_str(), member.alive)).collect();
    assert_eq!(members, [("member 2", true), ("member 1", false)], "living ones first");
    assert_eq!(shown.consumer.members, 1);
    // A breaker that is no longer reported has closed.
    take(&inbox, 1, LONG).await;
    ok(inbox.beat(&beat(1, LONG)).await);
    assert_eq!(ok(operator.consumer(BILLING, 10).await).expect("a consumer").lanes[0].breaker, None);
}

/// Counts of waiting messages, and the reasons they wait.
pub async fn what_waits_is_counted_and_shown(h: &mut impl Harness) {
    let (billing, shipping) = (h.inbox(BILLING).await, h.inbox("shipping").await);
    ok(billing.beat(&beat(1, LONG)).await);
    ok(shipping.beat(&beat(2, LONG)).await);
    keep(&billing, &arrival(1, "a"), &retry(Duration::from_mins(9), 4)).await;
    keep(&billing, &arrival(2, "b"), &retry(Duration::from_mins(1), 1)).await;
    handle(h, &billing, &[arrival(3, "a"), arrival(4, "a")]).await;
    bury(&billing, &arrival(5, "c"), Stop::DeadContinue).await;
    let operator = h.operator().await;
    let list = ok(operator.consumers().await);
    let counts: Vec<_> = list.iter().map(|each| (each.name.as_str(), each.waiting, each.dead)).collect();
    assert_eq!(counts, [(BILLING, 4, 1), ("shipping", 0, 0)]);
    let queues = ok(operator.consumer(BILLING, 10).await).expect("a consumer").queues;
    let shown: Vec<_> = queues.iter().map(|queue| (&*queue.queue, queue.length, queue.attempts)).collect();
    assert_eq!(shown, [("b", 1, 1), ("a", 3, 4)], "by the time of their next attempt");
    assert_eq!((queues[1].head, queues[1].error.as_str()), (arrival(1, "a").entry, "the far side said no"));
    assert_eq!(ok(operator.consumer(BILLING, 1).await).expect("a consumer").queues.len(), 1);
}

/// Members and controls are deleted. A member that returns starts without controls, and handled messages stay handled.
pub async fn a_consumer_that_nobody_works_for_is_forgotten(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let before = take(&old, 1, SHORT).await;
    handle(h, &old, &[arrival(1, "a")]).await;
    ok(old.prune(10).await);
    let operator = h.operator().await;
    assert!(ok(operator.order(BILLING, None, Order::Pause).await));
    for order in [Order::Pause, Order::OpenBreaker] {
        assert!(ok(operator.order(BILLING, Some(lane().name()), order).await));
    }
    h.pass(SHORT).await;
    assert_eq!(ok(operator.forget("nobody").await), Forgotten::Unknown);
    assert_eq!(ok(operator.forget(BILLING).await), Forgotten::Gone);
    assert_eq!(ok(operator.consumers().await), []);
    assert_eq!(ok(operator.consumer(BILLING, 10).await), None);
    assert!(!ok(operator.order(BILLING, None, Order::Pause).await), "there is none of that name");
    assert_eq!(ok(operator.forget(BILLING).await), Forgotten::Unknown, "a second time");
    lost(old.begin(Enter { held: Some(&before), arrivals: &[arrival(2, "a")] }).await);
    take(&new, 2, LONG).await;
    assert_eq!(ok(new.beat(&beat(2, LONG)).await), Orders::default());
    let shown = ok(operator.consumer(BILLING, 10).await).expect("it is heard of again");
    let members: Vec<_> = shown.members.iter().map(|member| (member.name.as_str(), member.alive)).collect();
    assert_eq!(members, [("member 2", true)]);
    assert!(shown.consumer.remembers.is_some(), "its inbox was pruned");
    assert_eq!(handle(h, &new, &[arrival(1, "a")]).await, [Entered::Repeat(State::Done)]);
}

/// One live member is enough to reject the request, and nothing changes.
pub async fn a_consumer_with_a_living_member_is_not_forgotten(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    take(&inbox, 1, SHORT).await;
    ok(inbox.beat(&beat(2, LONG)).await);
    let operator = h.operator().await;
    assert!(ok(operator.order(BILLING, Some(lane().name()), Order::Pause).await));
    h.pass(SHORT).await;
    let shown = ok(operator.consumer(BILLING, 10).await);
    assert_eq!(ok(operator.forget(BILLING).await), Forgotten::Alive);
    assert_eq!(ok(operator.consumer(BILLING, 10).await), shown);
    assert_eq!(ok(inbox.beat(&beat(2, LONG)).await).paused_lanes, [lane()]);
    ok(inbox.leave(member(2)).await);
    assert_eq!(ok(operator.forget(BILLING).await), Forgotten::Gone);
}

/// Its member has expired but may still commit.
pub async fn a_consumer_is_not_forgotten_under_an_open_transaction(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let operator = h.operator().await;
    let held = take(&inbox, 1, WAITED).await;
    let message = [arrival(1, "a")];
    let (transaction, entered) = open(inbox.begin(Enter { held: Some(&held), arrivals: &message }).await);
    h.pass(WAITED).await;
    let forgotten = beside(h, operator.forget(BILLING).await);
    assert!(forgotten.is_none_or(|forgotten| forgotten == Forgotten::Alive), "{forgotten:?}");
    finish(h, &inbox, transaction, &message, &entered).await;
    assert_eq!(h.effects().await, lines(&[1]));
    assert_eq!(ok(operator.forget(BILLING).await), Forgotten::Gone);
    lost(inbox.begin(Enter { held: Some(&held), arrivals: &[arrival(2, "a")] }).await);
}

/// The consumer is listed while it has waiting messages or dead letters, and a returning member continues with them.
pub async fn what_a_forgotten_consumer_left_is_there_when_it_comes_back(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    take(&old, 1, SHORT).await;
    handle(h, &old, &[arrival(1, "a")]).await;
    keep(&old, &arrival(2, "b"), &retry(Duration::ZERO, 1)).await;
    bury(&old, &arrival(3, "c"), Stop::DeadHold).await;
    h.pass(SHORT).await;
    let operator = h.operator().await;
    assert_eq!(ok(operator.forget(BILLING).await), Forgotten::Gone);
    let shown = ok(operator.consumer(BILLING, 10).await).expect("something waits, and something is dead");
    assert_eq!((shown.consumer.waiting, shown.consumer.dead), (1, 1));
    assert_eq!((shown.consumer.members, shown.consumer.beat_at, shown.consumer.last_message_at), (0, None, None));
    assert_eq!((shown.members.len(), shown.lanes.len(), shown.queues.len()), (0, 0, 2));
    take(&new, 2, LONG).await;
    assert_eq!(handle(h, &new, &[arrival(1, "a")]).await, [Entered::Repeat(State::Done)]);
    assert_eq!(handle(h, &new, &[arrival(4, "c")]).await, [Entered::Behind]);
    let due = due_one(&new).await;
    assert_eq!(numbers(&due), [2]);
    work(h, &new, &due).await;
    assert_eq!(ok(operator.redrive(&mark(of(&[3]))).await), 1);
    let due = due_one(&new).await;
    assert_eq!(numbers(&due), [3, 4]);
    work(h, &new, &due).await;
    assert_eq!(h.effects().await, lines(&[1, 2, 3, 4]));
    let listed = ok(operator.consumers().await);
    assert_eq!((listed[0].members, listed[0].waiting, listed[0].dead), (1, 0, 0));
}
