//! Lanes: one member at a time, and a member that lost its lane cannot change anything.

use relevo_core::AfterDead;
use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::attempts::ClaimOutcome;
use relevo_core::inbox::retries::{InboxFailureAction, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, EnterOutcome};
use relevo_core::inbox::{Fence, InboxState, LaneLease};

use super::harness::Harness;
use super::harness::ports::*;
use super::steps::{
    BILLING, LONG, REAL_WAIT, SHORT, acquire_lane, all_dead_letters, assert_fenced, during_write, failure, finish,
    heartbeat, inbox_message, lane, lines, member, must, must_commit, must_open, retry,
};
use crate::dead_letters::DeadLetterCalls as _;

/// Members that are alive do not take each other's lanes.
pub async fn a_lane_belongs_to_one_member(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let lanes = [Lane::new("0"), Lane::new("1")];
    must(first.heartbeat(&heartbeat(1, LONG)).await);
    must(second.heartbeat(&heartbeat(2, LONG)).await);
    let leases = must(first.acquire_lanes(member(1), &lanes).await);
    assert_eq!(leases.iter().map(|lease| lease.lane.clone()).collect::<Vec<_>>(), lanes);
    assert!(leases.iter().all(|lease| lease.owner == member(1)));
    assert_eq!(must(second.acquire_lanes(member(2), &lanes).await), []);
    assert_eq!(must(first.acquire_lanes(member(1), &lanes).await), leases, "its leases are unchanged");
    let further = [lanes[0].clone(), Lane::new("2")];
    let acquired = must(second.acquire_lanes(member(2), &further).await);
    assert_eq!(acquired.iter().map(|lease| &lease.lane).collect::<Vec<_>>(), [&further[1]]);
}

/// Members request lanes at the same time.
pub async fn concurrent_members_share_the_lanes(h: &mut impl Harness) {
    let (first, second) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    must(first.heartbeat(&heartbeat(1, LONG)).await);
    must(second.heartbeat(&heartbeat(2, LONG)).await);
    let lanes: Vec<Lane> = (0..16).map(|number| Lane::new(format!("{number:02}"))).collect();
    let backward: Vec<Lane> = lanes.iter().rev().cloned().collect();
    let (one, other) = tokio::join!(first.acquire_lanes(member(1), &lanes), second.acquire_lanes(member(2), &backward));
    let mut all: Vec<Lane> = must(one).into_iter().chain(must(other)).map(|lease| lease.lane).collect();
    all.sort();
    assert_eq!(all, lanes, "each lane has one owner");
}

/// Consumers share no lanes.
pub async fn each_consumer_has_its_own_lanes(h: &mut impl Harness) {
    acquire_lane(&h.inbox(BILLING).await, 1, LONG).await;
    acquire_lane(&h.inbox("shipping").await, 2, LONG).await;
}

/// Without a heartbeat that can expire, no other member could ever take over its lanes.
pub async fn a_member_without_a_heartbeat_acquires_no_lane(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    assert_eq!(must(inbox.acquire_lanes(member(1), &[lane()]).await), []);
    must(inbox.heartbeat(&heartbeat(1, SHORT)).await);
    h.advance_time(SHORT).await;
    assert_eq!(must(inbox.acquire_lanes(member(1), &[lane()]).await), []);
    acquire_lane(&inbox, 2, LONG).await;
}

