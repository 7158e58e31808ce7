//! Sampling for monitoring, and that its cost does not depend on the amount of data.

use std::time::Duration;

use relevo_broker_memory::{Config, FailureRule, MemoryBroker, RuleTarget};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::Class;
use relevo_testkit::PgVersion;
use sqlx::ConnectOptions as _;

use crate::relay_support::{MAIN, RunningRelay, TestDatabase, config, wait_until};
use crate::sql_support::{Session, SqlTest};

/// A million messages that every shard has settled, in a few transactions, and 300 000 that a consumer has handled.
/// Both also have dead letters that operators discarded.
const HISTORY: &str = "
    INSERT INTO relevo.message (seq, xid, slot, id, created_at, topic, key, type, content_type, payload)
    SELECT nextval('relevo.message_seq'), pg_current_xact_id(), n % 256, gen_random_uuid(), now(), 'orders', 'k' || n, 'T', 'c', ''
    FROM generate_series(1, 500000) AS n;
    INSERT INTO relevo.message (seq, xid, slot, id, created_at, topic, key, type, content_type, payload)
    SELECT nextval('relevo.message_seq'), pg_current_xact_id(), n % 256, gen_random_uuid(), now(), 'orders', 'k' || n, 'T', 'c', ''
    FROM generate_series(1, 500000) AS n;
    INSERT INTO relevo.dead_letter (destination, id, seq, slot, created_at, topic, key, type, content_type, payload, route,
        class, error, attempts, state, marked_at)
    SELECT 'main', gen_random_uuid(), n, 0, now(), 'orders', 'k' || n, 'T', 'c', '', 'all', 'poison', 'bad', 1, 'discarded', now()
    FROM generate_series(1, 50000) AS n;
    INSERT INTO relevo.inbox (consumer, message_id) SELECT 'billing', gen_random_uuid() FROM generate_series(1, 300000);
    INSERT INTO relevo.inbox_dead_letter (consumer, id, replay, queue, ordinal, header_names, header_values, payload, address, lane, class,
        error, attempts, arrived_at, state, marked_at)
    SELECT 'billing', gen_random_uuid(), 0, 'q' || n, n, '{}', '{}', '', 'orders', '0', 'poison', 'bad', 1, now(), 'discarded', now()
    FROM generate_series(1, 50000) AS n";

/// Settles all committed messages in all shards at once.
const SETTLE: &str = "
    SELECT relevo.make_tick();
    INSERT INTO relevo.progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch)
    SELECT 'main', 8, s, t.tick, t.tick, 0, 1 FROM generate_series(0, 7) AS s,
        (SELECT max(tick) AS tick FROM relevo.tick) AS t";

/// Returns the number of pages that each statement reads.
async fn pages(session: &mut Session, statements: &[String]) -> Vec<i64> {
    let mut counts = Vec::new();
    for statement in statements {
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) {statement}");
        session.run(&explain).await;
        let plan = session.list(&explain).await;
        // The first line about buffers covers the whole statement, unless it read none.
        let buffers = plan.iter().find(|line| line.contains("Buffers:"));
        let numbers = buffers.iter().flat_map(|line| line.split([' ', '=']));
        counts.push(numbers.filter_map(|word| word.parse::<i64>().ok()).sum());
    }
    counts
}

async fn all(session: &mut Session, statements: &str) {
    for statement in statements.split(';') {
        session.run_slow(statement).await;
    }
}

