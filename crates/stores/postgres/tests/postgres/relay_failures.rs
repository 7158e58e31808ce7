//! The broker rejects, stalls and fails: which messages wait, which are delivered, which are dead-lettered and
//! redriven.

use std::time::Duration;

use crate::relay_support::{BackgroundWriters, RunningRelay, TestDatabase, config, fast_retry_route, wait_until, with};
use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction};
use relevo_core::{AfterDead, Class, MessageId, RetryPolicy, Route, Routes};
use relevo_relay::{Advanced, Config};

fn broker() -> MemoryBroker {
    MemoryBroker::new(BrokerConfig::default())
}

fn all() -> DeadLetterFilter {
    DeadLetterFilter::of_destination("main")
}

/// Returns what the broker received of one key, in order.
fn received(broker: &MemoryBroker, key: &str) -> Vec<MessageId> {
    broker.received_messages().into_iter().filter(|receipt| receipt.key == key).map(|receipt| receipt.id).collect()
}

async fn status(world: &TestDatabase, id: MessageId) -> String {
    world.texts(&format!("SELECT status FROM relevo.outbox WHERE id = '{id}'")).await.join(", ")
}

/// Property P5.
#[tokio::test]
async fn an_outage_counts_no_attempt_and_dead_letters_nothing() {
    let world = TestDatabase::new().await;
    let broker = broker();
    broker.down();
    let relay = RunningRelay::start(world.store().await, &broker, config());
    let ledger = world.emit_many(300, 30).await;
    // The first message of each key at once, then one message repeatedly: more often than the three attempts of the
    // policy.
    wait_until("the relay has tried many times", async || relay.stats.attempts() > 30 + 6).await;
    assert_eq!((broker.received(), relay.stats.broker_outages()), (0, 1));
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);
    assert_eq!(world.number("SELECT count(*) FROM relevo.parked_key").await, 0);
    broker.up();
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
}

/// Property P4.
#[tokio::test]
async fn a_failing_key_holds_back_only_itself_and_recovers_in_order() {
    let world = TestDatabase::new().await;
    let broker = broker();
    broker.add_failure(FailureRule::new(RuleTarget::Key("k-3".to_owned()), Class::Transient));
    let patient =
        Route { policy: RetryPolicy { attempts_max: 1_000_000, ..fast_retry_route().policy }, ..fast_retry_route() };
    let relay =
        RunningRelay::start(world.store().await, &broker, Config { routes: Routes::new(vec![patient]), ..config() });
    let mut ledger = world.emit_many(400, 20).await;
    wait_until("the other keys are through", async || broker.received() == 380).await;
    ledger.add(world.emit_many(400, 20).await);
    wait_until("the other keys are through again", async || broker.received() == 760).await;
    assert!(received(&broker, "k-3").is_empty());
    wait_until("the rest of the key waits behind its first", async || {
        world.number("SELECT count(*) FROM relevo.parked_message").await == 40
    })
    .await;
    wait_until("its attempts are counted", async || {
        world.number("SELECT max(attempts) FROM relevo.parked_key").await > 2
    })
    .await;
    broker.clear_failures();
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
}

#[tokio::test]
async fn a_message_out_of_attempts_holds_its_key_until_it_is_redriven() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let ids = world.emit(&["a", "a", "b", "a"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Id(ids[0]), Class::Transient));
    let relay = RunningRelay::start(world.store().await, &broker, config());
    wait_until("the first is dead", async || status(&world, ids[0]).await == "dead").await;
    assert_eq!(received(&broker, "b"), [ids[2]]);
    assert!(received(&broker, "a").is_empty());
    let letters = world.operator().await.dead_letters(&all()).await.expect("letters");
    assert_eq!((letters.len(), letters[0].attempts, &*letters[0].class), (1, 3, "transient"));
    wait_until("the others wait", async || status(&world, ids[3]).await == "waiting").await;

    broker.clear_failures();
    let later = world.emit(&["a"]).await;
    assert_eq!(world.operator().await.mark(MarkAction::Redrive, all()).await.expect("a mark"), 1);
    world.wait_until_drained().await;
    assert_eq!(received(&broker, "a"), [ids[0], ids[1], ids[3], later[0]]);
    assert_eq!(
        world.operator().await.mark(MarkAction::Redrive, all()).await.expect("a mark"),
        0,
        "a double click redrives once"
    );
    relay.stop().await;
}