/// Another member takes the lane of an expired one. Later calls of the expired member are rejected without effect.
pub async fn a_fenced_member_changes_nothing(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let before = acquire_lane(&old, 1, SHORT).await;
    let called = inbox_message(2, "b");
    let ClaimOutcome::Claimed(claim) = must(old.claim_call(&called, Some(&before), LONG).await) else {
        panic!("it is free")
    };
    h.advance_time(SHORT).await;
    let after = acquire_lane(&new, 2, LONG).await;
    assert!(after.epoch > before.epoch, "{} is not above {}", after.epoch, before.epoch);
    let message = [inbox_message(1, "a")];
    assert_fenced(old.begin(&message, Fence::Live { lane: Some(&before) }).await);
    assert_eq!(must(old.claim_call(&message[0], Some(&before), LONG).await), ClaimOutcome::Fenced);
    for action in [
        InboxFailureAction::Retry { after: SHORT },
        InboxFailureAction::DeadLetter(AfterDead::Hold),
        InboxFailureAction::DeadLetter(AfterDead::Continue),
    ] {
        let recorded = old.record_failure(&message[0], Fence::Live { lane: Some(&before) }, &failure(action, 1)).await;
        assert_eq!(must(recorded), RecordOutcome::Fenced);
    }
    assert_fenced(old.begin(std::slice::from_ref(&called), Fence::Call { lane: Some(&before), claim }).await);
    assert_eq!(
        must(old.record_failure(&called, Fence::Call { lane: Some(&before), claim }, &retry(SHORT, 1)).await),
        RecordOutcome::Fenced
    );
    assert_eq!(must(h.operator().await.summaries(&all_dead_letters(), 10).await), []);
    let (transaction, entered) = must_open(new.begin(&message, Fence::Live { lane: Some(&after) }).await);
    assert_eq!(entered, [EnterOutcome::New]);
    finish(h, &new, transaction, &message, &entered).await;
    assert_eq!(h.effects().await, lines(&[1]));
}

/// Owner and epoch must both match.
pub async fn a_lane_lease_needs_owner_and_epoch(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let lease = acquire_lane(&inbox, 1, LONG).await;
    let wrong = [
        LaneLease { epoch: lease.epoch - 1, ..lease.clone() },
        LaneLease { epoch: lease.epoch + 1, ..lease.clone() },
        LaneLease { owner: member(2), ..lease.clone() },
        LaneLease { lane: Lane::new("other"), ..lease.clone() },
    ];
    for lease in &wrong {
        assert_fenced(inbox.begin(&[inbox_message(1, "a")], Fence::Live { lane: Some(lease) }).await);
    }
    must_open(inbox.begin(&[inbox_message(1, "a")], Fence::Live { lane: Some(&lease) }).await);
}

/// A suspended worker cannot commit after its lane moved, because the lane does not move while its transaction is open.
pub async fn a_lane_does_not_move_under_an_open_transaction(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let before = acquire_lane(&old, 1, REAL_WAIT).await;
    must(new.heartbeat(&heartbeat(2, LONG)).await);
    let message = [inbox_message(1, "a")];
    let (transaction, entered) = must_open(old.begin(&message, Fence::Live { lane: Some(&before) }).await);
    h.advance_time(REAL_WAIT).await;
    let acquired = during_write(h, new.acquire_lanes(member(2), &[lane()]).await);
    assert!(acquired.is_none_or(|leases| leases.is_empty()), "the old owner may still commit");
    finish(h, &old, transaction, &message, &entered).await;
    let after = must(new.acquire_lanes(member(2), &[lane()]).await).remove(0);
    assert_fenced(old.begin(&[inbox_message(2, "a")], Fence::Live { lane: Some(&before) }).await);
    let (transaction, entered) = must_open(new.begin(&message, Fence::Live { lane: Some(&after) }).await);
    assert_eq!(entered, [EnterOutcome::Duplicate(InboxState::Done)]);
    must(new.rollback(transaction).await);
    assert_eq!(h.effects().await, lines(&[1]));
}

/// The same for the result of a call.
pub async fn a_lane_does_not_move_while_a_result_is_committed(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let before = acquire_lane(&old, 1, REAL_WAIT).await;
    must(new.heartbeat(&heartbeat(2, LONG)).await);
    let message = inbox_message(1, "a");
    let ClaimOutcome::Claimed(claim) = must(old.claim_call(&message, Some(&before), LONG).await) else {
        panic!("it is free")
    };
    let (transaction, _) =
        must_open(old.begin(std::slice::from_ref(&message), Fence::Call { lane: Some(&before), claim }).await);
    h.advance_time(REAL_WAIT).await;
    let acquired = during_write(h, new.acquire_lanes(member(2), &[lane()]).await);
    assert!(acquired.is_none_or(|leases| leases.is_empty()), "the old owner may still commit");
    must_commit(old.commit(transaction, &[]).await);
    assert_eq!(must(new.acquire_lanes(member(2), &[lane()]).await).len(), 1);
}

