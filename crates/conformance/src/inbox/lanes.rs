//! Lanes: one member at a time, and a member that lost its lane cannot change anything.

use relevo_core::consume::Lane;
use relevo_core::inbox::operate::{DeadFilter, Operate};
use relevo_core::inbox::{Begun, Claimed, Enter, Entered, Held, Inbox, Kept, State, Stop};

use super::harness::Harness;
use super::stage::{
    BILLING, LONG, SHORT, WAITED, arrival, beat, beside, finish, lane, lines, lost, member, ok, open, retry, setback,
    take,
};

/// Members that are alive do not take each other's lanes.
pub async fn a_lane_is_one_members(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let lanes = [Lane::new("0"), Lane::new("1")];
    ok(first.beat(&beat(1, LONG)).await);
    ok(second.beat(&beat(2, LONG)).await);
    let held = ok(first.take(member(1), &lanes).await);
    assert_eq!(held.iter().map(|held| held.lane.clone()).collect::<Vec<_>>(), lanes);
    assert!(held.iter().all(|held| held.owner == member(1)));
    assert_eq!(ok(second.take(member(2), &lanes).await), []);
    assert_eq!(ok(first.take(member(1), &lanes).await), held, "what it has stays as it is");
    let further = [lanes[0].clone(), Lane::new("2")];
    let taken = ok(second.take(member(2), &further).await);
    assert_eq!(taken.iter().map(|held| &held.lane).collect::<Vec<_>>(), [&further[1]]);
}

/// Members request lanes at the same time.
pub async fn members_that_take_at_once_share(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    ok(first.beat(&beat(1, LONG)).await);
    ok(second.beat(&beat(2, LONG)).await);
    let lanes: Vec<Lane> = (0..16).map(|number| Lane::new(format!("{number:02}"))).collect();
    let backward: Vec<Lane> = lanes.iter().rev().cloned().collect();
    let (one, other) = tokio::join!(first.take(member(1), &lanes), second.take(member(2), &backward));
    let mut all: Vec<Lane> = ok(one).into_iter().chain(ok(other)).map(|held| held.lane).collect();
    all.sort();
    assert_eq!(all, lanes, "each lane is one member's");
}

/// Consumers share no lanes.
pub async fn each_consumer_has_its_own_lanes(h: &mut impl Harness) {
    take(&h.inbox(BILLING).await, 1, LONG).await;
    take(&h.inbox("shipping").await, 2, LONG).await;
}

/// Without a heartbeat that can expire, no other member could ever take over its lanes.
pub async fn a_member_that_did_not_beat_takes_nothing(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    assert_eq!(ok(inbox.take(member(1), &[lane()]).await), []);
    ok(inbox.beat(&beat(1, SHORT)).await);
    h.pass(SHORT).await;
    assert_eq!(ok(inbox.take(member(1), &[lane()]).await), []);
    take(&inbox, 2, LONG).await;
}