#[tokio::test]
async fn poison_is_dead_lettered_at_once_and_discarding_it_frees_its_key() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let ids = world.emit(&["a", "a", "a"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Id(ids[0]), Class::Poison));
    let relay = RunningRelay::start(world.store().await, &broker, config());
    wait_until("the first is dead", async || status(&world, ids[0]).await == "dead").await;
    assert_eq!(world.operator().await.dead_letters(&all()).await.expect("letters")[0].attempts, 1);
    assert!(received(&broker, "a").is_empty());
    assert_eq!(world.operator().await.mark(MarkAction::Discard, all()).await.expect("a mark"), 1);
    wait_until("the rest arrives", async || received(&broker, "a") == ids[1..]).await;
    wait_until("it is discarded", async || status(&world, ids[0]).await == "discarded").await;
    relay.stop().await;
}

#[tokio::test]
async fn a_key_with_policy_continue_is_published_past_its_dead_letter() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let ids = world.emit(&["a", "a", "a"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Id(ids[0]), Class::Poison).times(1));
    let routes = Routes::new(vec![Route { after_dead: AfterDead::Continue, ..fast_retry_route() }]);
    let relay = RunningRelay::start(world.store().await, &broker, Config { routes, ..config() });
    wait_until("the others arrive", async || received(&broker, "a") == ids[1..]).await;
    wait_until("the first is dead", async || status(&world, ids[0]).await == "dead").await;
    assert_eq!(world.operator().await.mark(MarkAction::Redrive, all()).await.expect("a mark"), 1);
    wait_until("it arrives too", async || received(&broker, "a") == [ids[1], ids[2], ids[0]]).await;
    world.wait_until_drained().await;
    assert_eq!(status(&world, ids[0]).await, "published");
    relay.stop().await;
}

async fn emit_to(world: &TestDatabase, topic: &str, count: usize) -> Vec<MessageId> {
    let sql = format!(
        "SELECT relevo.emit('{topic}', '{topic}-' || n % 5, 'OrderPlaced', '{{}}')::text FROM generate_series(1, {count}) AS n"
    );
    world.texts(&sql).await.iter().map(|id| id.parse().expect("an id")).collect()
}

fn received_at(broker: &MemoryBroker, address: &str) -> usize {
    broker.received_messages().iter().filter(|receipt| &*receipt.address == address).count()
}

#[tokio::test]
async fn a_blocked_address_holds_only_itself_and_a_probe_frees_it() {
    let world = TestDatabase::new().await;
    let broker = broker();
    broker.add_failure(FailureRule::new(RuleTarget::Address("wall".to_owned()), Class::Blocked));
    let probing = with(Advanced { blocked_probe_interval: Duration::from_millis(50), ..config().advanced });
    let relay = RunningRelay::start(world.store().await, &broker, probing);
    emit_to(&world, "wall", 50).await;
    wait_until("the address is held", async || world.number("SELECT count(*) FROM relevo.address_hold").await == 1)
        .await;
    emit_to(&world, "road", 100).await;
    emit_to(&world, "wall", 50).await;
    wait_until("the other address flows", async || received_at(&broker, "road") == 100).await;
    wait_until("everything for the wall waits", async || {
        world.number("SELECT count(*) FROM relevo.parked_message").await == 100
    })
    .await;
    let tried = relay.stats.attempts();
    wait_until("it is probed", async || relay.stats.attempts() > tried + 5).await;
    assert_eq!(received_at(&broker, "wall"), 0);
    assert_eq!(world.number("SELECT max(attempts) FROM relevo.parked_key").await, 0, "nothing is counted");
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);

    broker.clear_failures();
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(world.number("SELECT count(*) FROM relevo.address_hold").await, 0);
    let log = crate::relay_support::EmittedMessages::read(
        &world.rows("SELECT id, key FROM relevo.message ORDER BY seq").await,
    );
    assert_eq!((log.len(), log.assert_received(&broker)), (200, 0));
}

