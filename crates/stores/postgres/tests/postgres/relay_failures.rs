//! The broker rejects, stalls and fails: which messages wait, which are delivered, which are dead-lettered and
//! redriven.

use std::time::Duration;

use crate::e2e_support::{Running, Traffic, World, config, quick_route, until};
use relevo_broker_memory::{Match, MemoryBroker, Rule, Settings};
use relevo_core::store::{DeadFilter, DeadLetters as _, Mark};
use relevo_core::{AfterDead, Class, MessageId, Policy, Route, Routes};
use relevo_relay::Config;

fn broker() -> MemoryBroker {
    MemoryBroker::new(Settings::default())
}

fn mark() -> Mark {
    Mark { filter: DeadFilter::default(), dry_run: false, by: "ana".to_owned(), reason: "mended".to_owned() }
}

/// Returns what the broker received of one key, in order.
fn received(broker: &MemoryBroker, key: &str) -> Vec<MessageId> {
    broker.receipts().into_iter().filter(|receipt| receipt.key == key).map(|receipt| receipt.id).collect()
}

async fn status(world: &World, id: MessageId) -> String {
    world.texts(&format!("SELECT status FROM relevo.outbox WHERE id = '{id}'")).await.join(", ")
}

/// Property P5.
#[tokio::test]
async fn an_outage_counts_no_attempt_and_buries_nothing() {
    let world = World::new().await;
    let broker = broker();
    broker.down();
    let relay = Running::start(world.store().await, &broker, config());
    let ledger = world.emit_some(300, 30).await;
    // The first message of each key at once, then one message repeatedly: more often than the three attempts of the
    // policy.
    until("the relay has tried many times", async || relay.stats.attempts() > 30 + 6).await;
    assert_eq!((broker.received(), relay.stats.outages()), (0, 1));
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);
    assert_eq!(world.number("SELECT count(*) FROM relevo.parked_key").await, 0);
    broker.up();
    world.drained().await;
    relay.stop().await;
    assert_eq!(ledger.check(&broker), 0);
}

/// Property P4.
#[tokio::test]
async fn a_failing_key_holds_back_only_itself_and_recovers_in_order() {
    let world = World::new().await;
    let broker = broker();
    broker.fail(Rule::new(Match::Key("k-3".to_owned()), Class::Transient));
    let patient = Route { policy: Policy { attempts_max: 1_000_000, ..quick_route().policy }, ..quick_route() };
    let relay = Running::start(world.store().await, &broker, Config { routes: Routes::new(vec![patient]), ..config() });
    let mut ledger = world.emit_some(400, 20).await;
    until("the other keys are through", async || broker.received() == 380).await;
    ledger.add(world.emit_some(400, 20).await);
    until("the other keys are through again", async || broker.received() == 760).await;
    assert!(received(&broker, "k-3").is_empty());
    until("the rest of the key waits behind its first", async || {
        world.number("SELECT count(*) FROM relevo.parked_message").await == 40
    })
    .await;
    until("its attempts are counted", async || world.number("SELECT max(attempts) FROM relevo.parked_key").await > 2)
        .await;
    broker.mend();
    world.drained().await;
    relay.stop().await;
    assert_eq!(ledger.check(&broker), 0);
}

#[tokio::test]
async fn a_message_out_of_attempts_holds_its_key_until_it_is_redriven() {
    let world = World::new().await;
    let broker = broker();
    let ids = world.emit(&["a", "a", "b", "a"]).await;
    broker.fail(Rule::new(Match::Id(ids[0]), Class::Transient));
    let store = world.store().await;
    let relay = Running::start(world.store().await, &broker, config());
    until("the first is dead", async || status(&world, ids[0]).await == "dead").await;
    assert_eq!(received(&broker, "b"), [ids[2]]);
    assert!(received(&broker, "a").is_empty());
    let letters = store.dead(&DeadFilter::default(), 10).await.expect("letters");
    assert_eq!((letters.len(), letters[0].attempts, &*letters[0].class), (1, 3, "transient"));
    until("the others wait", async || status(&world, ids[3]).await == "behind").await;

    broker.mend();
    let later = world.emit(&["a"]).await;
    assert_eq!(store.redrive(&mark()).await.expect("a mark"), 1);
    world.drained().await;
    assert_eq!(received(&broker, "a"), [ids[0], ids[1], ids[3], later[0]]);
    assert_eq!(store.redrive(&mark()).await.expect("a mark"), 0, "a double click redrives once");
    relay.stop().await;
}

