//! Tests that replace routes while the relay runs, on virtual time.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_core::{Class, RetryPolicy, Route, Routes};
use relevo_relay::{Config, Relay, RelayError, RelayStatus, RoutesHandle};
use relevo_store_memory::{self as memory, Database, Draft, MAIN};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct World {
    outbox: Database,
    broker: MemoryBroker,
    routes: RoutesHandle,
    status: Arc<RelayStatus>,
    stop: CancellationToken,
    relays: JoinSet<Result<(), RelayError>>,
}

impl World {
    fn start(routes: Routes) -> Self {
        let outbox = Database::new(memory::Config { shards: 4, ..memory::Config::default() });
        let broker = MemoryBroker::new(BrokerConfig::default());
        let config = Config { routes, ..Config::default() };
        let relay = Relay::with_seed(Arc::new(outbox.store(MAIN)), Arc::new(broker.clone()), config, 7);
        let relay = relay.expect("a valid configuration");
        let (routes, status, stop) = (relay.routes_handle(), relay.status(), CancellationToken::new());
        let mut relays = JoinSet::new();
        relays.spawn(relay.run(stop.clone()));
        Self { outbox, broker, routes, status, stop, relays }
    }

    fn emit(&self, key: &str) {
        let mut tx = self.outbox.begin();
        tx.emit(Draft::new("orders", key, "T", "{}")).expect("a good message");
        tx.commit().expect("an open transaction");
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let held = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_mins(10), held).await.is_ok(), "waited in vain: {what}");
    }

    /// The number of waiting messages in the store.
    fn parked(&self) -> usize {
        self.outbox.parked(MAIN).iter().map(|parked| parked.queue.len()).sum()
    }

    /// Keys and addresses, in the order of receipt.
    fn received(&self) -> Vec<(String, String)> {
        let receipts = self.broker.received_messages().into_iter();
        receipts.map(|receipt| (receipt.key, receipt.address.to_string())).collect()
    }

    async fn end(mut self) {
        self.stop.cancel();
        while let Some(done) = self.relays.join_next().await {
            done.expect("no panic").expect("an orderly end");
        }
        assert_eq!(self.status.leases(), 0, "the leases are given back");
    }
}

fn routes_to(address: &str) -> Routes {
    let policy = RetryPolicy { base: Duration::from_mins(1), ..RetryPolicy::default() };
    Routes::new(vec![Route { address: address.to_owned(), policy, ..Route::catch_all() }])
}

fn pair(key: &str, address: &str) -> (String, String) {
    (key.to_owned(), address.to_owned())
}

#[tokio::test(start_paused = true)]
async fn in_flight_messages_keep_their_address_and_later_ones_use_the_new_route() {
    let world = World::start(routes_to("old"));
    world.broker.freeze();
    world.emit("a");
    world.until("the first flies", |world| world.status.in_flight() == 1).await;
    world.routes.replace(routes_to("new"));
    world.emit("a");
    world.broker.thaw();
    world.until("both arrived", |world| world.broker.received() == 2).await;
    assert_eq!(world.received(), [pair("a", "old"), pair("a", "new")]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_retried_message_uses_the_new_route() {
    let world = World::start(routes_to("old"));
    world.broker.add_failure(FailureRule::new(RuleTarget::Address("old".into()), Class::Transient));
    for _ in 0..3 {
        world.emit("a");
    }
    world.until("it was tried", |world| world.parked() == 3).await;
    world.routes.replace(routes_to("new"));
    world.until("all arrived", |world| world.broker.received() == 3).await;
    assert_eq!(world.received(), vec![pair("a", "new"); 3]);
    world.end().await;
}

/// Without the release, each key would wait for its own probe: half a minute per key.
#[tokio::test(start_paused = true)]
async fn new_routes_free_every_key_of_a_blocked_address() {
    let world = World::start(routes_to("blocked"));
    world.broker.add_failure(FailureRule::new(RuleTarget::Address("blocked".into()), Class::Blocked));
    for key in 0..50 {
        world.emit(&format!("k{key}"));
    }
    world.until("all wait", |world| world.parked() == 50).await;
    let begun = tokio::time::Instant::now();
    world.routes.replace(routes_to("open"));
    world.until("all arrived", |world| world.broker.received() == 50).await;
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    assert!(world.received().iter().all(|(_, address)| address == "open"));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_message_without_a_route_is_skipped() {
    let world = World::start(routes_to("old"));
    world.broker.add_failure(FailureRule::new(RuleTarget::Address("old".into()), Class::Transient));
    world.emit("a");
    world.until("it is parked", |world| world.parked() == 1).await;
    world.routes.replace(Routes::new(Vec::new()));
    world.until("nothing waits", |world| world.parked() == 0).await;
    assert_eq!(world.broker.received(), 0);
    world.end().await;
}

/// The watchdog depends on this.
#[tokio::test(start_paused = true)]
async fn the_loop_keeps_stepping_while_the_broker_hangs() {
    let world = World::start(routes_to("anywhere"));
    world.broker.freeze();
    world.emit("a");
    world.until("it flies", |world| world.status.in_flight() == 1).await;
    for _ in 0..20 {
        let before = world.status.steps();
        tokio::time::sleep(Config::default().lease_duration).await;
        assert!(world.status.steps() > before);
    }
    world.broker.thaw();
    world.end().await;
}
