//! The production relay on PostgreSQL: committed messages arrive once and in order, whatever else happens.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::relay_support::{
    BackgroundWriters, EmittedMessages, MAIN, RunningRelay, TestDatabase, config, store, wait_until, with,
};
use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::outbox::admin::DestinationChange;
use relevo_core::slot::{shard_of, slot_of};
use relevo_relay::{Advanced, Config};
use relevo_testkit::PgVersion;
use relevo_testkit::pgbouncer::PgBouncer;
use relevo_testkit::postgres::Server;
use tokio_util::sync::CancellationToken;

fn broker() -> MemoryBroker {
    MemoryBroker::new(BrokerConfig::default())
}

#[tokio::test]
async fn committed_messages_arrive_once_and_in_order_on_every_version() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let broker = broker();
        let relay = RunningRelay::start(world.store().await, &broker, config());
        let mut ledger = world.emit_many(3000, 40).await;
        ledger.add(BackgroundWriters::start(&world, 3).stop_after(&broker, 3300).await);
        ledger.add(world.emit_many(500, 3).await);
        world.wait_until_drained().await;
        relay.stop().await;
        assert_eq!(ledger.assert_received(&broker), 0, "PostgreSQL {}", version.major());
    }
}

#[tokio::test]
async fn a_broker_that_fences_order_gets_each_key_in_order() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig { ordered_in_flight: true, ..BrokerConfig::default() });
    let ledger = world.emit_many(5000, 5).await;
    let relay = RunningRelay::start(world.store().await, &broker, config());
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
}

#[tokio::test]
async fn the_relay_works_behind_pgbouncer_in_transaction_mode() {
    let world = TestDatabase::new().await;
    let pooler = PgBouncer::in_front_of(Server::shared(PgVersion::V15).url()).await;
    let broker = broker();
    let mut relays = Vec::new();
    for _ in 0..3 {
        let store = store(pooler.options_for(world.database.name()), MAIN).await;
        relays.push(RunningRelay::start(store, &broker, config()));
    }
    wait_until("three relays share the shards", async || world.shards_per_owner().await == [3, 3, 2]).await;
    let mut ledger = world.emit_many(2000, 20).await;
    ledger.add(BackgroundWriters::start(&world, 2).stop_after(&broker, 2200).await);
    world.wait_until_drained().await;
    for relay in relays {
        relay.stop().await;
    }
    assert_eq!(ledger.assert_received(&broker), 0);
    assert!(world.shards_per_owner().await.is_empty(), "leases are given back through the pooler too");
}

#[tokio::test]
async fn messages_confirmed_before_a_stop_are_not_sent_again() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let ledger = world.emit_many(5000, 100).await;
    let stop = CancellationToken::new();
    let (count, stop_on_limit) = (AtomicUsize::new(0), stop.clone());
    broker.on_receipt(move |_| {
        if count.fetch_add(1, Ordering::Relaxed) == 1000 {
            stop_on_limit.cancel();
        }
    });
    let small = Config { batch_messages_max: 50, in_flight_messages_max: 100, ..config() };
    let first = RunningRelay::start_with(world.store().await, &broker, small.clone(), stop);
    first.wait_until_stopped().await;
    let sent = broker.received_messages().len();
    assert!((1001..4000).contains(&sent), "it stopped in the middle: {sent}");

    let second = RunningRelay::start(world.store().await, &broker, small);
    world.wait_until_drained().await;
    second.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
}

/// A hot key delays the settlement of its own shard only.
#[tokio::test]
async fn shutdown_settles_messages_confirmed_behind_a_slow_key() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig { latency: Duration::from_millis(2), ..BrokerConfig::default() });
    let sql = "SELECT relevo.emit('orders', 'hot', 'Counted', '{}'), 'hot' FROM generate_series(1, 1000)";
    let mut ledger = EmittedMessages::read(&world.rows(sql).await);
    ledger.add(world.emit_many(5000, 500).await);
    let relay = RunningRelay::start(world.store().await, &broker, config());
    wait_until("all other keys are through", async || {
        broker.received_messages().iter().filter(|receipt| receipt.key != "hot").count() == 5000
    })
    .await;
    relay.stop().await;
    let sent = broker.received_messages().len();
    assert!(sent < 6000, "the hot key is not through: {sent}");
    let second = RunningRelay::start(world.store().await, &broker, config());
    world.wait_until_drained().await;
    second.stop().await;
    ledger.assert_received(&broker);
    let shard = |key: &str| shard_of(slot_of(key), 8);
    let again = broker.received_messages()[sent..].iter().filter(|receipt| shard(&receipt.key) != shard("hot")).count();
    assert_eq!(again, 0, "confirmed, of other shards, and sent again");
}

