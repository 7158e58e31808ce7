//! Rules D1 and D2: retention deletes messages that are old and settled, and no message that a relay may still need.

use std::time::Duration;

use crate::relay_support::{RunningRelay, TestDatabase, config, execute, expect_error, wait_until, with};
use crate::sql_support::DEADLINE;
use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
use relevo_core::outbox::maintenance::Maintenance as _;
use relevo_relay::Advanced;
use sqlx::postgres::PgConnection;
use tokio::task::JoinSet;

fn broker() -> MemoryBroker {
    MemoryBroker::new(BrokerConfig::default())
}

/// A relay that leaves maintenance to the test.
async fn relay(world: &TestDatabase, broker: &MemoryBroker) -> RunningRelay {
    RunningRelay::start(
        world.store().await,
        broker,
        with(Advanced { maintenance_interval: Duration::from_hours(1), ..config().advanced }),
    )
}

/// Advances the sequence to the next partition.
async fn next_partition(world: &TestDatabase) {
    maintain(world).await;
    world
        .run(
            "SELECT setval('relevo.message_seq', (SELECT end_seq FROM relevo.message_partition, relevo.message_seq \
             WHERE last_value >= first_seq AND last_value < end_seq))",
        )
        .await;
}

/// Moves all times that retention checks far into the past.
async fn age(world: &TestDatabase) {
    for (table, column) in [("message", "created_at"), ("progress", "settled_at"), ("tick", "created_at")] {
        world.run(&format!("UPDATE relevo.{table} SET {column} = {column} - interval '100 days'")).await;
    }
}

/// Runs maintenance until nothing is left to do, even if a lock blocked it at first.
async fn maintain(world: &TestDatabase) -> Vec<String> {
    let store = world.store().await;
    let mut warnings = Vec::new();
    for _ in 0..3 {
        wait_until("no other session does maintenance", async || {
            let done = store.maintain(DEADLINE).await.expect("upkeep");
            warnings = done.warnings;
            !done.skipped
        })
        .await;
    }
    warnings
}

async fn stored_messages(world: &TestDatabase) -> i64 {
    world.number("SELECT count(*) FROM relevo.message").await
}

/// A transaction with one uncommitted message of key `late`.
async fn open_writer(world: &TestDatabase) -> PgConnection {
    let mut writer = world.connect().await;
    execute(&mut writer, "BEGIN").await.expect("a transaction");
    execute(&mut writer, "SELECT relevo.emit('orders', 'late', 'OrderPlaced', '{}')").await.expect("a good message");
    writer
}

/// The reason for the rule: both obvious ways wait for the writer, block every emit, and lose its row.
#[tokio::test]
async fn dropping_or_detaching_a_partition_loses_rows_of_an_open_writer() {
    for naive in [
        "DROP TABLE relevo.message_1",
        "ALTER TABLE relevo.message DETACH PARTITION relevo.message_1; DROP TABLE relevo.message_1",
    ] {
        let world = TestDatabase::new().await;
        let broker = broker();
        let relay = relay(&world, &broker).await;
        let mut writer = open_writer(&world).await;
        next_partition(&world).await;
        let mut dropper = world.connect().await;
        let mut dropping = JoinSet::new();
        dropping.spawn(async move { execute(&mut dropper, naive).await.expect("the partition is dropped") });
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock' \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        wait_until("the drop waits for the writer", async || world.number(waits).await > 0).await;
        let mut other = world.connect().await;
        execute(&mut other, "SET lock_timeout = '50ms'").await.expect("a setting");
        let (code, _) = expect_error(&mut other, "SELECT relevo.emit('orders', 'k', 'OrderPlaced', '{}')").await;
        assert_eq!(code, "55P03", "every emit waits behind the drop");

        execute(&mut writer, "COMMIT").await.expect("the writer's row is committed");
        dropping.join_next().await.expect("one task").expect("it dropped");
        assert_eq!(stored_messages(&world).await, 0, "committed, and lost");
        world.emit(&["k"]).await;
        wait_until("what came later arrives", async || broker.received() == 1).await;
        relay.stop().await;
        assert_eq!(broker.received_messages()[0].key, "k", "the writer's message was never read");
    }
}

