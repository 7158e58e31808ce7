//! Two owners at once: the one that lost its lease cannot change anything.

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::dead_letters::{DeadLetterFilter, DeadLetterState, MarkAction, MarkRequest};
use relevo_core::outbox::admin::StartFrom;
use relevo_core::outbox::log::{ParkAction, SettleResult};
use relevo_core::outbox::parked::ParkedResult;

use crate::dead_letters::DeadLetterCalls as _;
use crate::outbox::harness::{Harness, MAIN, SHARDS};
use crate::outbox::test_relay::{
    LEASE, LONG, TestRelay, batch_ids, emit, emit_all, emit_and_park, failed, ids, must, park, park_behind, retry,
};

const ALL: [u16; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Progress, parks and dead letters of an old owner are rejected and leave nothing behind.
pub async fn the_old_owner_can_settle_nothing(h: &mut impl Harness) {
    let mut old = TestRelay::new(h.store().await, 1);
    old.lease(LEASE).await;
    let emitted = emit_all(h, &["a", "a", "b", "c"]).await;
    let page = old.read(10).await;
    h.advance_time(LEASE * 2).await;
    let mut new = TestRelay::start(h.store().await, 2).await;
    assert_eq!(new.leases.len(), usize::from(SHARDS));

    let parked = vec![
        park(&page.entries[0], retry(Duration::ZERO, 1)),
        park_behind(&page.entries[1]),
        park(&page.entries[2], failed(ParkAction::DeadLetter(AfterDead::Hold), 1)),
        park(&page.entries[3], failed(ParkAction::HoldAddress { address: "x".into(), after: Duration::ZERO }, 0)),
    ];
    let mut settled = old.settle(page.end.clone(), parked).await;
    settled.lost_shards.sort_unstable();
    assert_eq!(settled, SettleResult { lost_shards: ALL.to_vec(), reread: Vec::new() });

    assert_eq!(new.lease(LONG).await.held_addresses, []);
    assert!(new.read_parked().await.is_empty());
    assert!(must(h.operator().await.summaries(&DeadLetterFilter::of_destination(MAIN), 10).await).is_empty());
    assert!(new.load_shards().await.iter().all(|shard| shard.parked_keys.is_empty()));
    assert_eq!(ids(&new.drain(10).await), emitted);
    let settled = old.settle(page.end, Vec::new()).await;
    assert_eq!(settled.lost_shards.len(), 8, "not even progress");
}

/// Parked results and marks of an old owner are rejected, and the key stays parked unchanged.
pub async fn the_old_owner_can_settle_no_parked_key(h: &mut impl Harness) {
    let mut old = TestRelay::new(h.store().await, 1);
    old.lease(LEASE).await;
    let entries = emit_and_park(h, &mut old, &["a", "a"], retry(Duration::ZERO, 1)).await;
    emit_and_park(h, &mut old, &["b"], failed(ParkAction::DeadLetter(AfterDead::Hold), 1)).await;
    let batches = old.read_parked().await;
    assert_eq!(batches.len(), 1);
    h.advance_time(LEASE * 2).await;
    let new = TestRelay::start(h.store().await, 2).await;

    assert_eq!(old.settle_parked(&batches[0], 2, None).await, ParkedResult::LeaseLost);
    assert_eq!(
        old.settle_parked(&batches[0], 0, Some(failed(ParkAction::DeadLetter(AfterDead::Hold), 5))).await,
        ParkedResult::LeaseLost
    );
    let mark = MarkRequest {
        filter: DeadLetterFilter::of_destination(MAIN),
        action: MarkAction::Redrive,
        dry_run: false,
        rate_per_second: None,
        by: "ana".into(),
        reason: "fixed".into(),
    };
    assert_eq!(must(h.operator().await.redrive(&mark).await), 1);
    assert!(old.read_parked().await.is_empty());
    assert_eq!(
        must(h.operator().await.summaries(&DeadLetterFilter::of_destination(MAIN), 10).await)[0].state,
        DeadLetterState::Redriving,
        "only marked"
    );

    let batches = new.read_parked().await;
    let batch = batches.iter().find(|batch| &*batch.key == "a").expect("the key still waits");
    assert_eq!(batch_ids(batch), ids(&entries));
    assert!(batches.iter().any(|batch| &*batch.key == "b"), "the new owner applies the mark");
}

/// The new owner loads the position of the old one, also in mid-window, and the parked keys.
pub async fn the_new_owner_begins_where_the_old_one_settled(h: &mut impl Harness) {
    let mut old = TestRelay::new(h.store().await, 1);
    old.lease(LEASE).await;
    let emitted = emit_all(h, &["a", "b", "c", "d", "e"]).await;
    let page = old.read(3).await;
    old.settle(page.end.clone(), vec![park(&page.entries[1], retry(LONG, 1))]).await;
    h.advance_time(LEASE * 2).await;

    let mut new = TestRelay::start(h.store().await, 2).await;
    assert!(new.leases.iter().all(|lease| new.position(lease) == page.end));
    let shards = new.load_shards().await;
    let waiting: Vec<_> = shards.iter().flat_map(|shard| &shard.parked_keys).map(ToString::to_string).collect();
    assert_eq!(waiting, ["b"]);
    assert_eq!(ids(&new.drain(10).await), emitted[3..]);
}

/// Only a new owner revokes a lease, not the clock: late confirmations can still be settled.
pub async fn an_expired_lease_that_was_not_taken_over_still_settles(h: &mut impl Harness) {
    let mut relay = TestRelay::new(h.store().await, 1);
    relay.lease(LEASE).await;
    emit(h, "a").await;
    let page = relay.read(10).await;
    h.advance_time(LEASE * 2).await;
    assert_eq!(relay.settle(page.end, Vec::new()).await, SettleResult::default());
    assert_eq!(ids(&relay.drain(10).await), []);
}

/// One call has one result per shard: shards still held are settled, lost ones are not.
pub async fn a_lost_shard_does_not_affect_a_held_one(h: &mut impl Harness) {
    h.add_destination("two", 2, StartFrom::Oldest).await;
    h.remove_destination(MAIN).await;
    let mut old = TestRelay::start(h.store_for("two").await, 1).await;
    let keys: Vec<String> = (0..8).map(|number| format!("k-{number}")).collect();
    emit_all(h, &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let both = old.leases.clone();
    let page = old.read(100).await;
    let (retained, lost) = (both[0], both[1]);
    let mut new = TestRelay::start(h.store_for("two").await, 2).await;
    old.lease_and_release(LONG, vec![lost]).await;
    new.lease(LONG).await;
    assert_eq!(new.leases.iter().map(|lease| lease.shard).collect::<Vec<_>>(), [lost.shard]);

    let of = |shard: u16| page.entries.iter().filter(move |entry| entry.slot % 2 == shard);
    let parked = page.entries.iter().map(|entry| park(entry, retry(Duration::ZERO, 1))).collect();
    let settled = old.settle_some(&both, page.end, parked).await;
    assert_eq!(settled, SettleResult { lost_shards: vec![lost.shard], reread: Vec::new() });
    assert_eq!(old.read_parked().await.len(), of(retained.shard).count());
    assert!(new.read_parked().await.is_empty());
    assert_eq!(new.drain(100).await.len(), of(lost.shard).count());
    assert_eq!(old.drain(100).await.len(), 0);
}