#[tokio::test]
async fn large_payloads_are_relayed_within_a_small_memory_limit() {
    const PAYLOAD: usize = 4 << 20;
    let world = TestDatabase::new().await;
    for _ in 0..50 {
        world
            .run(&format!(
                "SELECT relevo.emit_bytes('blobs', gen_random_uuid()::text, 'Blob', convert_to(repeat('x', {PAYLOAD}), \
                 'UTF8'), 'application/octet-stream')"
            ))
            .await;
    }
    let broker = MemoryBroker::new(BrokerConfig { latency: Duration::from_millis(5), ..BrokerConfig::default() });
    let relay = RunningRelay::start(
        world.store().await,
        &broker,
        Config { memory_max: 2 * PAYLOAD, batch_messages_max: 1, ..config() },
    );
    let (stats, most) = (Arc::clone(&relay.stats), Arc::new(AtomicU64::new(0)));
    let seen = Arc::clone(&most);
    broker.on_receipt(move |_| {
        seen.fetch_max(stats.attempts() - stats.published(), Ordering::Relaxed);
    });
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(broker.received(), 50);
    let most = most.load(Ordering::Relaxed);
    // Two payloads fill the memory. A third may have been read while one byte was still free.
    assert!((1..=3).contains(&most), "{most} payloads of 4 MiB were in memory, where 8 MiB are allowed");
}

#[tokio::test]
async fn an_unreachable_broker_does_not_delay_another_destination() {
    let world = TestDatabase::new().await;
    world.run("SELECT relevo.add_destination('other', 4, 'oldest')").await;
    let (dead, alive) = (broker(), broker());
    dead.down();
    let stuck = RunningRelay::start(world.store().await, &dead, config());
    let flowing = RunningRelay::start(world.store_for("other").await, &alive, config());
    let mut ledger = world.emit_many(1000, 10).await;
    ledger.add(BackgroundWriters::start(&world, 2).stop_after(&alive, 1300).await);
    world.wait_until_drained_for("other").await;
    assert_eq!(ledger.assert_received(&alive), 0);
    wait_until("the outage is noticed", async || stuck.stats.broker_outages() > 0).await;
    assert_eq!(dead.received(), 0);
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);

    dead.up();
    world.wait_until_drained().await;
    stuck.stop().await;
    flowing.stop().await;
    assert_eq!(ledger.assert_received(&dead), 0);
}

#[tokio::test]
async fn resharding_under_traffic_loses_and_reorders_nothing() {
    let world = TestDatabase::with_shards(4).await;
    let broker = broker();
    let mut relays = Vec::new();
    for _ in 0..2 {
        relays.push(RunningRelay::start(world.store().await, &broker, config()));
    }
    let traffic = BackgroundWriters::start(&world, 4);
    wait_until("traffic flows", async || broker.received() > 200).await;
    assert!(world.operator().await.update(DestinationChange::Shards(16)).await.expect("a destination"));
    wait_until("both relays hold half of sixteen shards", async || world.shards_per_owner().await == [8, 8]).await;
    let then = broker.received();
    wait_until("traffic flows on", async || broker.received() > then + 200).await;
    let ledger = traffic.stop().await;
    world.wait_until_drained().await;
    for relay in relays {
        relay.stop().await;
    }
    ledger.assert_received(&broker);
    assert_eq!(world.number("SELECT shards FROM relevo.destination").await, 16);
}

#[tokio::test]
async fn retention_under_traffic_blocks_no_emit_and_drops_nothing_unsent() {
    let world = TestDatabase::new().await;
    world.run("UPDATE relevo.settings SET partition_rows = 200, partitions_ahead = 3, retention = '0'").await;
    // The next number is the last of the first partition, so that small partitions follow.
    world.run("SELECT setval('relevo.message_seq', 999999)").await;
    let broker = broker();
    let upkeep = with(Advanced { maintenance_interval: Duration::from_millis(20), ..config().advanced });
    let relay = RunningRelay::start(world.store().await, &broker, upkeep);
    let traffic = BackgroundWriters::start(&world, 4);
    let partitions = "SELECT count(*) FROM pg_class WHERE relname = 'message_1'";
    wait_until("the first partition is dropped", async || world.number(partitions).await == 0).await;
    wait_until("some more were prepared", async || {
        world.number("SELECT max(end_seq) FROM relevo.message_partition").await > 1_002_000
    })
    .await;
    let ledger = traffic.stop().await;
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
    let retained = world.number("SELECT count(*) FROM relevo.message").await;
    assert!(retained < ledger.len().try_into().expect("a count"), "no row was dropped");
}
