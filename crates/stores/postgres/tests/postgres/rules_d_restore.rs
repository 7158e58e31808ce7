//! Rules D3 and D4: failover, reconnection, and databases other than the one in which the rows were written.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::relay_support::{
    EmittedMessages, MAIN, RunningRelay, TestDatabase, config, execute, expect_error, operator, store, wait_until,
};
use crate::sql_support::code;
use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::outbox::Position;
use relevo_core::outbox::admin::{DestinationChange, OutboxTakeover as _};
use relevo_core::outbox::leases::{LeaseRequest, ShardLeases as _};
use relevo_core::outbox::log::{OutboxReader as _, Settlement};
use relevo_core::store::StoreError;
use relevo_relay::{Config, RelayError};
use relevo_store_postgres::Store;
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::Private;
use sqlx::ConnectOptions as _;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

fn broker() -> MemoryBroker {
    MemoryBroker::new(BrokerConfig::default())
}

fn lease_request(owner: Uuid) -> LeaseRequest {
    LeaseRequest {
        owner,
        name: "relay".to_owned(),
        duration: Duration::from_mins(1),
        held: Vec::new(),
        release: Vec::new(),
    }
}

/// Delivers some of the stored messages and shuts down.
async fn deliver_some(world: &TestDatabase, broker: &MemoryBroker, count: usize) {
    let stop = CancellationToken::new();
    let (seen, stop_on_limit) = (AtomicUsize::new(0), stop.clone());
    broker.on_receipt(move |_| {
        if seen.fetch_add(1, Ordering::Relaxed) + 1 == count {
            stop_on_limit.cancel();
        }
    });
    let small = Config { batch_messages_max: 50, in_flight_messages_max: 100, ..config() };
    RunningRelay::start_with(world.store().await, broker, small, stop).wait_until_stopped().await;
    broker.on_receipt(|_| ());
}

/// Returns the store's error in a foreign database.
async fn wrong_database_error(store: &Store) -> String {
    match store.acquire_leases(lease_request(Uuid::from_u128(1))).await {
        Err(StoreError::WrongDatabase { reason: what }) => what,
        other => panic!("not refused: {other:?}"),
    }
}

/// The primary dies. Its standby is promoted without the data that was not replicated.
#[tokio::test]
async fn a_lease_from_the_old_timeline_settles_nothing_on_the_new_one() {
    let world = TestDatabase::on_private_server().await;
    let primary = world.private_server();
    let standby = primary.standby().await;
    let old = world.store().await;
    let owner = Uuid::from_u128(7);
    let leased = old.acquire_leases(lease_request(owner)).await.expect("leases");
    assert!(!leased.timeline_changed);
    let emitted = world.emit_many(20, 10).await;
    wait_until_replicated(primary, &standby, &world).await;
    // From here on the standby receives nothing. This message is published, and its row is lost afterwards.
    let mut session = standby.options().connect().await.expect("a standby that can be read");
    execute(&mut session, "ALTER SYSTEM SET primary_conninfo = ''").await.expect("a setting");
    execute(&mut session, "SELECT pg_reload_conf()").await.expect("a setting");
    wait_until("the standby is disconnected", async || {
        let rows = execute(&mut session, "SELECT 1 FROM pg_stat_wal_receiver").await.expect("a view");
        rows.is_empty()
    })
    .await;
    let only_old = world.emit(&["k-0"]).await;
    let tick = world.number("SELECT tick FROM relevo.make_tick()").await;

    primary.kill9().await;
    standby.promote().await;
    let options = standby.options().database(world.database.name());
    let mut session = options.clone().connect().await.expect("a primary");
    let lease = leased.leases[0];
    let naive = format!(
        "SELECT 1 FROM relevo.lease WHERE destination = '{MAIN}' AND shard = {} AND epoch = {} AND owner = '{owner}' FOR SHARE",
        lease.shard, lease.epoch
    );
    let held = execute(&mut session, &naive).await.expect("a table");
    assert_eq!(held.len(), 1, "a check of epoch and owner alone would settle messages that this server never had");
    let new = store(options.clone(), MAIN).await;
    let progress = vec![(lease, Position::at(tick))];
    let settled = new.settle(Settlement { progress, parked: Vec::new() }).await.expect("an answer");
    assert_eq!(settled.lost_shards, [lease.shard]);
    let again = new.acquire_leases(lease_request(owner)).await.expect("leases");
    assert!(again.timeline_changed, "the change is reported: published messages may have no row");
    assert!(again.leases.iter().all(|lease| leased.leases.iter().all(|before| before.epoch < lease.epoch)));
    assert!(!new.acquire_leases(lease_request(owner)).await.expect("leases").timeline_changed, "it is reported once");
    new.release_leases(owner).await.expect("the leases are released");

    // The new primary assigns the number of the lost message to another message.
    let rows = execute(&mut session, "SELECT relevo.emit('orders', 'k-0', 'OrderPlaced', '{}'), 'k-0'").await;
    let mut ledger = emitted;
    ledger.add(EmittedMessages::read(&rows.expect("a good message")));
    assert!(ledger.0.iter().all(|(_, id)| *id != only_old[0]));
    let broker = broker();
    let relay = RunningRelay::start(store(options, MAIN).await, &broker, config());
    wait_until("everything arrives", async || broker.received() >= 21).await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
}

