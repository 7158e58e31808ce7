//! The operator's view of an outbox: the view `outbox` and the backlog.

use std::time::Duration;

use crate::relay_support::{BackgroundWriters, RunningRelay, TestDatabase, config, fast_retry_route, wait_until};
use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction};
use relevo_core::{Class, MessageId, RetryPolicy, Route, Routes};
use relevo_relay::Config;
use sqlx::Row as _;

/// One row of the view: status, attempts, and whether it has a next attempt, an error and a publish time.
async fn status_row(world: &TestDatabase, id: MessageId) -> (String, i32, bool, bool, bool) {
    let sql = format!(
        "SELECT status, attempts, next_attempt_at IS NOT NULL, last_error IS NOT NULL, published_at IS NOT NULL \
         FROM relevo.outbox WHERE id = '{id}'"
    );
    let rows = world.rows(&sql).await;
    assert_eq!(rows.len(), 1, "one line a message");
    let get = |at: usize| rows[0].try_get::<bool, _>(at).expect("a boolean");
    (rows[0].try_get(0).expect("a status"), rows[0].try_get(1).expect("a count"), get(2), get(3), get(4))
}

fn expected_row(
    status: &str,
    attempts: i32,
    next: bool,
    error: bool,
    published: bool,
) -> (String, i32, bool, bool, bool) {
    (status.to_owned(), attempts, next, error, published)
}

#[tokio::test]
async fn every_state_of_a_message_is_shown() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let ids = world.emit(&["plain", "retry", "retry", "odd", "dead", "dead", "discarded", "later"]).await;
    let [plain, retrying, behind, odd, dead, behind_dead, discarded, later] = ids[..] else { panic!("eight ids") };
    let held: MessageId =
        world.texts("SELECT relevo.emit('wall', 'held', 'T', '{}')::text").await[0].parse().expect("an id");
    let waits = "SELECT relevo.emit('orders', 'k', 'T', '{}', deliver_at => now() + interval '1 hour')::text";
    let scheduled: MessageId = world.texts(waits).await[0].parse().expect("an id");
    for id in [dead, discarded] {
        broker.add_failure(FailureRule::new(RuleTarget::Id(id), Class::Poison));
    }
    broker.add_failure(FailureRule::new(RuleTarget::Id(odd), Class::Unknown));
    broker.add_failure(FailureRule::new(RuleTarget::Id(retrying), Class::Transient));
    broker.add_failure(FailureRule::new(RuleTarget::Id(later), Class::Transient).times(1));
    broker.add_failure(FailureRule::new(RuleTarget::Address("wall".to_owned()), Class::Blocked));
    let hour = Duration::from_hours(1);
    // The first pause is long, so that the status is visible. For the message that succeeds on retry, the test ends the
    // pause below.
    let policy = RetryPolicy { base: hour, max: hour, ..fast_retry_route().policy };
    let routes = Routes::new(vec![Route { policy, ..fast_retry_route() }]);
    let relay = RunningRelay::start(world.store().await, &broker, Config { routes, ..config() });
    let traffic = BackgroundWriters::start(&world, 1);
    wait_until("the odd one is quarantined", async || status_row(&world, odd).await.0 == "quarantined").await;
    traffic.stop().await;
    wait_until("two are dead", async || world.number("SELECT count(*) FROM relevo.dead_letter").await == 2).await;
    let filter = DeadLetterFilter { ids: vec![discarded], ..DeadLetterFilter::of_destination("main") };
    assert_eq!(world.operator().await.mark(MarkAction::Discard, filter).await.expect("a mark"), 1);
    world.run("UPDATE relevo.parked_key SET next_at = clock_timestamp() WHERE key = 'later'").await;
    wait_until("the second time it passes", async || status_row(&world, later).await.0 == "published").await;
    wait_until("it is discarded", async || status_row(&world, discarded).await.0 == "discarded").await;
    wait_until("the plain one is settled", async || status_row(&world, plain).await.0 == "published").await;
    relay.stop().await;
    let pending = world.emit(&["plain"]).await[0];

    assert_eq!(status_row(&world, scheduled).await, expected_row("scheduled", 0, true, false, false));
    assert_eq!(status_row(&world, pending).await, expected_row("pending", 0, false, false, false));
    assert_eq!(status_row(&world, plain).await, expected_row("published", 0, false, false, true));
    assert_eq!(status_row(&world, later).await, expected_row("published", 0, false, false, true));
    assert_eq!(status_row(&world, retrying).await, expected_row("retrying", 1, true, true, false));
    assert_eq!(status_row(&world, behind).await, expected_row("waiting", 0, false, false, false));
    assert_eq!(status_row(&world, held).await, expected_row("held", 0, true, true, false));
    assert_eq!(status_row(&world, odd).await, expected_row("quarantined", 0, true, true, false));
    assert_eq!(status_row(&world, dead).await, expected_row("dead", 1, false, true, false));
    assert_eq!(status_row(&world, discarded).await, expected_row("discarded", 1, false, true, false));
    let waiting = status_row(&world, behind_dead).await;
    assert_eq!((&*waiting.0, waiting.1, waiting.4), ("waiting", 0, false));
    let order = format!(
        "SELECT count(*) FROM relevo.outbox AS a, relevo.outbox AS b WHERE a.id = '{plain}' AND b.id = '{later}' \
         AND a.created_at < a.published_at AND b.created_at < b.published_at AND a.published_at < b.published_at"
    );
    assert_eq!(world.number(&order).await, 1, "what was parked is published when it went out, not when it was parked");
}

