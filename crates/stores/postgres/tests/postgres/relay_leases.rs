//! Several relays: which relay holds which shard, and what a relay with a lost lease can still do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::relay_support::{BackgroundWriters, RunningRelay, TestDatabase, config, short_leases, wait_until};
use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
use relevo_relay::{Advanced, Config, Relay};
use tokio_util::sync::CancellationToken;

fn broker() -> MemoryBroker {
    MemoryBroker::new(BrokerConfig::default())
}

/// Leases long enough to survive on a slow machine.
fn long_lease_config() -> Config {
    Config { lease_duration: Duration::from_secs(5), ..config() }
}

/// Counts the shards with a live lease.
async fn held_shards(world: &TestDatabase) -> i64 {
    world.number("SELECT count(*) FROM relevo.lease WHERE owner IS NOT NULL AND expires_at > clock_timestamp()").await
}

#[tokio::test]
async fn three_relays_share_eight_shards_evenly() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let first = RunningRelay::start(world.store().await, &broker, short_leases());
    wait_until("one relay holds everything", async || world.shards_per_owner().await == [8]).await;
    let second = RunningRelay::start(world.store().await, &broker, short_leases());
    wait_until("two relays hold half each", async || world.shards_per_owner().await == [4, 4]).await;
    let third = RunningRelay::start(world.store().await, &broker, short_leases());
    wait_until("three relays share evenly", async || world.shards_per_owner().await == [3, 3, 2]).await;
    first.stop().await;
    wait_until("two relays hold half each again", async || world.shards_per_owner().await == [4, 4]).await;
    second.stop().await;
    third.stop().await;
    assert!(world.shards_per_owner().await.is_empty());
}

#[tokio::test]
async fn joining_and_leaving_relays_repeat_lose_and_reorder_nothing() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let traffic = BackgroundWriters::start(&world, 4);
    let more = async |count: u64| {
        let then = broker.received();
        wait_until("traffic flows", async || broker.received() >= then + count).await;
    };
    let first = RunningRelay::start(world.store().await, &broker, long_lease_config());
    more(100).await;
    let second = RunningRelay::start(world.store().await, &broker, long_lease_config());
    let third = RunningRelay::start(world.store().await, &broker, long_lease_config());
    wait_until("three relays share evenly", async || world.shards_per_owner().await == [3, 3, 2]).await;
    more(100).await;
    first.stop().await;
    more(100).await;
    let fourth = RunningRelay::start(world.store().await, &broker, long_lease_config());
    wait_until("three relays share evenly", async || world.shards_per_owner().await == [3, 3, 2]).await;
    second.stop().await;
    third.stop().await;
    more(100).await;
    let ledger = traffic.stop().await;
    world.wait_until_drained().await;
    fourth.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0, "a relay that stops cleanly settles what it sent");
    world.assert_epochs_never_decrease().await;
}

#[tokio::test]
async fn a_relay_that_dies_is_replaced_within_the_lease() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let stays = RunningRelay::start(world.store().await, &broker, short_leases());
    let dies = RunningRelay::start(world.store().await, &broker, short_leases());
    wait_until("both hold half", async || world.shards_per_owner().await == [4, 4]).await;
    let traffic = BackgroundWriters::start(&world, 4);
    wait_until("traffic flows", async || broker.received() > 100).await;
    drop(dies);
    let began = Instant::now();
    wait_until("one relay holds everything", async || {
        world.shards_per_owner().await == [8] && held_shards(&world).await == 8
    })
    .await;
    let took = began.elapsed();
    let lease = short_leases().lease_duration;
    // The relay renewed its lease just before it died. The tolerance covers a slow machine.
    assert!(took <= lease + Duration::from_secs(10), "it took {took:?}");
    let ledger = traffic.stop().await;
    world.wait_until_drained().await;
    stays.stop().await;
    ledger.assert_received(&broker);
    world.assert_epochs_never_decrease().await;
}

