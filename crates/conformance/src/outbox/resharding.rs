//! Resharding: changes the number of shards without losing, repeating or reordering messages.

use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::outbox::admin::StartFrom;
use relevo_core::outbox::leases::ShardLeases;
use relevo_core::outbox::log::{OutboxReader, WindowLimit};
use relevo_core::outbox::parked::ParkedReader;
use relevo_core::outbox::{LogEntry, Position};

use crate::outbox::harness::{Harness, MAIN};
use crate::outbox::test_relay::{LONG, TestRelay, batch_ids, batch_keys, emit_all, emit_and_park, ids, retry};

/// One round of a relay: renew leases, then read and settle as far as the window limit allows.
async fn relay_round<S: ShardLeases + OutboxReader + ParkedReader>(
    relay: &mut TestRelay<S>,
    limit: usize,
) -> Vec<LogEntry> {
    let mut read = Vec::new();
    relay.lease(LONG).await;
    for (leases, page) in relay.read_groups(limit).await {
        let settled = relay.settle_some(&leases, page.end, Vec::new()).await;
        assert_eq!((settled.lost_shards.len(), settled.reread.len()), (0, 0));
        read.extend(page.entries);
    }
    read
}

/// Runs rounds until the relay holds shards of a destination with this number of shards.
async fn run_until_resharded<S: ShardLeases + OutboxReader + ParkedReader>(
    relay: &mut TestRelay<S>,
    shards: u16,
) -> Vec<LogEntry> {
    let mut read = Vec::new();
    for _ in 0..100 {
        read.extend(relay_round(relay, 3).await);
        if relay.leases.iter().all(|lease| lease.shard_count == shards) && relay.window_limit == WindowLimit::Unlimited
        {
            return read;
        }
    }
    panic!("the resharding never ends");
}

/// C7: parked keys belong to a slot and move to the owner of its new shard.
pub async fn parked_keys_move_to_their_new_owner(h: &mut impl Harness) {
    let mut first = TestRelay::start(h.store().await, 1).await;
    let keys: Vec<String> = (0..12).map(|number| format!("k-{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let waiting = emit_and_park(h, &mut first, &[&keys[..], &keys[..]].concat(), retry(Duration::ZERO, 1)).await;
    h.reshard(MAIN, 3).await;
    run_until_resharded(&mut first, 3).await;
    let mut second = TestRelay::start(h.store().await, 2).await;
    let give_back = first.leases[2..].to_vec();
    first.lease_and_release(LONG, give_back).await;
    second.lease(LONG).await;
    assert_eq!((first.leases.len(), second.leases.len()), (2, 1));

    let mut keys_found = Vec::new();
    for relay in [&first, &second] {
        let batches = relay.read_parked().await;
        for batch in &batches {
            assert_eq!(relay.lease_of_slot(batch.slot).shard_count, 3);
            let expected: Vec<_> = waiting.iter().filter(|entry| entry.message.key == batch.key).cloned().collect();
            assert_eq!(batch_ids(batch), ids(&expected));
        }
        keys_found.extend(batch_keys(&batches));
    }
    keys_found.sort();
    let mut expected: Vec<_> = keys.iter().map(ToString::to_string).collect();
    expected.sort();
    assert_eq!(keys_found, expected);
}

/// From 4 shards to 16, with two relays, half-read pages, shards at different positions, and active writers.
pub async fn resharding_loses_and_reorders_nothing(h: &mut impl Harness) {
    h.add_destination("moving", 4, StartFrom::Oldest).await;
    let mut relays =
        [TestRelay::start(h.store_for("moving").await, 1).await, TestRelay::new(h.store_for("moving").await, 2)];
    relays[1].lease(LONG).await;
    let give_back = relays[0].leases[2..].to_vec();
    relays[0].lease_and_release(LONG, give_back).await;
    let keys: Vec<String> = (0..10).map(|number| format!("k-{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut emitted: Vec<(usize, MessageId)> = Vec::new();
    let mut read = Vec::new();
    for round in 0..40 {
        emitted.extend(emit_all(h, &keys).await.into_iter().enumerate());
        if round == 4 {
            h.reshard("moving", 16).await;
        }
        // One relay is slower, so that their shards are at different ticks.
        for (index, limit) in [(0, 2), (1, 7)] {
            if index == 1 || round % 3 == 0 {
                read.extend(relay_round(&mut relays[index], limit).await);
            }
        }
    }
    let [mut first, mut second] = relays;
    for _ in 0..20 {
        read.extend(relay_round(&mut first, 100).await);
        read.extend(relay_round(&mut second, 100).await);
    }
    assert_eq!(first.leases.len() + second.leases.len(), 16, "the resharding has ended");
    read.extend(first.drain(100).await);
    read.extend(second.drain(100).await);
    assert_eq!(read.len(), emitted.len());
    for (index, key) in keys.iter().enumerate() {
        let expected: Vec<_> = emitted.iter().filter(|(of, _)| *of == index).map(|(_, id)| *id).collect();
        let actual: Vec<_> = read.iter().filter(|entry| *entry.message.key == **key).cloned().collect();
        assert_eq!(ids(&actual), expected, "key {key}");
    }
}

/// An owner that heard of the resharding late has opened another window; the other shards advance to its end.
pub async fn an_owner_with_a_newer_window_does_not_stop_resharding(h: &mut impl Harness) {
    h.add_destination("moving", 2, StartFrom::Oldest).await;
    let mut first = TestRelay::start(h.store_for("moving").await, 1).await;
    let mut second = TestRelay::start(h.store_for("moving").await, 2).await;
    let give_back = first.leases[1..].to_vec();
    first.lease_and_release(LONG, give_back).await;
    second.lease(LONG).await;
    let mut emitted = emit_all(h, &["a", "b", "c", "d"]).await;
    let mut read = first.drain(10).await;
    h.reshard("moving", 4).await;
    // All windows are finished, at different ticks: the shards must meet at the tick of the first relay.
    read.extend(relay_round(&mut first, 10).await);
    read.extend(relay_round(&mut first, 10).await);
    assert!(matches!(first.window_limit, WindowLimit::UntilTick(_)));
    // The second relay has not renewed since, so it still reads without a window limit.
    emitted.extend(emit_all(h, &["a", "b", "c", "d"]).await);
    read.extend(second.drain(10).await);
    for _ in 0..10 {
        read.extend(relay_round(&mut first, 10).await);
        read.extend(relay_round(&mut second, 10).await);
    }
    assert_eq!(first.leases.len() + second.leases.len(), 4, "the resharding has ended");
    read.extend(first.drain(10).await);
    read.extend(second.drain(10).await);
    let mut actual = ids(&read);
    actual.sort();
    emitted.sort();
    assert_eq!(actual, emitted);
}

/// Resharding revokes every lease, even if the number of shards stays the same.
pub async fn a_lease_from_before_resharding_settles_nothing(h: &mut impl Harness) {
    let mut relay = TestRelay::start(h.store().await, 1).await;
    let before = relay.leases.clone();
    h.reshard(MAIN, 8).await;
    for _ in 0..10 {
        relay_round(&mut relay, 10).await;
    }
    assert_eq!(relay.leases.len(), 8);
    assert!(relay.leases.iter().zip(&before).all(|(new, old)| new.epoch > old.epoch));
    let emitted = emit_all(h, &["a", "b"]).await;
    let page = relay.read(10).await;
    let settled = relay.settle_some(&before, Position::at(page.end.from_tick()), Vec::new()).await;
    assert_eq!(settled.lost_shards.len(), 8);
    assert_eq!(ids(&relay.drain(10).await), emitted);
}
