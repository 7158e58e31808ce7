//! Compares committed with settled messages, and provokes each contradiction.

use std::time::Duration;

use crate::relay_support::{RunningRelay, TestDatabase, config, fast_retry_route, wait_until};
use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::outbox::inspect::MessageStatus;
use relevo_core::outbox::search::{TimeRange, VerifyReport};
use relevo_core::{Class, RetryPolicy, Route, Routes};
use relevo_relay::Config;
use relevo_store_postgres::Operator;

async fn verify(store: &Operator) -> VerifyReport {
    store.verify(TimeRange::default()).await.expect("an answer")
}

fn count(verified: &VerifyReport, status: MessageStatus) -> u64 {
    verified.by_status.iter().find(|(known, _)| *known == status).expect("every status is reported").1
}

#[tokio::test]
async fn committed_messages_are_counted_by_status() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let store = world.operator().await;
    assert_eq!(verify(&store).await.committed, 0);
    world.emit_many(9000, 50).await;
    let emitted = world.emit(&["dead", "dead", "retry", "retry"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Id(emitted[0]), Class::Poison));
    broker.add_failure(FailureRule::new(RuleTarget::Key("retry".to_owned()), Class::Transient));
    let hour = Duration::from_hours(1);
    let policy = RetryPolicy { base: hour, max: hour, ..fast_retry_route().policy };
    let routes = Routes::new(vec![Route { policy, ..fast_retry_route() }]);
    let relay = RunningRelay::start(world.store().await, &broker, Config { routes, ..config() });
    wait_until("all of them are settled", async || {
        let backlog = store.backlog().await.expect("a backlog");
        (backlog.pending, backlog.parked, backlog.dead) == (0, 3, 1)
    })
    .await;
    relay.stop().await;
    // Rolled-back messages do not count.
    world.run("BEGIN; SELECT relevo.emit('orders', 'k', 'T', '{}'); ROLLBACK").await;
    world.emit(&["pending"]).await;
    let verified = verify(&store).await;
    assert_eq!(verified.inconsistencies, [""; 0]);
    assert_eq!(verified.committed, 9005);
    assert_eq!(verified.by_status.iter().map(|(status, _)| *status).collect::<Vec<_>>(), MessageStatus::ALL);
    for (status, expected) in [
        (MessageStatus::Published, 9000),
        (MessageStatus::Dead, 1),
        (MessageStatus::Waiting, 2),
        (MessageStatus::Retrying, 1),
        (MessageStatus::Pending, 1),
        (MessageStatus::Discarded, 0),
    ] {
        assert_eq!(count(&verified, status), expected, "{status:?}");
    }
    let oldest = store.message(emitted[1]).await.expect("an answer").expect("it is there").summary.created_at;
    assert_eq!(verified.oldest_unsettled, Some(oldest), "the one behind the dead letter");
}

#[tokio::test]
async fn a_range_is_a_range_of_time() {
    let world = TestDatabase::new().await;
    world.emit(&["a", "a"]).await;
    world.run("UPDATE relevo.message SET created_at = created_at - interval '1 day'").await;
    let new = world.emit(&["a"]).await[0];
    let store = world.operator().await;
    let now = store.message(new).await.expect("an answer").expect("it is there").summary.created_at;
    let middle = now - jiff::SignedDuration::from_hours(1);
    let committed = async |range: TimeRange| store.verify(range).await.expect("an answer").committed;
    assert_eq!(committed(TimeRange { since: Some(middle), until: None }).await, 1);
    assert_eq!(committed(TimeRange { since: None, until: Some(middle) }).await, 2);
    assert_eq!(committed(TimeRange { since: Some(now), until: Some(now) }).await, 0);
    assert_eq!(committed(TimeRange::default()).await, 3);
}

/// Runs the statements in a session that does not check foreign keys. Such rows can only be created that way.
async fn inconsistencies_after(world: &TestDatabase, sql: &str) -> Vec<String> {
    let mut connection = world.connect().await;
    let unchecked = format!("SET session_replication_role = replica; {sql}");
    crate::relay_support::execute(&mut connection, &unchecked).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    verify(&world.operator().await).await.inconsistencies
}

/// A parked key in a state, with the columns that this state needs.
fn key(state: &str, more: &str) -> String {
    format!(
        "INSERT INTO relevo.parked_key (destination, key, slot, state, attempts, next_at, address, dead_id, route, class, error) \
         VALUES ('main', 'k', 1, '{state}', 1, {more}, 'r', 'transient', 'no')"
    )
}

const QUEUED: &str = "INSERT INTO relevo.parked_message \
    (destination, key, seq, slot, id, created_at, topic, type, content_type, payload) \
    SELECT 'main', key, seq, slot, id, created_at, topic, type, content_type, payload FROM relevo.message WHERE key = 'k'";

