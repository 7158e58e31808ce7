//! Several relays: which relay holds which shard, and what a relay with a lost lease can still do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::e2e_support::{Running, Traffic, World, config, short_leases, until};
use relevo_broker_memory::{MemoryBroker, Settings};
use relevo_relay::{Config, Relay};
use tokio_util::sync::CancellationToken;

fn broker() -> MemoryBroker {
    MemoryBroker::new(Settings::default())
}

/// Leases long enough to survive on a slow machine.
fn patient() -> Config {
    Config { lease: Duration::from_secs(5), ..config() }
}

/// Counts the shards with a live lease.
async fn held(world: &World) -> i64 {
    world.number("SELECT count(*) FROM relevo.lease WHERE owner IS NOT NULL AND expires_at > clock_timestamp()").await
}

#[tokio::test]
async fn three_relays_share_eight_shards_evenly() {
    let world = World::new().await;
    let broker = broker();
    let first = Running::start(world.store().await, &broker, short_leases());
    until("one relay holds everything", async || world.shares().await == [8]).await;
    let second = Running::start(world.store().await, &broker, short_leases());
    until("two relays hold half each", async || world.shares().await == [4, 4]).await;
    let third = Running::start(world.store().await, &broker, short_leases());
    until("three relays share evenly", async || world.shares().await == [3, 3, 2]).await;
    first.stop().await;
    until("two relays hold half each again", async || world.shares().await == [4, 4]).await;
    second.stop().await;
    third.stop().await;
    assert!(world.shares().await.is_empty());
}

#[tokio::test]
async fn relays_that_join_and_leave_repeat_lose_and_invert_nothing() {
    let world = World::new().await;
    let broker = broker();
    let traffic = Traffic::start(&world, 4);
    let more = async |count: u64| {
        let then = broker.received();
        until("traffic flows", async || broker.received() >= then + count).await;
    };
    let first = Running::start(world.store().await, &broker, patient());
    more(100).await;
    let second = Running::start(world.store().await, &broker, patient());
    let third = Running::start(world.store().await, &broker, patient());
    until("three relays share evenly", async || world.shares().await == [3, 3, 2]).await;
    more(100).await;
    first.stop().await;
    more(100).await;
    let fourth = Running::start(world.store().await, &broker, patient());
    until("three relays share evenly", async || world.shares().await == [3, 3, 2]).await;
    second.stop().await;
    third.stop().await;
    more(100).await;
    let ledger = traffic.stop().await;
    world.drained().await;
    fourth.stop().await;
    assert_eq!(ledger.check(&broker), 0, "whoever leaves politely has settled what it sent");
    world.assert_epochs_never_go_back().await;
}

#[tokio::test]
async fn a_relay_that_dies_is_replaced_within_the_lease() {
    let world = World::new().await;
    let broker = broker();
    let stays = Running::start(world.store().await, &broker, short_leases());
    let dies = Running::start(world.store().await, &broker, short_leases());
    until("both hold half", async || world.shares().await == [4, 4]).await;
    let traffic = Traffic::start(&world, 4);
    until("traffic flows", async || broker.received() > 100).await;
    drop(dies);
    let began = Instant::now();
    until("one relay holds everything", async || world.shares().await == [8] && held(&world).await == 8).await;
    let took = began.elapsed();
    let lease = short_leases().lease;
    // The relay renewed its lease just before it died. The tolerance covers a slow machine.
    assert!(took <= lease + Duration::from_secs(10), "it took {took:?}");
    let ledger = traffic.stop().await;
    world.drained().await;
    stays.stop().await;
    ledger.check(&broker);
    world.assert_epochs_never_go_back().await;
}

#[tokio::test]
async fn a_relay_that_leaves_is_replaced_at_once() {
    let world = World::new().await;
    let broker = broker();
    // The lease lasts ten seconds, so the other relay does not wait for its end.
    let stays = Running::start(world.store().await, &broker, config());
    let leaves = Running::start(world.store().await, &broker, config());
    until("both hold half", async || world.shares().await == [4, 4]).await;
    leaves.stop().await;
    let left = Instant::now();
    until("one relay holds everything", async || world.shares().await == [8]).await;
    let took = left.elapsed();
    assert!(took < config().lease / 2, "it took {took:?}");
    let ledger = world.emit_some(500, 50).await;
    world.drained().await;
    stays.stop().await;
    assert_eq!(ledger.check(&broker), 0);
}