async fn wait_until_replicated(primary: &Private, standby: &Private, world: &TestDatabase) {
    let rows = world.texts("SELECT pg_current_wal_flush_lsn()::text").await;
    let mut session = standby.options().connect().await.expect("a standby that can be read");
    let sql = format!("SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{}'", rows[0]);
    wait_until("the standby has replayed everything", async || {
        !execute(&mut session, &sql).await.expect("a number").is_empty()
    })
    .await;
    assert_ne!(primary.port(), standby.port());
}

#[tokio::test]
async fn a_standby_is_rejected() {
    let world = TestDatabase::on_private_server().await;
    let standby = world.private_server().standby().await;
    wait_until_replicated(world.private_server(), &standby, &world).await;
    let store = store(standby.options().database(world.database.name()), MAIN).await;
    let answer = store.acquire_leases(lease_request(Uuid::from_u128(1))).await;
    assert!(matches!(answer, Err(StoreError::Standby)), "{answer:?}");
}

#[tokio::test]
async fn a_broken_connection_is_reported_once_and_replaced() {
    let world = TestDatabase::new().await;
    let (proxy, store) = world.proxied().await;
    let owner = Uuid::from_u128(1);
    store.acquire_leases(lease_request(owner)).await.expect("leases");
    proxy.cut().await;
    let broken = store.acquire_leases(lease_request(owner)).await;
    assert!(matches!(broken, Err(StoreError::Unavailable(_))), "the relay must discard its state: {broken:?}");
    store.acquire_leases(lease_request(owner)).await.expect("leases again");
}

/// The original still publishes, so the copy must not.
#[tokio::test]
async fn a_copied_database_is_rejected_until_it_is_adopted() {
    let world = TestDatabase::on_private_server().await;
    let broker = broker();
    let mut ledger = world.emit_many(1000, 100).await;
    deliver_some(&world, &broker, 300).await;
    let mut server = world.private_server().options().connect().await.expect("a server");
    let copy = format!("CREATE DATABASE copy TEMPLATE {}", world.database.name());
    wait_until("no session is connected", async || execute(&mut server, &copy).await.is_ok()).await;
    let options = world.database.options().database("copy");
    let copied = store(options.clone(), MAIN).await;
    let what = wrong_database_error(&copied).await;
    assert!(what.contains("relevo outbox adopt"), "{what}");
    let ended = RunningRelay::start(Arc::clone(&copied), &broker, config()).wait_for_end().await;
    assert!(matches!(ended, Err(RelayError::Store(StoreError::WrongDatabase { .. }))), "{ended:?}");

    operator(options.clone()).await.adopt().await.expect("the counters are ahead");
    let relay = RunningRelay::start(copied, &broker, config());
    let mut session = options.connect().await.expect("the copy");
    let rows = execute(&mut session, "SELECT relevo.emit('orders', 'k-1', 'OrderPlaced', '{}'), 'k-1'").await;
    ledger.add(EmittedMessages::read(&rows.expect("a good message")));
    wait_until("everything arrives", async || broker.received() >= 1001).await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0, "messages that the original had settled are not sent again");
}

#[tokio::test]
async fn an_upgraded_cluster_is_rejected_until_it_is_adopted() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let mut ledger = world.emit_many(1000, 100).await;
    deliver_some(&world, &broker, 300).await;
    // `pg_upgrade` changes only the system identifier.
    world.run("UPDATE relevo.database_identity SET system_identifier = system_identifier + 1").await;
    let store = world.store().await;
    assert!(wrong_database_error(&store).await.contains("relevo outbox adopt"));
    world.operator().await.adopt().await.expect("the counters are ahead");
    let relay = RunningRelay::start(store, &broker, config());
    ledger.add(world.emit_many(100, 100).await);
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
}

