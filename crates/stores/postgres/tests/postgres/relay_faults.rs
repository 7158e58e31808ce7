//! The database fails under a running relay, at the worst moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::relay_support::{
    BackgroundWriters, EmittedMessages, RunningRelay, TestDatabase, config, execute, short_leases, wait_until,
};
use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::outbox::admin::DestinationChange;
use relevo_core::store::StoreError;
use relevo_relay::{Config, RelayError};
use tokio::sync::Notify;

fn broker() -> MemoryBroker {
    MemoryBroker::new(BrokerConfig::default())
}

/// Calls `act` when the broker receives its `n`-th message.
fn on_nth_receipt(broker: &MemoryBroker, n: usize, act: impl Fn() + Send + Sync + 'static) {
    let count = AtomicUsize::new(0);
    broker.on_receipt(move |_| {
        if count.fetch_add(1, Ordering::Relaxed) + 1 == n {
            act();
        }
    });
}

/// The writer commits asynchronously, but every published message must be in the log after the crash.
#[tokio::test]
async fn a_killed_server_loses_nothing_and_publishes_nothing_uncommitted() {
    let world = TestDatabase::on_private_server().await;
    let broker = broker();
    let (frozen, reached) = (broker.clone(), Arc::new(Notify::new()));
    let notify = Arc::clone(&reached);
    on_nth_receipt(&broker, 5000, move || {
        frozen.freeze();
        notify.notify_one();
    });
    let relay = RunningRelay::start(world.store().await, &broker, Config { batch_messages_max: 500, ..short_leases() });
    let mut open = world.connect().await;
    execute(&mut open, "BEGIN").await.expect("a transaction");
    let ghost = "SELECT relevo.emit('orders', 'k-' || n % 50, 'Ghost', '{}') FROM generate_series(1, 100) AS n";
    execute(&mut open, ghost).await.expect("good messages");

    let mut writer = world.connect().await;
    execute(&mut writer, "SET synchronous_commit = off").await.expect("a setting");
    let sql = "SELECT relevo.emit('orders', 'k-' || n % 50, 'Counted', '{}'), 'k-' || n % 50 FROM generate_series(1, 2000) AS n";
    let mut ledger = EmittedMessages::default();
    for _ in 0..10 {
        ledger.add(EmittedMessages::read(&execute(&mut writer, sql).await.expect("good messages")));
    }
    reached.notified().await;
    world.private_server().kill9().await;
    assert!((5000..15_000).contains(&broker.received()), "in the middle: {}", broker.received());
    broker.thaw();
    world.private_server().start_again().await;
    world.wait_until_drained().await;
    relay.stop().await;
    // The crash may lose commits of an asynchronous writer. The relay must not have sent any of those.
    let logged = EmittedMessages::read(&world.rows("SELECT id, key FROM relevo.message ORDER BY seq").await);
    logged.assert_received(&broker);
    assert_eq!(&logged.0[..], &ledger.0[..logged.len()], "the log holds what was committed first");
    assert!(logged.len() >= 5000, "the log has fewer rows than were sent");
    drop(open);
}

#[tokio::test]
async fn a_connection_cut_between_confirm_and_settle_repeats_the_same_ids() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let (proxy, store) = world.proxied().await;
    let (wire, reached) = (Arc::clone(&proxy), Arc::new(Notify::new()));
    let notify = Arc::clone(&reached);
    // After the first receipt no data reaches the server, so the relay cannot settle.
    on_nth_receipt(&broker, 1, move || {
        wire.freeze();
        notify.notify_one();
    });
    let relay = RunningRelay::start(store, &broker, config());
    wait_until("it holds everything", async || world.shards_per_owner().await == [8]).await;
    let ledger = world.emit_many(500, 50).await;
    reached.notified().await;
    wait_until("all of the page is confirmed", async || relay.stats.published() == 500).await;
    proxy.cut().await;
    proxy.thaw();
    world.wait_until_drained().await;
    let repeats = ledger.assert_received(&broker);
    assert_eq!(repeats, 500, "what was confirmed and could not be settled goes again, once");
    assert!(relay.stats.database_outages() > 0);
    relay.stop().await;
}

#[tokio::test]
async fn a_database_outage_longer_than_a_lease_is_survived() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let (proxy, store) = world.proxied().await;
    let relay = RunningRelay::start(store, &broker, short_leases());
    let traffic = BackgroundWriters::start(&world, 2);
    wait_until("traffic flows", async || broker.received() > 100).await;
    proxy.block().await;
    wait_until("every lease has ended", async || {
        world.number("SELECT count(*) FROM relevo.lease WHERE expires_at > clock_timestamp()").await == 0
    })
    .await;
    proxy.unblock();
    let then = broker.received();
    wait_until("traffic flows again", async || broker.received() > then + 100).await;
    let ledger = traffic.stop().await;
    world.wait_until_drained().await;
    relay.stop().await;
    ledger.assert_received(&broker);
    world.assert_epochs_never_decrease().await;
}

#[tokio::test]
async fn a_relay_of_a_disabled_destination_ends_with_the_reason() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let relay = RunningRelay::start(world.store().await, &broker, short_leases());
    wait_until("it holds everything", async || world.shards_per_owner().await == [8]).await;
    assert!(world.operator().await.update(DestinationChange::Enabled(false)).await.expect("a destination"));
    let Err(RelayError::Store(StoreError::Refused { reason })) = relay.wait_for_end().await else {
        panic!("it should have been refused");
    };
    assert!(reason.contains("is disabled") && reason.contains("`relevo destination enable main`"), "{reason}");
}
