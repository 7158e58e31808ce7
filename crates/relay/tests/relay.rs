//! The relay on virtual time with the memory store and broker: single cases that the simulation does not test by name.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_core::{AfterDead, Class, RetryPolicy, Route, Routes};
use relevo_relay::{Config, Relay, RelayError};
use relevo_store_memory::{self as memory, Database, Draft, MAIN};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct World {
    outbox: Database,
    broker: MemoryBroker,
    stop: CancellationToken,
    relays: JoinSet<Result<(), RelayError>>,
}

impl World {
    fn new(settings: BrokerConfig) -> Self {
        let outbox = Database::new(memory::Config { shards: 4, ..memory::Config::default() });
        let broker = MemoryBroker::new(settings);
        Self { outbox, broker, stop: CancellationToken::new(), relays: JoinSet::new() }
    }

    fn emit(&self, key: &str, kind: &str) {
        let mut tx = self.outbox.begin();
        tx.emit(Draft::new("orders", key, kind, "{}")).expect("a good message");
        tx.commit().expect("an open transaction");
    }

    fn start(&mut self, route: Route) {
        let config = Config { routes: Routes::new(vec![route]), ..Config::default() };
        let store = Arc::new(self.outbox.store(MAIN));
        let relay = Relay::with_seed(store, Arc::new(self.broker.clone()), config, 7).expect("a valid configuration");
        self.relays.spawn(relay.run(self.stop.clone()));
    }

    /// Waits for this number of receipts. The deadline costs nothing on virtual time.
    async fn received(&self, count: u64) {
        let all = async {
            while self.broker.received() < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_mins(10), all).await.is_ok();
        assert!(in_time, "{} of {count} messages were received", self.broker.received());
    }

    async fn end(mut self) -> Vec<String> {
        self.stop.cancel();
        while let Some(done) = self.relays.join_next().await {
            done.expect("no panic").expect("an orderly end");
        }
        self.broker.received_messages().into_iter().map(|receipt| receipt.key).collect()
    }
}

fn fast_retries() -> Route {
    let policy = RetryPolicy { base: Duration::from_millis(100), attempts_max: 3, ..RetryPolicy::default() };
    Route { policy, ..Route::catch_all() }
}