/// Another member takes the lane of an expired one. Later calls of the expired member are rejected without effect.
pub async fn whoever_lost_its_lane_changes_nothing(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let before = take(&old, 1, SHORT).await;
    let called = arrival(2, "b");
    let Claimed::Mine(claim) = ok(old.claim(&called, Some(&before), LONG).await) else { panic!("it is free") };
    h.pass(SHORT).await;
    let after = take(&new, 2, LONG).await;
    assert!(after.epoch > before.epoch, "{} is not above {}", after.epoch, before.epoch);
    let message = [arrival(1, "a")];
    lost(old.begin(Enter { held: Some(&before), arrivals: &message }).await);
    assert_eq!(ok(old.claim(&message[0], Some(&before), LONG).await), Claimed::Lost);
    for stop in [Stop::Retry { after: SHORT }, Stop::DeadHold, Stop::DeadContinue] {
        let kept = old.set_back(&message[0], Some(&before), None, &setback(stop, 1)).await;
        assert_eq!(ok(kept), Kept::Lost);
    }
    lost(old.begin_claimed(&called, Some(&before), claim).await);
    assert_eq!(ok(old.set_back(&called, Some(&before), Some(claim), &retry(SHORT, 1)).await), Kept::Lost);
    assert_eq!(ok(h.operator().await.dead(&DeadFilter::default(), 10).await), []);
    let (transaction, entered) = open(new.begin(Enter { held: Some(&after), arrivals: &message }).await);
    assert_eq!(entered, [Entered::New]);
    finish(h, &new, transaction, &message, &entered).await;
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Owner and epoch must both match.
pub async fn a_lane_is_held_by_owner_and_epoch(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let held = take(&inbox, 1, LONG).await;
    let wrong = [
        Held { epoch: held.epoch - 1, ..held.clone() },
        Held { epoch: held.epoch + 1, ..held.clone() },
        Held { owner: member(2), ..held.clone() },
        Held { lane: Lane::new("other"), ..held.clone() },
    ];
    for held in &wrong {
        lost(inbox.begin(Enter { held: Some(held), arrivals: &[arrival(1, "a")] }).await);
    }
    open(inbox.begin(Enter { held: Some(&held), arrivals: &[arrival(1, "a")] }).await);
}

/// A suspended worker cannot commit after its lane moved, because the lane does not move while its transaction is open.
pub async fn a_lane_does_not_move_under_an_open_transaction(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let before = take(&old, 1, WAITED).await;
    ok(new.beat(&beat(2, LONG)).await);
    let message = [arrival(1, "a")];
    let (transaction, entered) = open(old.begin(Enter { held: Some(&before), arrivals: &message }).await);
    h.pass(WAITED).await;
    let taken = beside(h, new.take(member(2), &[lane()]).await);
    assert!(taken.is_none_or(|held| held.is_empty()), "the old owner may still commit");
    finish(h, &old, transaction, &message, &entered).await;
    let after = ok(new.take(member(2), &[lane()]).await).remove(0);
    lost(old.begin(Enter { held: Some(&before), arrivals: &[arrival(2, "a")] }).await);
    let (transaction, entered) = open(new.begin(Enter { held: Some(&after), arrivals: &message }).await);
    assert_eq!(entered, [Entered::Repeat(State::Done)]);
    ok(new.roll_back(transaction).await);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// The same for the result of a call.
pub async fn a_lane_does_not_move_under_a_result(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let before = take(&old, 1, WAITED).await;
    ok(new.beat(&beat(2, LONG)).await);
    let message = arrival(1, "a");
    let Claimed::Mine(claim) = ok(old.claim(&message, Some(&before), LONG).await) else { panic!("it is free") };
    let (transaction, _) = open(old.begin_claimed(&message, Some(&before), claim).await);
    h.pass(WAITED).await;
    let taken = beside(h, new.take(member(2), &[lane()]).await);
    assert!(taken.is_none_or(|held| held.is_empty()), "the old owner may still commit");
    ok(old.commit(transaction).await);
    assert_eq!(ok(new.take(member(2), &[lane()]).await).len(), 1);
}

/// A late heartbeat has no consequences if no other member took the lane.
pub async fn an_owner_that_nobody_followed_goes_on(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let held = take(&inbox, 1, SHORT).await;
    h.pass(SHORT).await;
    let message = [arrival(1, "a")];
    let (transaction, entered) = open(inbox.begin(Enter { held: Some(&held), arrivals: &message }).await);
    finish(h, &inbox, transaction, &message, &entered).await;
    assert_eq!(take(&inbox, 1, LONG).await, held);
}

/// A slow handler does not block the heartbeats of its member.
pub async fn a_heartbeat_never_waits_for_a_handler(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let held = take(&inbox, 1, LONG).await;
    let begun = ok(inbox.begin(Enter { held: Some(&held), arrivals: &[arrival(1, "a")] }).await);
    assert!(matches!(begun, Begun::Open(..)));
    if let Some(orders) = beside(h, other.beat(&beat(1, LONG)).await) {
        assert!(!orders.was_dead);
    }
}

/// Other members do not wait for a member that leaves or releases a lane.
pub async fn what_is_given_back_is_free_at_once(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let lanes = [Lane::new("0"), Lane::new("1"), Lane::new("2")];
    ok(old.beat(&beat(1, LONG)).await);
    ok(new.beat(&beat(2, LONG)).await);
    let before = ok(old.take(member(1), &lanes).await);
    // Releasing another member's lanes has no effect.
    ok(new.give_back(member(2), &lanes).await);
    assert_eq!(ok(new.take(member(2), &lanes).await), []);
    ok(old.give_back(member(1), &lanes[..1]).await);
    let taken = ok(new.take(member(2), &lanes).await);
    assert_eq!(taken.iter().map(|held| &held.lane).collect::<Vec<_>>(), [&lanes[0]]);
    assert!(taken[0].epoch > before[0].epoch);
    lost(old.begin(Enter { held: Some(&before[0]), arrivals: &[arrival(1, "a")] }).await);
    let (transaction, _) = open(old.begin(Enter { held: Some(&before[1]), arrivals: &[arrival(1, "a")] }).await);
    ok(old.roll_back(transaction).await);
    ok(old.leave(member(1)).await);
    let taken = ok(new.take(member(2), &lanes).await);
    assert_eq!(taken.iter().map(|held| &held.lane).collect::<Vec<_>>(), lanes.iter().collect::<Vec<_>>());
    assert!(taken[1].epoch > before[1].epoch);
    lost(old.begin(Enter { held: Some(&before[1]), arrivals: &[arrival(2, "a")] }).await);
}

/// A member that had expired must learn this from its heartbeat, because its lanes may have moved.
pub async fn a_member_that_was_counted_as_dead_is_told(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    assert!(!ok(inbox.beat(&beat(1, SHORT)).await).was_dead, "the first time");
    assert!(!ok(inbox.beat(&beat(1, SHORT)).await).was_dead, "in time");
    h.pass(SHORT).await;
    assert!(ok(inbox.beat(&beat(1, LONG)).await).was_dead, "too late");
    assert!(!ok(inbox.beat(&beat(1, LONG)).await).was_dead, "in time again");
}