#[tokio::test]
async fn poison_is_buried_at_once_and_discarding_it_frees_its_key() {
    let world = World::new().await;
    let broker = broker();
    let ids = world.emit(&["a", "a", "a"]).await;
    broker.fail(Rule::new(Match::Id(ids[0]), Class::Poison));
    let store = world.store().await;
    let relay = Running::start(world.store().await, &broker, config());
    until("the first is dead", async || status(&world, ids[0]).await == "dead").await;
    assert_eq!(store.dead(&DeadFilter::default(), 10).await.expect("letters")[0].attempts, 1);
    assert!(received(&broker, "a").is_empty());
    assert_eq!(store.discard(&mark()).await.expect("a mark"), 1);
    until("the rest arrives", async || received(&broker, "a") == ids[1..]).await;
    until("it is discarded", async || status(&world, ids[0]).await == "discarded").await;
    relay.stop().await;
}

#[tokio::test]
async fn a_key_that_continues_goes_on_past_its_dead_letter() {
    let world = World::new().await;
    let broker = broker();
    let ids = world.emit(&["a", "a", "a"]).await;
    broker.fail(Rule::new(Match::Id(ids[0]), Class::Poison).times(1));
    let routes = Routes::new(vec![Route { after_dead: AfterDead::Continue, ..quick_route() }]);
    let store = world.store().await;
    let relay = Running::start(world.store().await, &broker, Config { routes, ..config() });
    until("the others arrive", async || received(&broker, "a") == ids[1..]).await;
    until("the first is dead", async || status(&world, ids[0]).await == "dead").await;
    assert_eq!(store.redrive(&mark()).await.expect("a mark"), 1);
    until("it arrives too", async || received(&broker, "a") == [ids[1], ids[2], ids[0]]).await;
    world.drained().await;
    assert_eq!(status(&world, ids[0]).await, "published");
    relay.stop().await;
}

async fn emit_to(world: &World, topic: &str, count: usize) -> Vec<MessageId> {
    let sql = format!(
        "SELECT relevo.emit('{topic}', '{topic}-' || n % 5, 'OrderPlaced', '{{}}')::text FROM generate_series(1, {count}) AS n"
    );
    world.texts(&sql).await.iter().map(|id| id.parse().expect("an id")).collect()
}

fn received_at(broker: &MemoryBroker, address: &str) -> usize {
    broker.receipts().iter().filter(|receipt| &*receipt.address == address).count()
}

#[tokio::test]
async fn a_blocked_address_holds_only_itself_and_a_probe_frees_it() {
    let world = World::new().await;
    let broker = broker();
    broker.fail(Rule::new(Match::Address("wall".to_owned()), Class::Blocked));
    let probing = Config { hold_probe: Duration::from_millis(50), ..config() };
    let relay = Running::start(world.store().await, &broker, probing);
    emit_to(&world, "wall", 50).await;
    until("the address is held", async || world.number("SELECT count(*) FROM relevo.address_hold").await == 1).await;
    emit_to(&world, "road", 100).await;
    emit_to(&world, "wall", 50).await;
    until("the other address flows", async || received_at(&broker, "road") == 100).await;
    until("everything for the wall waits", async || {
        world.number("SELECT count(*) FROM relevo.parked_message").await == 100
    })
    .await;
    let tried = relay.stats.attempts();
    until("it is probed", async || relay.stats.attempts() > tried + 5).await;
    assert_eq!(received_at(&broker, "wall"), 0);
    assert_eq!(world.number("SELECT max(attempts) FROM relevo.parked_key").await, 0, "nothing is counted");
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);

    broker.mend();
    world.drained().await;
    relay.stop().await;
    assert_eq!(world.number("SELECT count(*) FROM relevo.address_hold").await, 0);
    let log = crate::e2e_support::Ledger::read(&world.rows("SELECT id, key FROM relevo.message ORDER BY seq").await);
    assert_eq!((log.len(), log.check(&broker)), (200, 0));
}