/// A late heartbeat has no consequences if no other member took the lane.
pub async fn an_expired_owner_without_a_successor_continues(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    let lease = acquire_lane(&inbox, 1, SHORT).await;
    h.advance_time(SHORT).await;
    let message = [inbox_message(1, "a")];
    let (transaction, entered) = must_open(inbox.begin(&message, Fence::Live { lane: Some(&lease) }).await);
    finish(h, &inbox, transaction, &message, &entered).await;
    assert_eq!(acquire_lane(&inbox, 1, LONG).await, lease);
}

/// A slow handler does not block the heartbeats of its member.
pub async fn a_heartbeat_never_waits_for_a_handler(h: &mut impl Harness) {
    let (inbox, other) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let lease = acquire_lane(&inbox, 1, LONG).await;
    let outcome = must(inbox.begin(&[inbox_message(1, "a")], Fence::Live { lane: Some(&lease) }).await);
    assert!(matches!(outcome, BeginOutcome::Open(..)));
    if let Some(reply) = during_write(h, other.heartbeat(&heartbeat(1, LONG)).await) {
        assert!(!reply.expired);
    }
}

/// Other members do not wait for a member that leaves or releases a lane.
pub async fn a_released_lane_is_free_at_once(h: &mut impl Harness) {
    let (old, new) = (h.inbox(BILLING).await, h.inbox(BILLING).await);
    let lanes = [Lane::new("0"), Lane::new("1"), Lane::new("2")];
    must(old.heartbeat(&heartbeat(1, LONG)).await);
    must(new.heartbeat(&heartbeat(2, LONG)).await);
    let before = must(old.acquire_lanes(member(1), &lanes).await);
    // Releasing another member's lanes has no effect.
    must(new.release_lanes(member(2), &lanes).await);
    assert_eq!(must(new.acquire_lanes(member(2), &lanes).await), []);
    must(old.release_lanes(member(1), &lanes[..1]).await);
    let acquired = must(new.acquire_lanes(member(2), &lanes).await);
    assert_eq!(acquired.iter().map(|lease| &lease.lane).collect::<Vec<_>>(), [&lanes[0]]);
    assert!(acquired[0].epoch > before[0].epoch);
    assert_fenced(old.begin(&[inbox_message(1, "a")], Fence::Live { lane: Some(&before[0]) }).await);
    let (transaction, _) = must_open(old.begin(&[inbox_message(1, "a")], Fence::Live { lane: Some(&before[1]) }).await);
    must(old.rollback(transaction).await);
    must(old.leave(member(1)).await);
    let acquired = must(new.acquire_lanes(member(2), &lanes).await);
    assert_eq!(acquired.iter().map(|lease| &lease.lane).collect::<Vec<_>>(), lanes.iter().collect::<Vec<_>>());
    assert!(acquired[1].epoch > before[1].epoch);
    assert_fenced(old.begin(&[inbox_message(2, "a")], Fence::Live { lane: Some(&before[1]) }).await);
}

/// A member that had expired must learn this from its heartbeat, because its lanes may have moved.
pub async fn a_heartbeat_reply_reports_the_expiry(h: &mut impl Harness) {
    let inbox = h.inbox(BILLING).await;
    assert!(!must(inbox.heartbeat(&heartbeat(1, SHORT)).await).expired, "the first time");
    assert!(!must(inbox.heartbeat(&heartbeat(1, SHORT)).await).expired, "in time");
    h.advance_time(SHORT).await;
    assert!(must(inbox.heartbeat(&heartbeat(1, LONG)).await).expired, "too late");
    assert!(!must(inbox.heartbeat(&heartbeat(1, LONG)).await).expired, "in time again");
}