#[tokio::test]
async fn maintenance_keeps_rows_of_an_open_writer_and_blocks_no_emit() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let relay = relay(&world, &broker).await;
    world.emit(&["a", "b"]).await;
    let mut writer = open_writer(&world).await;
    next_partition(&world).await;
    world.emit(&["c"]).await;
    wait_until("what is committed arrives", async || broker.received() == 3).await;
    world.wait_until_drained().await;
    age(&world).await;

    let store = world.store().await;
    let mut upkeep = JoinSet::new();
    upkeep.spawn(async move {
        for _ in 0..50 {
            store.maintain(DEADLINE).await.expect("upkeep");
        }
    });
    let mut other = world.connect().await;
    execute(&mut other, "SET lock_timeout = '20ms'").await.expect("a setting");
    let mut emitted = 0;
    while upkeep.try_join_next().is_none() {
        execute(&mut other, "SELECT relevo.emit('orders', 'd', 'OrderPlaced', '{}')").await.expect("no emit waits");
        emitted += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let emptied = "SELECT count(*) FROM relevo.message_partition WHERE first_seq = 1 AND emptied_at IS NOT NULL";
    assert_eq!(world.number(emptied).await, 0, "the partition was left alone");

    // It is committed, as old as its partition, and unread. It must still be kept.
    wait_until("what is committed is settled", async || broker.received() == 3 + emitted).await;
    relay.stop().await;
    execute(&mut writer, "COMMIT").await.expect("the writer's row is committed");
    age(&world).await;
    maintain(&world).await;
    assert_eq!(world.number("SELECT count(*) FROM relevo.message_1 WHERE key = 'late'").await, 1);
    let relay = self::relay(&world, &broker).await;
    wait_until("the late one arrives too", async || broker.received() == 4 + emitted).await;
    assert_eq!(broker.received_messages().iter().filter(|receipt| receipt.key == "late").count(), 1);
    world.wait_until_drained().await;
    relay.stop().await;
    maintain(&world).await;
    let first = "SELECT count(*) FROM pg_class WHERE relname = 'message_1'";
    assert_eq!(world.number(first).await, 0, "settled and old: it is dropped");
}

/// A clock that was set back affects neither the partition of a row nor the choice of partitions to drop.
#[tokio::test]
async fn a_clock_set_back_drops_no_unsettled_message() {
    let world = TestDatabase::new().await;
    world.emit(&["a"]).await;
    next_partition(&world).await;
    let ids = world.emit(&["a"]).await;
    world.run(&format!("UPDATE relevo.message SET created_at = '1999-01-01' WHERE id = '{}'", ids[0])).await;
    let partition = format!("SELECT tableoid::regclass::text FROM relevo.message WHERE id = '{}'", ids[0]);
    assert_eq!(world.texts(&partition).await, ["relevo.message_1000001"]);
    next_partition(&world).await;
    age(&world).await;
    maintain(&world).await;
    assert_eq!(stored_messages(&world).await, 2, "no relay has read them");
    let broker = broker();
    let relay = relay(&world, &broker).await;
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(broker.received_messages()[1].id, ids[0], "the sequence is the order, not the clock");
    maintain(&world).await;
    assert_eq!(stored_messages(&world).await, 0);
}