/// New messages for the address, each with a new key, must not postpone its probe.
#[tokio::test]
async fn a_blocked_address_is_probed_under_traffic() {
    let world = TestDatabase::new().await;
    let broker = broker();
    broker.add_failure(FailureRule::new(RuleTarget::Address("wall".to_owned()), Class::Blocked));
    let probing = with(Advanced { blocked_probe_interval: Duration::from_millis(300), ..config().advanced });
    let relay = RunningRelay::start(world.store().await, &broker, probing);
    let new_key = "SELECT relevo.emit('wall', gen_random_uuid()::text, 'OrderPlaced', '{}')";
    wait_until("it is probed again and again", async || {
        world.run(new_key).await;
        let held = world.number("SELECT count(*) FROM relevo.address_hold").await;
        held == 1 && relay.stats.attempts() > 4
    })
    .await;
    broker.clear_failures();
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(world.number("SELECT count(*) FROM relevo.address_hold").await, 0);
}

#[tokio::test]
async fn a_throttled_address_is_not_used_for_the_requested_time() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let pause = Duration::from_millis(700);
    broker.add_failure(FailureRule::new(RuleTarget::Address("slow".to_owned()), Class::Throttled(pause)).times(1));
    let relay = RunningRelay::start(world.store().await, &broker, config());
    wait_until("it has leases", async || world.shards_per_owner().await == [8]).await;
    let throttled_at = std::time::Instant::now();
    emit_to(&world, "slow", 50).await;
    emit_to(&world, "road", 50).await;
    wait_until("the other address flows", async || received_at(&broker, "road") == 50).await;
    world.wait_until_drained().await;
    assert!(throttled_at.elapsed() >= pause, "after {:?}", throttled_at.elapsed());
    relay.stop().await;
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);
    let log = crate::relay_support::EmittedMessages::read(
        &world.rows("SELECT id, key FROM relevo.message ORDER BY seq").await,
    );
    assert_eq!(log.len(), 100);
    log.assert_received(&broker);
}

#[tokio::test]
async fn a_message_that_breaks_connections_is_quarantined_and_others_are_published() {
    let world = TestDatabase::new().await;
    let broker = broker();
    let ids = world.emit(&["a", "a", "a"]).await;
    broker.add_failure(FailureRule::new(RuleTarget::Id(ids[0]), Class::Unknown));
    let probing = with(Advanced { quarantine_probe_interval: Duration::from_millis(100), ..config().advanced });
    let relay = RunningRelay::start(world.store().await, &broker, probing);
    // Only a delivery of another message proves that this is not an outage.
    let traffic = BackgroundWriters::start(&world, 2);
    wait_until("it is quarantined", async || status(&world, ids[0]).await == "quarantined").await;
    let then = broker.received();
    wait_until("the other keys flow", async || broker.received() > then + 200).await;
    let ledger = traffic.stop().await;
    wait_until("all of them arrived", async || broker.received() >= ledger.len() as u64).await;
    assert_eq!(ledger.assert_received(&broker), 0);
    let attempts = "SELECT attempts FROM relevo.parked_key WHERE key = 'a'";
    assert_eq!(world.number(attempts).await, 0, "nothing is counted");
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);
    broker.clear_failures();
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(received(&broker, "a"), ids);
}

#[tokio::test]
async fn a_lost_confirm_resends_the_same_id() {
    let world = TestDatabase::new().await;
    let broker = broker();
    broker.add_failure(FailureRule::new(RuleTarget::All, Class::Unknown).after_receipt().times(7));
    let relay = RunningRelay::start(world.store().await, &broker, config());
    let ledger = world.emit_many(100, 10).await;
    world.wait_until_drained().await;
    relay.stop().await;
    assert_eq!(ledger.assert_received(&broker), 7);
}