#[tokio::test(start_paused = true)]
async fn a_parked_key_does_not_delay_other_keys() {
    let mut world = World::new(BrokerConfig { latency: Duration::from_millis(1), ..BrokerConfig::default() });
    world.broker.add_failure(FailureRule::new(RuleTarget::Key("bad".into()), Class::Transient).times(2));
    world.start(fast_retries());
    for key in ["bad", "good", "bad"] {
        world.emit(key, "T");
    }
    world.received(3).await;
    assert_eq!(world.end().await, ["good", "bad", "bad"]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_counts_no_attempt_and_loses_no_message() {
    let mut world = World::new(BrokerConfig::default());
    world.broker.down();
    world.start(fast_retries());
    for _ in 0..5 {
        world.emit("a", "T");
    }
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(world.broker.received(), 0);
    assert_eq!(
        world.outbox.dead_letters(MAIN).len() + world.outbox.parked(MAIN).len(),
        0,
        "an outage is not a failure"
    );
    world.broker.up();
    world.received(5).await;
    assert_eq!(world.end().await.len(), 5);
}

/// Lets a relay work for this time and then stops calling it.
async fn run_for(relay: &mut Relay, span: Duration) {
    let end = tokio::time::Instant::now() + span;
    while let Ok(stepped) = tokio::time::timeout_at(end, relay.step()).await {
        stepped.expect("the store serves it");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_reported_until_no_message_waits() {
    let mut world = World::new(BrokerConfig::default());
    let cut_off = MemoryBroker::new(BrokerConfig::default());
    cut_off.down();
    let config = Config { routes: Routes::new(vec![fast_retries()]), ..Config::default() };
    let store = Arc::new(world.outbox.store(MAIN));
    let mut relay = Relay::with_seed(store, Arc::new(cut_off.clone()), config, 8).expect("a valid configuration");
    let watched = relay.status();
    world.emit("a", "T");
    run_for(&mut relay, Duration::from_mins(5)).await;
    assert!(watched.is_broker_down(), "its message is tried again and again");
    // The relay does nothing for longer than its lease, so another relay takes the shards and publishes the waiting
    // messages.
    world.start(fast_retries());
    world.received(1).await;
    cut_off.up();
    run_for(&mut relay, Duration::from_mins(5)).await;
    assert_eq!((watched.is_broker_down(), cut_off.received()), (false, 0), "nothing is left to find out with");
    assert_eq!(world.end().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_breaks_the_connection_is_quarantined() {
    let mut world = World::new(BrokerConfig::default());
    world.broker.add_failure(FailureRule::new(RuleTarget::Key("bad".into()), Class::Unknown));
    world.start(fast_retries());
    world.emit("bad", "T");
    for key in ["a", "b", "c"] {
        world.emit(key, "T");
    }
    world.received(3).await;
    while world.outbox.parked(MAIN).is_empty() {
        world.emit("a", "T"); // its success proves that the broker is up
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(world.outbox.parked(MAIN)[0].state, memory::ParkedStateView::Quarantined);
    assert!(world.outbox.dead_letters(MAIN).is_empty());
    world.broker.clear_failures();
    let before = world.broker.received();
    world.received(before + 1).await;
    assert_eq!(world.end().await.iter().filter(|key| *key == "bad").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_blocked_address_holds_its_own_keys_only_and_a_probe_frees_them() {
    let mut world = World::new(BrokerConfig::default());
    world.broker.add_failure(FailureRule::new(RuleTarget::Address("Closed".into()), Class::Blocked).times(3));
    world.start(Route { address: "{type}".into(), ..fast_retries() });
    for key in ["a", "b", "c"] {
        world.emit(key, "Closed");
    }
    world.emit("d", "Open");
    world.received(4).await;
    assert!(world.outbox.dead_letters(MAIN).is_empty(), "a blocked address counts no attempt");
    assert_eq!(world.end().await.first().map(String::as_str), Some("d"));
}

#[tokio::test(start_paused = true)]
async fn a_key_continues_after_a_dead_letter_only_if_its_route_allows_it() {
    for (after_dead, expected) in [(AfterDead::Hold, 0), (AfterDead::Continue, 1)] {
        let mut world = World::new(BrokerConfig::default());
        world.broker.add_failure(FailureRule::new(RuleTarget::Key("bad".into()), Class::Poison).times(1));
        world.start(Route { after_dead, ..fast_retries() });
        world.emit("bad", "First");
        world.emit("bad", "Second");
        world.emit("other", "T");
        world.received(1 + expected).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(world.outbox.dead_letters(MAIN).len(), 1);
        assert_eq!(world.end().await.iter().filter(|key| *key == "bad").count() as u64, expected, "{after_dead:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordered_broker_receives_a_key_in_commit_order() {
    let settings =
        BrokerConfig { ordered_in_flight: true, latency: Duration::from_millis(20), ..BrokerConfig::default() };
    let mut world = World::new(settings);
    world.broker.add_failure(FailureRule::new(RuleTarget::Key("a".into()), Class::Transient).times(1));
    for _ in 0..50 {
        world.emit("a", "T");
    }
    world.start(fast_retries());
    world.received(50).await;
    let receipts = world.broker.received_messages();
    let mut first: Vec<i64> = Vec::new();
    for receipt in receipts {
        if !first.contains(&receipt.seq) {
            first.push(receipt.seq);
        }
    }
    assert!(first.is_sorted(), "first appearances follow commit order");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_unrouted_message_is_skipped() {
    let mut world = World::new(BrokerConfig::default());
    world.start(Route { topic: "orders".into(), kind: "Wanted".into(), ..fast_retries() });
    world.emit("a", "Unwanted");
    world.emit("a", "Wanted");
    world.received(1).await;
    assert_eq!(world.end().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_settles_confirmed_messages() {
    let mut world = World::new(BrokerConfig::default());
    for number in 0..100 {
        world.emit(&format!("k-{number}"), "T");
    }
    world.start(fast_retries());
    world.received(100).await;
    let (outbox, broker) = (world.outbox.clone(), world.broker.clone());
    world.end().await;
    let mut next = World { outbox, broker, stop: CancellationToken::new(), relays: JoinSet::new() };
    next.start(fast_retries());
    next.emit("last", "T");
    next.received(101).await;
    assert_eq!(next.end().await.len(), 101, "nothing is repeated");
}