#[tokio::test]
async fn every_inconsistency_is_found() {
    let parked = |state: &str, more: &str| format!("{}; {QUEUED}", key(state, more));
    for (sql, expected) in [
        (QUEUED.to_owned(), "parked messages whose key is not parked: 1 (`k`)"),
        (key("retrying", "now(), NULL, NULL"), "parked keys with an empty queue: 1 (`k`)"),
        (key("dead", "NULL, NULL, gen_random_uuid()"), "keys that wait for a missing dead letter: 1 (`k`)"),
        (parked("held", "NULL, 'wall', NULL"), "keys that wait for an address that is not held: 1 (`k`)"),
        (parked("retrying", "NULL, NULL, NULL"), "parked keys without a time for the next attempt: 1 (`k`)"),
        (
            "INSERT INTO relevo.tick SELECT 99, snapshot, max_seq, late_xids, timeline FROM relevo.tick; \
             INSERT INTO relevo.progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch) \
             VALUES ('main', 8, 3, 98, 99, 0, 1)"
                .to_owned(),
            "shards whose progress names a missing tick: 1 (`3`)",
        ),
        (
            "INSERT INTO relevo.lease (destination, shard, epoch) VALUES ('main', 8, 0), ('main', 9, 0)".to_owned(),
            "leases of shards that do not exist: 2 (`8`, `9`)",
        ),
        ("DELETE FROM relevo.lease WHERE shard = 5".to_owned(), "shards without a lease: 1 (`5`)"),
        (
            "DELETE FROM relevo.progress WHERE shard < 6".to_owned(),
            "shards without progress: 6 (`0`, `1`, `2`, `3`, `4` …)",
        ),
    ] {
        let world = TestDatabase::new().await;
        world.emit(&["k"]).await;
        assert_eq!(verify(&world.operator().await).await.inconsistencies, [""; 0]);
        assert_eq!(inconsistencies_after(&world, &sql).await, [expected], "{sql}");
    }
}

#[tokio::test]
async fn a_message_in_two_places_is_found() {
    let world = TestDatabase::new().await;
    let id = world.emit(&["k"]).await[0];
    let dead = "INSERT INTO relevo.dead_letter (destination, id, seq, slot, created_at, topic, key, type, content_type, payload, \
                route, class, error, attempts) SELECT 'main', id, seq, slot, created_at, topic, key, type, content_type, \
                payload, 'r', 'poison', 'no', 3 FROM relevo.message";
    let sql = format!("{}; {QUEUED}; {dead}", key("retrying", "now(), NULL, NULL"));
    assert_eq!(
        inconsistencies_after(&world, &sql).await,
        [format!("messages that are both parked and dead-lettered: 1 (`{id}`)")]
    );
}

#[tokio::test]
async fn a_message_outside_every_window_is_found() {
    let world = TestDatabase::new().await;
    let store = world.operator().await;
    world.run("SELECT relevo.make_tick()").await;
    world.emit(&["a", "b"]).await;
    world.run("SELECT relevo.make_tick()").await;
    // The shards are at a tick whose `max_seq` is above the messages' numbers, but which does not list their
    // transactions.
    world
        .run(
            "UPDATE relevo.tick SET snapshot = '3:3:', late_xids = '{}' WHERE tick = (SELECT max(tick) FROM relevo.tick); \
             INSERT INTO relevo.progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch) \
             SELECT 'main', 8, s, t.tick, t.tick, 0, 1 FROM generate_series(0, 7) AS s, \
             (SELECT max(tick) AS tick FROM relevo.tick) AS t",
        )
        .await;
    let found = verify(&store).await.inconsistencies;
    let lost = "2 messages are neither settled nor ahead of their shard: no window will hold them, such as number 1";
    assert_eq!(found, [lost]);
    // The reverse: visible at the tick, with a number above its `max_seq`.
    world
        .run(
            "UPDATE relevo.tick SET snapshot = pg_current_snapshot(), max_seq = 0 \
             WHERE tick = (SELECT max(tick) FROM relevo.tick)",
        )
        .await;
    let found = verify(&store).await.inconsistencies;
    assert_eq!(found, ["2 messages count as settled although no window held them, such as number 1"]);
}

#[tokio::test]
async fn traffic_causes_no_inconsistency() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    for n in 0..4 {
        broker.add_failure(FailureRule::new(RuleTarget::Key(format!("w0-{n}")), Class::Transient).times(2));
    }
    let relay = RunningRelay::start(world.store().await, &broker, config());
    let traffic = crate::relay_support::BackgroundWriters::start(&world, 2);
    let store = world.operator().await;
    for _ in 0..20 {
        assert_eq!(verify(&store).await.inconsistencies, [""; 0]);
    }
    let ledger = traffic.stop_after(&broker, 100).await;
    world.wait_until_drained().await;
    relay.stop().await;
    let verified = verify(&store).await;
    assert_eq!(verified.inconsistencies, [""; 0]);
    assert_eq!(verified.committed, u64::try_from(ledger.len()).expect("a count"));
}