#[tokio::test]
async fn sampling_ten_messages_costs_as_much_as_a_million() {
    let bed = SqlTest::on_shared_server(8).await;
    let statements = bed.operator().await.sampling_statements("main");
    let mut loading = bed.session().await;
    for n in 0..10 {
        loading.run(&format!("SELECT relevo.emit('orders', 'k{n}', 'T', '{{}}')")).await;
    }
    all(&mut loading, SETTLE).await;
    let few = pages(&mut bed.session().await, &statements).await;
    all(&mut loading, HISTORY).await;
    // In the middle of a window of a million messages. Settled messages are skipped by index.
    loading.run("SELECT relevo.make_tick()").await;
    loading
        .run(
            "INSERT INTO relevo.progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch) \
             SELECT 'main', 8, s, t.tick - 1, t.tick, t.max_seq - 5, 1 FROM generate_series(0, 7) AS s, \
             (SELECT tick, max_seq FROM relevo.tick ORDER BY tick DESC LIMIT 1) AS t",
        )
        .await;
    let middle = pages(&mut bed.session().await, &statements).await;
    assert_eq!(bed.operator().await.sample_destination().await.unwrap().backlog.pending, 5);
    all(&mut loading, SETTLE).await;
    let many = pages(&mut bed.session().await, &statements).await;
    loading.run_slow("ANALYZE").await;
    let analysed = pages(&mut bed.session().await, &statements).await;
    for (what, counts) in [("in the middle of a window", middle), ("not analysed", many), ("analysed", analysed)] {
        for ((few, count), statement) in few.iter().zip(counts).zip(&statements) {
            // Indexes of a million rows are two pages deeper, for each of the few lookups.
            assert!(count <= few + 60, "{what}: {count} pages, {few} with ten messages: {statement}");
        }
    }
}

#[tokio::test]
async fn a_million_waiting_messages_are_counted_up_to_the_limit() {
    let bed = SqlTest::on_shared_server(8).await;
    let store = bed.operator().await;
    let mut loading = bed.session().await;
    let messages = HISTORY.split(';').take(2).collect::<Vec<_>>().join(";");
    all(&mut loading, &messages).await;
    let vitals = store.sample_destination().await.unwrap();
    assert!(!vitals.backlog.exact && vitals.backlog.pending >= 990_000, "{vitals:?}");
    for when in ["not analysed", "analysed"] {
        let counts = pages(&mut bed.session().await, &store.sampling_statements("main")).await;
        assert!(counts[0] < 1500, "{when}: {counts:?}");
        loading.run_slow("ANALYZE").await;
    }
}

#[tokio::test]
async fn every_waiting_message_is_sampled() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let store = world.operator().await;
        let nothing = store.sample_destination().await.unwrap();
        assert_eq!((nothing.backlog.pending, nothing.oldest_pending), (0, Duration::ZERO));
        let broker = MemoryBroker::new(Config::default());
        broker.add_failure(FailureRule::new(RuleTarget::Key("stuck".to_owned()), Class::Transient));
        broker.add_failure(FailureRule::new(RuleTarget::Key("bad".to_owned()), Class::Poison));
        broker.add_failure(FailureRule::new(RuleTarget::Address("wall".to_owned()), Class::Blocked));
        world.emit(&["stuck", "stuck", "fine", "bad"]).await;
        world.run("SELECT relevo.emit('wall', 'held', 'T', '{}')").await;
        let relay = RunningRelay::start(world.store().await, &broker, config());
        wait_until("all of it waits", async || {
            let vitals = store.sample_destination().await.unwrap();
            (vitals.backlog.pending, vitals.backlog.parked, vitals.backlog.dead) == (0, 3, 1)
        })
        .await;
        relay.stop().await;
        let vitals = store.sample_destination().await.unwrap();
        assert_eq!(
            (vitals.parked_keys, vitals.held_addresses),
            (3, 1),
            "the key of the dead letter waits too: {vitals:?}"
        );
        assert!(vitals.oldest_pending > Duration::ZERO, "{vitals:?}");
        world.run("UPDATE relevo.parked_message SET created_at = created_at - interval '1 hour'").await;
        assert!(store.sample_destination().await.unwrap().oldest_pending > Duration::from_secs(3599));
        world.run("DELETE FROM relevo.parked_key").await;
        assert_eq!(store.sample_destination().await.unwrap().oldest_pending, Duration::ZERO);
        world.emit(&["new"]).await;
        world.run("UPDATE relevo.message SET created_at = created_at - interval '2 hours'").await;
        let vitals = store.sample_destination().await.unwrap();
        assert_eq!(vitals.backlog.pending, 1);
        assert!(vitals.oldest_pending > Duration::from_secs(7199), "{vitals:?}");
        assert_eq!(vitals.holdback, Duration::ZERO, "no partition is full");
    }
}