#[tokio::test]
async fn without_a_prepared_partition_messages_go_to_the_overflow_and_are_read_and_deleted() {
    let world = TestDatabase::new().await;
    let broker = broker();
    // Simulates months without a relay.
    world.run("SELECT setval('relevo.message_seq', 50000000)").await;
    world.emit(&["a", "a"]).await;
    let overflow = "SELECT count(*) FROM relevo.message_overflow";
    assert_eq!(world.number(overflow).await, 2);
    age(&world).await;
    maintain(&world).await;
    assert_eq!(world.number(overflow).await, 2, "old, and not settled");
    assert!(
        world.number("SELECT max(first_seq) FROM relevo.message_partition").await > 50_000_000,
        "partitions are prepared beyond"
    );
    world.emit(&["a"]).await;
    assert_eq!(world.number(overflow).await, 3, "the margin before the first prepared one is the overflow's");

    let relay = relay(&world, &broker).await;
    world.wait_until_drained().await;
    let first = world.number("SELECT min(first_seq) FROM relevo.message_partition WHERE first_seq > 50000000").await;
    world.run(&format!("SELECT setval('relevo.message_seq', {})", first - 1)).await;
    world.emit(&["a"]).await;
    let prepared = format!("SELECT count(*) FROM relevo.message_{first}");
    assert_eq!(world.number(&prepared).await, 1, "from there on partitions are used again");
    world.wait_until_drained().await;
    relay.stop().await;
    let seqs: Vec<i64> = broker.received_messages().iter().map(|receipt| receipt.seq).collect();
    assert_eq!((seqs.len(), seqs.is_sorted()), (4, true));
    age(&world).await;
    maintain(&world).await;
    assert_eq!(world.number(overflow).await, 0);
    assert_eq!(world.number(&prepared).await, 0, "the partition in use stays, without what is far too old");
}

/// A partition that takes years to fill must not keep its messages for years.
#[tokio::test]
async fn old_settled_rows_of_a_slow_partition_are_deleted() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let mut writer = open_writer(&world).await;
    let relay = relay(&world, &broker).await;
    world.emit(&["a", "b", "a"]).await;
    world.wait_until_drained().await;
    world.run("UPDATE relevo.settings SET retention = '30 days'").await;
    let make_old = async |by: &str| {
        let sql = format!("UPDATE relevo.message SET created_at = clock_timestamp() - interval '{by}'");
        world.run(&sql).await;
    };
    make_old("30 days 23 hours").await;
    world.emit(&["young"]).await;
    world.wait_until_drained().await;
    maintain(&world).await;
    assert_eq!(stored_messages(&world).await, 4, "too old, and not by a day: a partition may be emptied whole by then");
    assert_eq!(world.number("SELECT count(*) FROM relevo.outbox WHERE published_at IS NULL").await, 0);
    world.run("UPDATE relevo.message SET created_at = created_at - interval '2 hours'").await;
    maintain(&world).await;
    assert_eq!(stored_messages(&world).await, 1, "the young one");

    // A message with the first number that commits last is old before a relay has read it.
    relay.stop().await;
    execute(&mut writer, "COMMIT").await.expect("the writer's row is committed");
    make_old("100 days").await;
    maintain(&world).await;
    let late = "SELECT count(*) FROM relevo.message WHERE key = 'late'";
    assert_eq!(world.number(late).await, 1, "old, and not settled");
    let relay = RunningRelay::start(world.store().await, &broker, config());
    world.wait_until_drained().await;
    world.emit(&["young"]).await;
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(broker.received(), 6);
    maintain(&world).await;
    assert_eq!(world.number(late).await, 0);
    assert_eq!(stored_messages(&world).await, 1, "the young one");
}

/// The default partition is the only place for these messages, so an emit waits briefly while maintenance tries to lock
/// it.
#[tokio::test]
async fn an_open_writer_in_the_overflow_barely_delays_other_emits() {
    let world = TestDatabase::new().await;
    world.run("SELECT setval('relevo.message_seq', 50000000)").await;
    let mut writer = open_writer(&world).await;
    let store = world.store().await;
    let mut upkeep = JoinSet::new();
    upkeep.spawn(async move {
        for _ in 0..5 {
            assert_eq!(
                store.maintain(DEADLINE).await.expect("upkeep").partitions_created,
                0,
                "it does not wait for the writer"
            );
        }
    });
    let mut other = world.connect().await;
    execute(&mut other, "SET lock_timeout = '10s'").await.expect("a setting");
    let mut emitted = 0;
    while upkeep.try_join_next().is_none() {
        execute(&mut other, "SELECT relevo.emit('orders', 'd', 'OrderPlaced', '{}')").await.expect("it waits a moment");
        emitted += 1;
    }
    execute(&mut writer, "COMMIT").await.expect("the writer's row is committed");
    maintain(&world).await;
    assert!(
        world.number("SELECT max(first_seq) FROM relevo.message_partition").await > 50_000_000,
        "now they are prepared"
    );
    assert_eq!(stored_messages(&world).await, 1 + emitted);
}