/// New messages for the address, each with a new key, must not postpone its probe.
#[tokio::test]
async fn a_blocked_address_is_probed_under_traffic() {
    let world = World::new().await;
    let broker = broker();
    broker.fail(Rule::new(Match::Address("wall".to_owned()), Class::Blocked));
    let probing = Config { hold_probe: Duration::from_millis(300), ..config() };
    let relay = Running::start(world.store().await, &broker, probing);
    let new_key = "SELECT relevo.emit('wall', gen_random_uuid()::text, 'OrderPlaced', '{}')";
    until("it is probed again and again", async || {
        world.run(new_key).await;
        let held = world.number("SELECT count(*) FROM relevo.address_hold").await;
        held == 1 && relay.stats.attempts() > 4
    })
    .await;
    broker.mend();
    world.drained().await;
    relay.stop().await;
    assert_eq!(world.number("SELECT count(*) FROM relevo.address_hold").await, 0);
}

#[tokio::test]
async fn a_throttled_address_is_left_alone_for_as_long_as_it_asked() {
    let world = World::new().await;
    let broker = broker();
    let pause = Duration::from_millis(700);
    broker.fail(Rule::new(Match::Address("slow".to_owned()), Class::Throttled(pause)).times(1));
    let relay = Running::start(world.store().await, &broker, config());
    until("it has leases", async || world.shares().await == [8]).await;
    let asked = std::time::Instant::now();
    emit_to(&world, "slow", 50).await;
    emit_to(&world, "road", 50).await;
    until("the other address flows", async || received_at(&broker, "road") == 50).await;
    world.drained().await;
    assert!(asked.elapsed() >= pause, "after {:?}", asked.elapsed());
    relay.stop().await;
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);
    let log = crate::e2e_support::Ledger::read(&world.rows("SELECT id, key FROM relevo.message ORDER BY seq").await);
    assert_eq!(log.len(), 100);
    log.check(&broker);
}

#[tokio::test]
async fn a_message_that_takes_connections_down_is_quarantined_while_others_flow() {
    let world = World::new().await;
    let broker = broker();
    let ids = world.emit(&["a", "a", "a"]).await;
    broker.fail(Rule::new(Match::Id(ids[0]), Class::Unknown));
    let probing = Config { quarantine_probe: Duration::from_millis(100), ..config() };
    let relay = Running::start(world.store().await, &broker, probing);
    // Only a delivery of another message proves that this is not an outage.
    let traffic = Traffic::start(&world, 2);
    until("it is quarantined", async || status(&world, ids[0]).await == "quarantined").await;
    let then = broker.received();
    until("the other keys flow", async || broker.received() > then + 200).await;
    let ledger = traffic.stop().await;
    until("all of them arrived", async || broker.received() >= ledger.len() as u64).await;
    assert_eq!(ledger.check(&broker), 0);
    let attempts = "SELECT attempts FROM relevo.parked_key WHERE key = 'a'";
    assert_eq!(world.number(attempts).await, 0, "nothing is counted");
    assert_eq!(world.number("SELECT count(*) FROM relevo.dead_letter").await, 0);
    broker.mend();
    world.drained().await;
    relay.stop().await;
    assert_eq!(received(&broker, "a"), ids);
}

#[tokio::test]
async fn a_lost_answer_sends_the_same_id_again() {
    let world = World::new().await;
    let broker = broker();
    broker.fail(Rule::new(Match::Everything, Class::Unknown).received().times(7));
    let relay = Running::start(world.store().await, &broker, config());
    let ledger = world.emit_some(100, 10).await;
    world.drained().await;
    relay.stop().await;
    assert_eq!(ledger.check(&broker), 7);
}
