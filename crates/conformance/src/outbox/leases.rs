//! Leases: each shard has one owner at a time.

use std::collections::BTreeSet;

use relevo_core::outbox::leases::{Lease, LeaseRequest, ShardLeases};
use relevo_core::store::StoreError;

use crate::outbox::harness::{Harness, MAIN, SHARDS};
use crate::outbox::test_relay::{LEASE, LONG, TestRelay};

fn shards(leases: &[Lease]) -> BTreeSet<u16> {
    leases.iter().map(|lease| lease.shard).collect()
}

/// One owner holds all shards, two hold half each, three hold at most their fair share.
pub async fn shards_are_shared_evenly(h: &mut impl Harness) {
    let mut relays = Vec::new();
    for number in 1..=3 {
        relays.push(TestRelay::new(h.store().await, number));
        for _ in 0..3 {
            for relay in &mut relays {
                let response = relay.lease(LONG).await;
                let more = response.leases.iter().skip(response.fair_share).copied().collect();
                relay.lease_and_release(LONG, more).await;
            }
        }
        let fair = usize::from(SHARDS).div_ceil(relays.len());
        let mut all = BTreeSet::new();
        for relay in &mut relays {
            assert_eq!(relay.lease(LONG).await.fair_share, fair);
            assert!((1..=fair).contains(&relay.leases.len()));
            assert!(relay.leases.iter().all(|lease| lease.shard_count == SHARDS && lease.owner == relay.owner));
            all.extend(shards(&relay.leases));
        }
        let count: usize = relays.iter().map(|relay| relay.leases.len()).sum();
        assert_eq!((all.len(), count), (usize::from(SHARDS), usize::from(SHARDS)), "each shard has one owner");
    }
}

/// Other owners do not wait for one that leaves, and it no longer counts for the fair share.
pub async fn an_owner_that_leaves_frees_its_shards_at_once(h: &mut impl Harness) {
    let mut first = TestRelay::start(h.store().await, 1).await;
    let epoch = first.leases[0].epoch;
    let mut second = TestRelay::start(h.store().await, 2).await;
    assert_eq!(second.leases, []);
    first.release_all().await;
    assert_eq!(second.lease(LONG).await.fair_share, usize::from(SHARDS));
    assert_eq!(second.leases.len(), usize::from(SHARDS));
    assert!(second.leases.iter().all(|lease| lease.epoch > epoch));
}

/// This includes leases it does not know of because a reply was lost, but no lease of another owner.
pub async fn releasing_frees_every_lease_of_the_owner(h: &mut impl Harness) {
    let mut first = TestRelay::start(h.store().await, 1).await;
    let mut second = TestRelay::start(h.store().await, 2).await;
    let more = first.leases[4..].to_vec();
    first.lease_and_release(LONG, more).await;
    second.lease(LONG).await;
    // The first relay has no leases in memory, as after a database error.
    first.leases.clear();
    first.release_all().await;
    let second_leases = second.leases.clone();
    second.lease(LONG).await;
    assert_eq!(second.leases.len(), usize::from(SHARDS));
    assert!(
        second_leases.iter().all(|lease| second.leases.contains(lease)),
        "the leases of the other owner are unchanged"
    );
}

/// An unresponsive owner keeps its shards until the leases expire; the next owner gets a higher epoch.
pub async fn a_lease_is_taken_over_only_after_it_expired(h: &mut impl Harness) {
    let mut first = TestRelay::new(h.store().await, 1);
    first.lease(LEASE).await;
    let mut second = TestRelay::start(h.store().await, 2).await;
    assert_eq!(second.leases, []);
    h.advance_time(LEASE / 3).await;
    second.lease(LONG).await;
    assert_eq!(second.leases, []);
    h.advance_time(LEASE).await;
    second.lease(LONG).await;
    assert_eq!(shards(&second.leases), shards(&first.leases));
    for (old, new) in first.leases.iter().zip(&second.leases) {
        assert!(new.epoch > old.epoch);
    }
}

/// No other owner came meanwhile: the owner continues with the same epoch and keeps its progress.
pub async fn an_expired_lease_that_was_not_taken_over_is_renewed(h: &mut impl Harness) {
    let mut relay = TestRelay::new(h.store().await, 1);
    let before = relay.lease(LEASE).await.leases;
    h.advance_time(LEASE * 2).await;
    assert_eq!(relay.lease(LONG).await.leases, before);
    let mut other = TestRelay::start(h.store().await, 2).await;
    assert_eq!(other.lease(LONG).await.leases, []);
}

/// Only the leases given back change owners.
pub async fn a_released_shard_is_free_for_others(h: &mut impl Harness) {
    let mut first = TestRelay::start(h.store().await, 1).await;
    let mut second = TestRelay::start(h.store().await, 2).await;
    let response = first.lease(LONG).await;
    assert_eq!((response.leases.len(), response.fair_share), (8, 4));
    let give_back = response.leases[4..].to_vec();
    first.lease_and_release(LONG, give_back.clone()).await;
    assert_eq!(first.leases, response.leases[..4]);
    second.lease(LONG).await;
    assert_eq!(shards(&second.leases), shards(&give_back));
    for (old, new) in give_back.iter().zip(&second.leases) {
        assert!(new.epoch > old.epoch);
    }
    // Giving back a lease that another owner holds now has no effect.
    first.lease_and_release(LONG, give_back).await;
    second.lease(LONG).await;
    assert_eq!(second.leases.len(), 4);
}

/// An operator disabled the destination.
pub async fn a_disabled_destination_leases_nothing(h: &mut impl Harness) {
    let relay = TestRelay::new(h.store().await, 1);
    let request = || LeaseRequest {
        owner: relay.owner,
        name: "relay".to_owned(),
        duration: LONG,
        held: Vec::new(),
        release: Vec::new(),
    };
    h.set_enabled(MAIN, false).await;
    let refused = relay.store.acquire_leases(request()).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    h.set_enabled(MAIN, true).await;
    assert_eq!(relay.store.acquire_leases(request()).await.map_or(0, |response| response.leases.len()), 8);
}

/// A misspelt destination is rejected immediately.
pub async fn an_unknown_destination_is_rejected(h: &mut impl Harness) {
    let store = h.store_for("no such destination").await;
    let owner = TestRelay::new(h.store().await, 1).owner;
    let refused = store
        .acquire_leases(LeaseRequest {
            owner,
            name: "relay".to_owned(),
            duration: LONG,
            held: Vec::new(),
            release: Vec::new(),
        })
        .await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
}