#[tokio::test]
async fn the_newest_progress_and_its_ticks_outlive_any_age() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let mut ledger = crate::relay_support::EmittedMessages::default();
    let first = relay(&world, &broker).await;
    for round in 0..5 {
        ledger.add(world.emit_many(40, 20).await);
        world.wait_until_drained().await;
        if round == 2 {
            // It stays at its first tick, which is not the newest any more when ticks are pruned.
            world.run("SELECT relevo.add_destination('stopped', 1, 'now')").await;
        }
    }
    first.stop().await;
    let before = world.number("SELECT count(*) FROM relevo.progress").await;
    age(&world).await;
    maintain(&world).await;
    let after = world.number("SELECT count(*) FROM relevo.progress").await;
    assert!(before > 9 && after == 9, "{before} rows of progress became {after}: one a shard is left");
    let dangling = "SELECT count(*) FROM relevo.progress AS p WHERE NOT EXISTS (SELECT 1 FROM relevo.tick AS t \
                WHERE t.tick = p.from_tick) OR NOT EXISTS (SELECT 1 FROM relevo.tick AS t WHERE t.tick = p.to_tick)";
    assert_eq!(world.number(dangling).await, 0);

    let second = relay(&world, &broker).await;
    ledger.add(world.emit_many(40, 20).await);
    world.wait_until_drained().await;
    second.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
    let started = MemoryBroker::new(BrokerConfig::default());
    let third = RunningRelay::start(world.store_for("stopped").await, &started, config());
    world.wait_until_drained_for("stopped").await;
    third.stop().await;
    assert_eq!(started.received(), 3 * 40, "it goes on where it stood");
}

#[tokio::test]
async fn a_destination_being_added_delays_retention() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let relay = relay(&world, &broker).await;
    let ids = world.emit(&["a", "b"]).await;
    world.wait_until_drained().await;
    next_partition(&world).await;
    world.emit(&["c"]).await;
    world.wait_until_drained().await;
    age(&world).await;
    let mut operator = world.connect().await;
    execute(&mut operator, "BEGIN").await.expect("a transaction");
    execute(&mut operator, "SELECT relevo.add_destination('late', 4, 'oldest')").await.expect("a destination");
    maintain(&world).await;
    assert_eq!(stored_messages(&world).await, 3, "settled by all destinations that retention can see, and kept");
    execute(&mut operator, "COMMIT").await.expect("it is added");
    maintain(&world).await;
    assert_eq!(stored_messages(&world).await, 3, "now it is seen, and has read nothing");

    let late = MemoryBroker::new(BrokerConfig::default());
    let second = RunningRelay::start(world.store_for("late").await, &late, config());
    wait_until("it gets everything from the oldest on", async || late.received() == 3).await;
    assert!(late.received_messages().iter().any(|receipt| receipt.id == ids[0]));
    world.wait_until_drained_for("late").await;
    second.stop().await;
    relay.stop().await;
    maintain(&world).await;
    assert_eq!(stored_messages(&world).await, 0, "the partition in use is empty");
}