/// Simulates a process that a signal stopped while messages were in flight.
#[tokio::test]
async fn a_relay_that_slept_past_its_lease_settles_nothing() {
    let world = World::new().await;
    let broker = MemoryBroker::new(Settings { latency: Duration::from_millis(300), ..Settings::default() });
    let mut ledger = world.emit_some(200, 20).await;
    let sleeper = Relay::new(world.store().await, Arc::new(broker.clone()), short_leases());
    let sleeper = sleeper.expect("a valid configuration");
    let stats = sleeper.stats();
    let stop = CancellationToken::new();
    let mut sleeper = Box::pin(sleeper.run(stop.clone()));
    tokio::select! {
        ended = &mut sleeper => panic!("it ended: {ended:?}"),
        () = until("its first messages are on their way", async || broker.received() > 0) => {}
    }
    // From here on no task polls the relay.
    let confirmed = stats.published();
    let other = Running::start(world.store().await, &broker, short_leases());
    until("another relay took everything", async || world.shares().await == [8] && other.stats.published() > 0).await;
    ledger.add(world.emit_some(50, 20).await);
    world.drained().await;
    let settled = world.number("SELECT max(progress_id) FROM relevo.progress").await;

    tokio::select! {
        ended = &mut sleeper => panic!("it ended: {ended:?}"),
        () = until("it noticed", async || stats.leases_lost() > 0) => {}
    }
    assert!(stats.published() >= confirmed);
    let epochs = format!(
        "SELECT count(*) FROM relevo.progress AS p JOIN relevo.lease AS l USING (destination, shard) \
         WHERE p.progress_id > {settled} AND p.epoch < l.epoch AND l.owner IS NOT NULL"
    );
    assert_eq!(world.number(&epochs).await, 0, "it settled under a lease that was gone");
    world.assert_epochs_never_go_back().await;
    tokio::select! {
        ended = &mut sleeper => panic!("it ended: {ended:?}"),
        () = until("it is one of two again", async || world.shares().await == [4, 4]) => {}
    }
    stop.cancel();
    sleeper.await.expect("it stops in good order");
    other.stop().await;
    ledger.check(&broker);
}

/// Its settlement was in flight while another relay took over, and arrives afterwards.
#[tokio::test]
async fn a_settlement_that_arrives_after_the_takeover_changes_nothing() {
    let world = World::new().await;
    let broker = broker();
    let (proxy, store) = world.proxied().await;
    let hour = Duration::from_hours(1);
    let alone = Config { due_every: hour, maintain_every: hour, ..short_leases() };
    let slow = Running::start(store, &broker, alone);
    until("it holds everything", async || world.shares().await == [8]).await;
    let wire = Arc::clone(&proxy);
    broker.on_receipt(move |_| wire.freeze());
    let mut ledger = world.emit_some(100, 20).await;
    until("messages are confirmed", async || slow.stats.published() > 0).await;
    let pending = "SELECT pending FROM relevo.backlog('main')";
    assert_eq!(world.number(pending).await, 100, "nothing passes the wire");
    broker.on_receipt(|_| ());

    let other = Running::start(world.store().await, &broker, short_leases());
    until("the other delivered everything again", async || {
        world.shares().await == [8] && other.stats.settlements() > 0
    })
    .await;
    ledger.add(world.emit_some(100, 20).await);
    world.drained().await;
    proxy.thaw();
    until("the slow one noticed", async || slow.stats.leases_lost() + slow.stats.database_away() > 0).await;
    until("both share again", async || world.shares().await == [4, 4]).await;
    world.assert_epochs_never_go_back().await;
    slow.stop().await;
    other.stop().await;
    ledger.check(&broker);
}