#[tokio::test]
async fn a_relay_that_leaves_is_replaced_at_once() {
    let world = TestDatabase::new().await;
    let broker = broker();
    // The lease lasts ten seconds, so the other relay does not wait for its end.
    let stays = RunningRelay::start(world.store().await, &broker, config());
    let leaves = RunningRelay::start(world.store().await, &broker, config());
    wait_until("both hold half", async || world.shards_per_owner().await == [4, 4]).await;
    leaves.stop().await;
    let left = Instant::now();
    wait_until("one relay holds everything", async || world.shards_per_owner().await == [8]).await;
    let took = left.elapsed();
    assert!(took < config().lease_duration / 2, "it took {took:?}");
    let ledger = world.emit_many(500, 50).await;
    world.wait_until_drained().await;
    stays.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
}

/// Simulates a process that a signal stopped while messages were in flight.
#[tokio::test]
async fn a_relay_suspended_past_its_lease_settles_nothing() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig { latency: Duration::from_millis(300), ..BrokerConfig::default() });
    let mut ledger = world.emit_many(200, 20).await;
    let sleeper = Relay::new(world.store().await, Arc::new(broker.clone()), short_leases());
    let sleeper = sleeper.expect("a valid configuration");
    let stats = sleeper.status();
    let stop = CancellationToken::new();
    let mut sleeper = Box::pin(sleeper.run(stop.clone()));
    tokio::select! {
        ended = &mut sleeper => panic!("it ended: {ended:?}"),
        () = wait_until("its first messages are on their way", async || broker.received() > 0) => {}
    }
    // From here on no task polls the relay.
    let confirmed = stats.published();
    let other = RunningRelay::start(world.store().await, &broker, short_leases());
    wait_until("another relay took everything", async || {
        world.shards_per_owner().await == [8] && other.stats.published() > 0
    })
    .await;
    ledger.add(world.emit_many(50, 20).await);
    world.wait_until_drained().await;
    let settled = world.number("SELECT max(progress_id) FROM relevo.progress").await;

    tokio::select! {
        ended = &mut sleeper => panic!("it ended: {ended:?}"),
        () = wait_until("it noticed", async || stats.leases_lost() > 0) => {}
    }
    assert!(stats.published() >= confirmed);
    let epochs = format!(
        "SELECT count(*) FROM relevo.progress AS p JOIN relevo.lease AS l USING (destination, shard) \
         WHERE p.progress_id > {settled} AND p.epoch < l.epoch AND l.owner IS NOT NULL"
    );
    assert_eq!(world.number(&epochs).await, 0, "it settled under a lost lease");
    world.assert_epochs_never_decrease().await;
    tokio::select! {
        ended = &mut sleeper => panic!("it ended: {ended:?}"),
        () = wait_until("it is one of two again", async || world.shards_per_owner().await == [4, 4]) => {}
    }
    stop.cancel();
    sleeper.await.expect("it stops in good order");
    other.stop().await;
    ledger.assert_received(&broker);
}

/// Its settlement was in flight while another relay took over, and arrives afterwards.
#[tokio::test]
async fn a_settlement_that_arrives_after_the_takeover_changes_nothing() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let (proxy, store) = world.proxied().await;
    let hour = Duration::from_hours(1);
    let short = short_leases();
    let advanced = Advanced { parked_poll_interval: hour, maintenance_interval: hour, ..short.advanced };
    let alone = Config { advanced, ..short };
    let slow = RunningRelay::start(store, &broker, alone);
    wait_until("it holds everything", async || world.shards_per_owner().await == [8]).await;
    let wire = Arc::clone(&proxy);
    broker.on_receipt(move |_| wire.freeze());
    let mut ledger = world.emit_many(100, 20).await;
    wait_until("messages are confirmed", async || slow.stats.published() > 0).await;
    let pending = "SELECT pending FROM relevo.backlog('main')";
    assert_eq!(world.number(pending).await, 100, "nothing passes the wire");
    broker.on_receipt(|_| ());

    let other = RunningRelay::start(world.store().await, &broker, short_leases());
    wait_until("the other delivered everything again", async || {
        world.shards_per_owner().await == [8] && other.stats.settlements() > 0
    })
    .await;
    ledger.add(world.emit_many(100, 20).await);
    world.wait_until_drained().await;
    proxy.thaw();
    wait_until("the slow one noticed", async || slow.stats.leases_lost() + slow.stats.database_outages() > 0).await;
    wait_until("both share again", async || world.shards_per_owner().await == [4, 4]).await;
    world.assert_epochs_never_decrease().await;
    slow.stop().await;
    other.stop().await;
    ledger.assert_received(&broker);
}