/// D2: the setting decides whether rows are kept or lost, and a warning comes long before.
#[tokio::test]
async fn a_stopped_destination_keeps_or_drops_rows_by_the_overflow_policy() {
    let world = TestDatabase::new().await;
    let broker = broker();
    world.run("SELECT relevo.add_destination('stopped', 4, 'oldest')").await;
    world.run("UPDATE relevo.settings SET undelivered_rows_max = 1500000").await;
    let relay = relay(&world, &broker).await;
    let ledger = world.emit_many(30, 10).await;
    world.wait_until_drained().await;
    next_partition(&world).await;
    age(&world).await;
    let warnings = maintain(&world).await;
    assert!(warnings.len() == 1 && warnings[0].contains("\"stopped\" has"), "long before: {warnings:?}");
    world.run("UPDATE relevo.settings SET undelivered_rows_max = 10").await;
    world.run("SELECT setval('relevo.message_seq', 1000100)").await;
    let warnings = maintain(&world).await;
    assert!(warnings[0].contains("rows are kept"), "{warnings:?}");
    assert_eq!((stored_messages(&world).await, world.number("SELECT count(*) FROM relevo.data_loss").await), (30, 0));

    world.run("UPDATE relevo.settings SET overflow_policy = 'drop'").await;
    let store = world.store().await;
    let done = store.maintain(DEADLINE).await.expect("upkeep");
    assert!(done.warnings.iter().any(|warning| warning.contains("30 rows")), "{:?}", done.warnings);
    assert_eq!(stored_messages(&world).await, 0);
    assert_eq!(world.number("SELECT rows FROM relevo.data_loss").await, 30);

    // A relay that starts now continues with new messages.
    let late = MemoryBroker::new(BrokerConfig::default());
    let second = RunningRelay::start(world.store_for("stopped").await, &late, config());
    let ids = world.emit(&["k-1"]).await;
    wait_until("the next one arrives", async || late.received() == 1).await;
    assert_eq!(late.received_messages()[0].id, ids[0]);
    wait_until("everywhere", async || broker.received() == 31).await;
    assert!(ledger.0.iter().all(|(_, id)| broker.received_messages().iter().any(|receipt| receipt.id == *id)));
    second.stop().await;
    relay.stop().await;
}

/// F13: a writer drew its number, paused for longer than the retention, and inserts into a partition that was emptied
/// in the meantime.
#[tokio::test]
async fn f13_a_partition_is_not_dropped_with_the_message_of_a_paused_writer() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let relay = relay(&world, &broker).await;
    world.emit(&["a", "b"]).await;
    let mut writer = world.connect().await;
    execute(&mut writer, "BEGIN; SELECT pg_current_xact_id(), nextval('relevo.message_seq')").await.expect("number 3");
    next_partition(&world).await;
    world.emit(&["c"]).await;
    wait_until("what is committed arrives", async || broker.received() == 3).await;
    world.wait_until_drained().await;
    age(&world).await;
    // A session that has the parent table open prevents dropping the partition, but not emptying it.
    let mut other = world.connect().await;
    execute(&mut other, "BEGIN; LOCK TABLE ONLY relevo.message IN ACCESS SHARE MODE").await.expect("a lock");
    maintain(&world).await;
    let emptied = "SELECT count(*) FROM relevo.message_partition WHERE first_seq = 1 AND emptied_at IS NOT NULL";
    assert_eq!(world.number(emptied).await, 1, "it waits to be dropped");
    execute(
        &mut writer,
        "INSERT INTO relevo.message (seq, xid, slot, id, created_at, topic, key, type, content_type, payload) \
         VALUES (3, pg_current_xact_id(), relevo.slot_of('late'), gen_random_uuid(), clock_timestamp(), 'orders', 'late', \
         'OrderPlaced', 'application/json', '{}'); COMMIT",
    )
    .await
    .expect("the partition is still there");
    execute(&mut other, "COMMIT").await.expect("the lock is free");
    maintain(&world).await;
    wait_until("the late one arrives", async || broker.received() == 4).await;
    assert_eq!(broker.received_messages()[3].key, "late");
    world.wait_until_drained().await;
    relay.stop().await;
    age(&world).await;
    maintain(&world).await;
    let first = "SELECT count(*) FROM pg_class WHERE relname = 'message_1'";
    assert_eq!(world.number(first).await, 0, "settled and old: it is dropped");
}
