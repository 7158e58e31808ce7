//! Tests that replace routes while the relay runs, on virtual time.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_memory::{Match, MemoryBroker, Rule, Settings};
use relevo_core::{Class, Policy, Route, Routes};
use relevo_relay::{Config, Relay, RelayError, RoutesHandle, Watched};
use relevo_store_memory::{self as memory, Draft, MAIN, Outbox};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct World {
    outbox: Outbox,
    broker: MemoryBroker,
    routes: RoutesHandle,
    watched: Arc<Watched>,
    stop: CancellationToken,
    relays: JoinSet<Result<(), RelayError>>,
}

impl World {
    fn start(routes: Routes) -> Self {
        let outbox = Outbox::new(memory::Settings { shards: 4, ..memory::Settings::default() });
        let broker = MemoryBroker::new(Settings::default());
        let config = Config { routes, ..Config::default() };
        let relay = Relay::with_seed(Arc::new(outbox.destination(MAIN)), Arc::new(broker.clone()), config, 7);
        let relay = relay.expect("a valid configuration");
        let (routes, watched, stop) = (relay.routes_handle(), relay.watched(), CancellationToken::new());
        let mut relays = JoinSet::new();
        relays.spawn(relay.run(stop.clone()));
        Self { outbox, broker, routes, watched, stop, relays }
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
        let receipts = self.broker.receipts().into_iter();
        receipts.map(|receipt| (receipt.key, receipt.address.to_string())).collect()
    }

    async fn end(mut self) {
        self.stop.cancel();
        while let Some(done) = self.relays.join_next().await {
            done.expect("no panic").expect("an orderly end");
        }
        assert_eq!(self.watched.leases(), 0, "the leases are given back");
    }
}

fn to(address: &str) -> Routes {
    let policy = Policy { base: Duration::from_mins(1), ..Policy::default() };
    Routes::new(vec![Route { address: address.to_owned(), policy, ..Route::everything() }])
}

fn pair(key: &str, address: &str) -> (String, String) {
    (key.to_owned(), address.to_owned())
}

#[tokio::test(start_paused = true)]
async fn messages_in_flight_keep_their_address_and_later_ones_take_the_new_route() {
    let world = World::start(to("old"));
    world.broker.freeze();
    world.emit("a");
    world.until("the first flies", |world| world.watched.in_flight() == 1).await;
    world.routes.exchange(to("new"));
    world.emit("a");
    world.broker.thaw();
    world.until("both arrived", |world| world.broker.received() == 2).await;
    assert_eq!(world.received(), [pair("a", "old"), pair("a", "new")]);
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_message_takes_the_new_route_when_it_is_tried_again() {
    let world = World::start(to("old"));
    world.broker.fail(Rule::new(Match::Address("old".into()), Class::Transient));
    for _ in 0..3 {
        world.emit("a");
    }
    world.until("it was tried", |world| world.parked() == 3).await;
    world.routes.exchange(to("new"));
    world.until("all arrived", |world| world.broker.received() == 3).await;
    assert_eq!(world.received(), vec![pair("a", "new"); 3]);
    world.end().await;
}

/// Without the release, each key would wait for its own probe: half a minute per key.
#[tokio::test(start_paused = true)]
async fn keys_that_wait_for_a_blocked_address_all_go_on_when_the_routes_lead_elsewhere() {
    let world = World::start(to("blocked"));
    world.broker.fail(Rule::new(Match::Address("blocked".into()), Class::Blocked));
    for key in 0..50 {
        world.emit(&format!("k{key}"));
    }
    world.until("all wait", |world| world.parked() == 50).await;
    let begun = tokio::time::Instant::now();
    world.routes.exchange(to("open"));
    world.until("all arrived", |world| world.broker.received() == 50).await;
    assert!(begun.elapsed() < Duration::from_secs(90), "{:?}", begun.elapsed());
    assert!(world.received().iter().all(|(_, address)| address == "open"));
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_message_that_no_route_wants_any_more_is_done() {
    let world = World::start(to("old"));
    world.broker.fail(Rule::new(Match::Address("old".into()), Class::Transient));
    world.emit("a");
    world.until("it is parked", |world| world.parked() == 1).await;
    world.routes.exchange(Routes::new(Vec::new()));
    world.until("nothing waits", |world| world.parked() == 0).await;
    assert_eq!(world.broker.received(), 0);
    world.end().await;
}

/// The watchdog depends on this.
#[tokio::test(start_paused = true)]
async fn the_loop_turns_though_the_destination_never_answers() {
    let world = World::start(to("anywhere"));
    world.broker.freeze();
    world.emit("a");
    world.until("it flies", |world| world.watched.in_flight() == 1).await;
    for _ in 0..20 {
        let before = world.watched.steps();
        tokio::time::sleep(Config::default().lease).await;
        assert!(world.watched.steps() > before);
    }
    world.broker.thaw();
    world.end().await;
}