#[tokio::test]
async fn a_late_transaction_is_part_of_the_backlog() {
    let world = TestDatabase::new().await;
    let store = world.operator().await;
    let mut late = Session::new(world.connect().await).await;
    late.run("BEGIN").await;
    late.run("SELECT relevo.emit('orders', 'late', 'T', '{}')").await;
    world.emit(&["early"]).await;
    let broker = MemoryBroker::new(Config::default());
    let relay = RunningRelay::start(world.store().await, &broker, config());
    wait_until("one arrives", async || broker.received() == 1).await;
    wait_until("it is settled", async || store.sample_destination().await.unwrap().backlog.pending == 0).await;
    relay.stop().await;
    late.run("COMMIT").await;
    let vitals = store.sample_destination().await.unwrap();
    assert_eq!(vitals.backlog.pending, 1, "it has a number below what was settled");
    assert!(vitals.oldest_pending > Duration::ZERO);
}

#[tokio::test]
async fn a_stalled_destination_delays_retention() {
    let world = TestDatabase::new().await;
    let store = world.operator().await;
    world.emit(&["first"]).await;
    world.run("SELECT setval('relevo.message_seq', 1000100)").await;
    world.run("SELECT relevo.maintain()").await;
    world.emit(&["second"]).await;
    world.run("SELECT relevo.make_tick()").await;
    assert_eq!(store.sample_destination().await.unwrap().holdback, Duration::ZERO, "it is not old enough");
    world.run("UPDATE relevo.message SET created_at = created_at - interval '7 days 1 hour' WHERE seq < 1000000").await;
    let holdback = store.sample_destination().await.unwrap().holdback;
    assert!(holdback > Duration::from_secs(3500) && holdback < Duration::from_secs(3700), "{holdback:?}");
    // A relay of another destination reports this one too.
    world.run("SELECT relevo.add_destination('other', 2, 'now')").await;
    let all = world.operator().await.sample_outbox().await.unwrap().retention_overdue;
    let all: Vec<_> = all.iter().map(|(name, held)| (name.as_str(), *held >= holdback)).collect();
    assert_eq!(all, [(MAIN, true), ("other", false)]);
    let broker = MemoryBroker::new(Config::default());
    let relay = RunningRelay::start(world.store().await, &broker, config());
    wait_until("it is taken", async || store.sample_destination().await.unwrap().holdback == Duration::ZERO).await;
    relay.stop().await;
}

#[tokio::test]
async fn an_open_transaction_holds_the_horizon() {
    let world = TestDatabase::on_private_server().await;
    let store = world.operator().await;
    let mut old = Session::new(world.connect().await).await;
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    old.run("SELECT count(*) FROM relevo.message").await;
    world.emit(&["a", "b", "c"]).await;
    let horizon = store.sample_outbox().await.unwrap().horizon.expect("PostgreSQL has one");
    assert!(horizon.transactions >= 3 && horizon.held_for > Duration::ZERO, "{horizon:?}");
    old.run("COMMIT").await;
    let horizon = store.sample_outbox().await.unwrap().horizon.expect("PostgreSQL has one");
    assert!(horizon.transactions < 3, "{horizon:?}");
}

#[tokio::test]
async fn a_writer_that_idles_between_two_statements_holds_the_horizon_of_every_database() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_private_version(version).await;
        let store = world.operator().await;
        let held = async || store.sample_outbox().await.unwrap().horizon.expect("PostgreSQL has one").transactions;
        let mut here = Session::new(world.connect().await).await;
        here.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
        here.run("SELECT relevo.emit('orders', 'late', 'T', '{}')").await;
        world.emit(&["a", "b", "c"]).await;
        assert!(held().await >= 3, "it has no snapshot, and is still to be seen");
        here.run("ROLLBACK").await;
        assert!(held().await < 3);
        world.run("CREATE DATABASE elsewhere").await;
        let elsewhere = world.database.options().database("elsewhere");
        let mut reader = Session::new(elsewhere.connect().await.unwrap()).await;
        reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
        reader.run("SELECT 1").await;
        world.emit(&["a", "b", "c"]).await;
        assert!(held().await < 3, "it cannot read this database");
        let mut writer = Session::new(elsewhere.connect().await.unwrap()).await;
        writer.run("BEGIN").await;
        writer.run("CREATE TABLE anything ()").await;
        world.emit(&["a", "b", "c"]).await;
        assert!(held().await >= 3, "snapshots of this database reach back to it");
    }
}