/// A dump is restored on a server with fewer transactions, so every stored transaction id is in its future.
#[tokio::test]
async fn a_restored_dump_is_rejected_until_it_is_rebased() {
    let world = TestDatabase::on_private_server().await;
    let broker = broker();
    world.run("DO 'BEGIN FOR i IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END'").await;
    let mut ledger = world.emit_many(1000, 100).await;
    deliver_some(&world, &broker, 300).await;
    let sent = broker.received_messages().len();
    let fresh = Private::start(PgVersion::V15).await;
    let target = fresh.database().await;
    world.database.restore_into(&target).await;
    let restored = TestDatabase { database: target, server: Some(fresh) };

    let naive = "SELECT count(*) FROM relevo.message WHERE pg_visible_in_snapshot(xid, pg_current_snapshot())";
    assert_eq!(restored.number(naive).await, 0, "a window of this server would be empty for ever");
    let store = restored.store().await;
    assert!(wrong_database_error(&store).await.contains("relevo outbox rebase"));
    let operator = restored.operator().await;
    let refused = operator.adopt().await;
    assert!(matches!(refused, Err(StoreError::WrongDatabase { .. })), "adopting would lose everything: {refused:?}");

    let waiting = operator.rebase().await.expect("no other session is connected");
    assert_eq!(usize::try_from(waiting).expect("a count"), 1000 - sent, "exactly the messages that were not settled");
    let (next, most) = ("SELECT last_value FROM relevo.message_seq", "SELECT max(seq) FROM relevo.message");
    assert!(restored.number(next).await >= restored.number(most).await);
    let relay = RunningRelay::start(store, &broker, config());
    ledger.add(restored.emit_many(100, 100).await);
    restored.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
}

/// Reassigned numbers would be below the settled position.
#[tokio::test]
async fn a_sequence_that_went_back_is_noticed_by_the_next_tick() {
    let world = TestDatabase::new().await;
    world.emit_many(10, 10).await;
    world.run("SELECT relevo.make_tick()").await;
    world.run("SELECT setval('relevo.message_seq', 5)").await;
    let (code, message) = expect_error(&mut world.connect().await, "SELECT relevo.make_tick()").await;
    assert_eq!((&*code, message.contains("went back")), ("RV003", true), "{message}");
}

/// Logical replication copies rows without the values of sequences.
#[tokio::test]
async fn a_logical_copy_whose_sequences_are_behind_emits_again_after_a_rebase() {
    let world = TestDatabase::new().await;
    world.emit_many(10, 10).await;
    world
        .run(
            "INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, route, class, error) \
             VALUES ('main', 'k', 0, 'dead', 0, 'r', 'poison', 'no'); \
             INSERT INTO relevo.parked_message (destination, key, ordinal, seq, slot, id, created_at, topic, type, content_type, payload) \
             VALUES ('main', 'k', 50, 1, 0, gen_random_uuid(), now(), 't', 'T', 'c', ''); \
             INSERT INTO relevo.inbox_retry_queue (consumer, queue, next_at) VALUES ('billing', 'k', now()); \
             INSERT INTO relevo.inbox_retry_message (consumer, queue, ordinal, id, replay, header_names, header_values, payload, address, lane) \
             VALUES ('billing', 'k', 70, gen_random_uuid(), 0, '{}', '{}', '', 'orders', '0'); \
             SELECT relevo.emit('t', 'k', 'T', '{}', deliver_at => now() + interval '1 hour') FROM generate_series(1, 3); \
             ALTER TABLE relevo.scheduled ALTER COLUMN ordinal RESTART WITH 1; \
             SELECT setval('relevo.message_seq', 1, false)",
        )
        .await;
    let mut session = world.connect().await;
    let emit = "SELECT relevo.emit('t', 'k', 'T', '{}')";
    let error = execute(&mut session, emit).await.expect_err("the sequence number is in use");
    assert_eq!(code(&error), "23505");
    world.operator().await.rebase().await.expect("a migrated database");
    execute(&mut session, emit).await.expect("a new number");
    assert!(world.number("SELECT nextval('relevo.parked_seq')").await > 50);
    assert!(world.number("SELECT nextval('relevo.inbox_seq')").await > 70);
    assert!(world.number("SELECT nextval(pg_get_serial_sequence('relevo.scheduled', 'ordinal'))").await > 3);
}

/// A physical clone cannot be distinguished from the original. An operator must disable its destination.
#[tokio::test]
async fn a_physical_clone_keeps_the_identity_and_is_stopped_by_disabling_it() {
    let world = TestDatabase::on_private_server().await;
    world.emit_many(10, 10).await;
    let clone = world.private_server().base_backup().await;
    clone.start_again().await;
    let cloned = store(clone.options().database(world.database.name()), MAIN).await;
    let leased = cloned
        .acquire_leases(lease_request(Uuid::from_u128(1)))
        .await
        .expect("it cannot be distinguished from the original");
    assert_eq!(leased.leases.len(), 8);
    let cloned_operator = operator(clone.options().database(world.database.name())).await;
    assert!(cloned_operator.update(DestinationChange::Enabled(false)).await.expect("a destination"));
    let refused = cloned.acquire_leases(lease_request(Uuid::from_u128(1))).await;
    assert!(matches!(refused, Err(StoreError::Refused { .. })), "{refused:?}");
    world.store().await.acquire_leases(lease_request(Uuid::from_u128(2))).await.expect("the original continues");
}