#[tokio::test]
async fn a_message_is_shown_once_for_each_destination() {
    let world = TestDatabase::new().await;
    world.run("SELECT relevo.add_destination('other', 2, 'oldest')").await;
    let id = world.emit(&["a"]).await[0];
    let broker = MemoryBroker::new(BrokerConfig::default());
    let relay = RunningRelay::start(world.store().await, &broker, config());
    world.wait_until_drained().await;
    relay.stop().await;
    let sql = format!("SELECT destination || ' ' || status FROM relevo.outbox WHERE id = '{id}' ORDER BY 1");
    assert_eq!(world.texts(&sql).await, ["main published", "other pending"]);
}

#[tokio::test]
async fn the_backlog_is_exact_up_to_a_limit_and_an_estimate_above() {
    let world = TestDatabase::new().await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let ids = world.emit(&["a", "b"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Id(ids[0]), Class::Poison));
    broker.add_failure(FailureRule::new(RuleTarget::Key("b".to_owned()), Class::Transient));
    let hour = Duration::from_hours(1);
    let policy = RetryPolicy { base: hour, max: hour, ..fast_retry_route().policy };
    let routes = Routes::new(vec![Route { policy, ..fast_retry_route() }]);
    let relay = RunningRelay::start(world.store().await, &broker, Config { routes, ..config() });
    let backlog = async |most: u32| {
        let sql = format!("SELECT pending, exact, parked, dead FROM relevo.backlog('main', {most})");
        let rows = world.rows(&sql).await;
        let number = |at: usize| rows[0].try_get::<i64, _>(at).expect("a count");
        (number(0), rows[0].try_get::<bool, _>(1).expect("a boolean"), number(2), number(3))
    };
    wait_until("one is dead and one waits", async || backlog(10_000).await == (0, true, 1, 1)).await;
    relay.stop().await;
    world.emit_many(200, 50).await;
    // These are rolled back, so an exact count excludes them.
    world.run("BEGIN; SELECT relevo.emit('orders', 'k', 'T', '{}') FROM generate_series(1, 20); ROLLBACK").await;
    assert_eq!(backlog(10_000).await, (200, true, 1, 1));
    assert_eq!(backlog(200).await, (200, true, 1, 1), "the limit itself is exact");
    let (pending, exact, ..) = backlog(199).await;
    assert!(!exact);
    assert!((150..=300).contains(&pending), "an estimate by numbers given out: {pending}");

    let store = world.operator().await;
    let seen = store.backlog().await.expect("a backlog");
    assert_eq!((seen.pending, seen.exact, seen.parked, seen.dead), (200, true, 1, 1));
}