#[tokio::test]
async fn consumers_of_the_same_database_are_sampled() {
    let world = TestDatabase::new().await;
    let store = world.operator().await;
    assert_eq!(store.sample_outbox().await.unwrap().consumers, []);
    world
        .run(
            "SELECT relevo.inbox_heartbeat('billing', '00000000-0000-0000-0000-000000000001', 'one', 60000, NULL, '[]', '[]', 100); \
             SELECT relevo.inbox_acquire_lanes('billing', '00000000-0000-0000-0000-000000000001', '{0,1}', 100); \
             SELECT relevo.inbox_heartbeat('billing', '00000000-0000-0000-0000-000000000001', 'one', 60000, \
                 now() - interval '5 s', '[]', '[[\"1\", \"down\"]]', 100); \
             UPDATE relevo.inbox_member SET beat_at = beat_at - interval '2 minutes'; \
             SELECT relevo.inbox_insert('audit', gen_random_uuid())",
        )
        .await;
    let consumers = store.sample_outbox().await.unwrap().consumers;
    let names: Vec<&str> = consumers.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["audit", "billing"]);
    assert_eq!((consumers[0].members, consumers[0].heartbeat_age), (0, None), "it has never sent a heartbeat");
    let billing = &consumers[1];
    assert_eq!((billing.members, billing.waiting, billing.dead), (1, 0, 0));
    assert!(billing.heartbeat_age.unwrap() >= Duration::from_mins(2), "{billing:?}");
    assert!(billing.last_message_age.unwrap() >= Duration::from_secs(5), "{billing:?}");
    assert_eq!(billing.breakers, [("0".to_owned(), false), ("1".to_owned(), true)]);
    world.run("UPDATE relevo.inbox_member SET expires_at = clock_timestamp() - interval '1 second'").await;
    let billing = &store.sample_outbox().await.unwrap().consumers[1];
    assert_eq!(billing.breakers, [("0".to_owned(), false), ("1".to_owned(), false)], "who said so is dead");
}

#[tokio::test]
async fn a_removed_consumer_is_sampled_while_it_has_messages() {
    let world = TestDatabase::new().await;
    let store = world.operator().await;
    let sampled = async || {
        let consumers = store.sample_outbox().await.unwrap().consumers;
        consumers.into_iter().map(|it| (it.name, it.heartbeat_age.is_some(), it.waiting)).collect::<Vec<_>>()
    };
    let billing = |heartbeat: bool, waiting: u64| ("billing".to_owned(), heartbeat, waiting);
    world.run("SELECT relevo.inbox_insert('billing', gen_random_uuid())").await;
    for _ in 0..2 {
        world
            .run(
                "SELECT relevo.inbox_heartbeat('billing', '00000000-0000-0000-0000-000000000001', 'one', 60000, NULL, '[]', '[]', 100); \
                 UPDATE relevo.inbox_member SET expires_at = clock_timestamp() - interval '1 second'",
            )
            .await;
        assert_eq!(sampled().await, [billing(true, 0)], "its silence is reported");
        world.run("SELECT relevo.inbox_remove_consumer('billing')").await;
        assert!(sampled().await.is_empty());
    }
    world
        .run(
            "INSERT INTO relevo.inbox_retry_message (consumer, queue, id, replay, header_names, header_values, payload, address, lane) \
             VALUES ('billing', 'k', gen_random_uuid(), 0, '{}', '{}', '', 'orders', '0')",
        )
        .await;
    assert_eq!(sampled().await, [billing(false, 1)]);
    world.run("DELETE FROM relevo.inbox_retry_message").await;
    assert!(sampled().await.is_empty());
    world.run("SELECT relevo.inbox_insert('billing', gen_random_uuid())").await;
    assert_eq!(sampled().await, [billing(false, 0)], "it sends no heartbeat, and works");
}
