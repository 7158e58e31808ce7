//! Two owners at once: the one that lost its lease cannot change anything.

use std::time::Duration;

use relevo_core::store::{Advanced, DeadFilter, DeadLetters, Leases, Mark, Settled, Stop};

use crate::harness::{MAIN, SHARDS, Start, StoreHarness};
use crate::relay::{LEASE, LONG, Relay, behind, emit, emit_all, ids, ok, park, parked, retry, run_ids, stopped};

const ALL: [u16; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

/// Progress, parks and dead letters of an old owner are rejected and leave nothing behind.
pub async fn the_old_owner_can_settle_nothing(h: &mut impl StoreHarness) {
    let mut old = Relay::new(h.store().await, 1);
    old.lease(LEASE).await;
    let emitted = emit_all(h, &["a", "a", "b", "c"]).await;
    let page = old.read(10).await;
    h.let_pass(LEASE * 2).await;
    let mut new = Relay::start(h.store().await, 2).await;
    assert_eq!(new.leases.len(), usize::from(SHARDS));

    let parks = vec![
        park(&page.entries[0], retry(Duration::ZERO, 1)),
        behind(&page.entries[1]),
        park(&page.entries[2], stopped(Stop::DeadHold, 1)),
        park(&page.entries[3], stopped(Stop::Address { address: "x".into(), after: Duration::ZERO }, 0)),
    ];
    let mut settled = old.settle(page.end, parks).await;
    settled.lost.sort_unstable();
    assert_eq!(settled, Settled { lost: ALL.to_vec(), passed: Vec::new() });

    assert_eq!(new.lease(LONG).await.holds, []);
    assert!(new.due().await.is_empty());
    assert!(ok(new.store.dead(&DeadFilter::default(), 10).await).is_empty());
    assert!(ok(new.store.standing(&new.leases).await).iter().all(|standing| standing.parked.is_empty()));
    assert_eq!(ids(&new.drain(10).await), emitted);
    let settled = old.settle(page.end, Vec::new()).await;
    assert_eq!(settled.lost.len(), 8, "not even progress");
}

/// Runs and marks of an old owner are rejected, and the key stays parked unchanged.
pub async fn the_old_owner_can_carry_out_and_advance_nothing(h: &mut impl StoreHarness) {
    let mut old = Relay::new(h.store().await, 1);
    old.lease(LEASE).await;
    let entries = parked(h, &mut old, &["a", "a"], retry(Duration::ZERO, 1)).await;
    parked(h, &mut old, &["b"], stopped(Stop::DeadHold, 1)).await;
    let runs = old.due().await;
    assert_eq!(runs.len(), 1);
    h.let_pass(LEASE * 2).await;
    let new = Relay::start(h.store().await, 2).await;

    assert_eq!(old.advance(&runs[0], 2, None).await, Advanced::Lost);
    assert_eq!(old.advance(&runs[0], 0, Some(stopped(Stop::DeadHold, 5))).await, Advanced::Lost);
    let mark = Mark { filter: DeadFilter::default(), dry_run: false, by: "ana".into(), reason: "mended".into() };
    assert_eq!(ok(old.store.redrive(&mark).await), 1);
    assert!(old.due().await.is_empty());
    assert_eq!(ok(old.store.dead(&DeadFilter::default(), 10).await)[0].state, "redriving", "only marked");

    let runs = new.due().await;
    let run = runs.iter().find(|run| &*run.key == "a").expect("the key still waits");
    assert_eq!(run_ids(run), ids(&entries));
    assert!(runs.iter().any(|run| &*run.key == "b"), "the new owner carries out the mark");
}

/// The new owner loads what the old one settled, also in mid-window, and what it parked.
pub async fn the_new_owner_begins_where_the_old_one_settled(h: &mut impl StoreHarness) {
    let mut old = Relay::new(h.store().await, 1);
    old.lease(LEASE).await;
    let emitted = emit_all(h, &["a", "b", "c", "d", "e"]).await;
    let page = old.read(3).await;
    old.settle(page.end, vec![park(&page.entries[1], retry(LONG, 1))]).await;
    h.let_pass(LEASE * 2).await;

    let mut new = Relay::start(h.store().await, 2).await;
    assert!(new.leases.iter().all(|lease| new.position(lease) == page.end));
    let standings = ok(new.store.standing(&new.leases).await);
    let waiting: Vec<_> = standings.iter().flat_map(|standing| &standing.parked).map(ToString::to_string).collect();
    assert_eq!(waiting, ["b"]);
    assert_eq!(ids(&new.drain(10).await), emitted[3..]);
}

/// Only a new owner revokes a lease, not the clock: late confirmations can still be settled.
pub async fn an_expired_lease_that_nobody_took_still_settles(h: &mut impl StoreHarness) {
    let mut relay = Relay::new(h.store().await, 1);
    relay.lease(LEASE).await;
    emit(h, "a").await;
    let page = relay.read(10).await;
    h.let_pass(LEASE * 2).await;
    assert_eq!(relay.settle(page.end, Vec::new()).await, Settled::default());
    assert_eq!(ids(&relay.drain(10).await), []);
}

/// One call has one result per shard: shards still held are settled, lost ones are not.
pub async fn a_lost_shard_beside_a_held_one_is_settled_apart(h: &mut impl StoreHarness) {
    h.add_destination("two", 2, Start::Oldest).await;
    h.remove_destination(MAIN).await;
    let mut old = Relay::start(h.store_for("two").await, 1).await;
    let keys: Vec<String> = (0..8).map(|number| format!("k-{number}")).collect();
    emit_all(h, &keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let both = old.leases.clone();
    let page = old.read(100).await;
    let (kept, lost) = (both[0], both[1]);
    let mut new = Relay::start(h.store_for("two").await, 2).await;
    old.lease_giving(LONG, vec![lost]).await;
    new.lease(LONG).await;
    assert_eq!(new.leases.iter().map(|lease| lease.shard).collect::<Vec<_>>(), [lost.shard]);

    let of = |shard: u16| page.entries.iter().filter(move |entry| entry.slot % 2 == shard);
    let parks = page.entries.iter().map(|entry| park(entry, retry(Duration::ZERO, 1))).collect();
    let settled = old.settle_some(&both, page.end, parks).await;
    assert_eq!(settled, Settled { lost: vec![lost.shard], passed: Vec::new() });
    assert_eq!(old.due().await.len(), of(kept.shard).count());
    assert!(new.due().await.is_empty());
    assert_eq!(new.drain(100).await.len(), of(lost.shard).count());
    assert_eq!(old.drain(100).await.len(), 0);
}
