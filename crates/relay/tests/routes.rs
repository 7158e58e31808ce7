//! Tests that replace routes while the relay runs, on virtual time.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_core::{Class, RetryPolicy, Route, Routes};
use relevo_relay::{Config, Relay, RelayError, RelayStatus, RoutesHandle};
use relevo_store_memory::{self as memory, Database, Draft, MAIN};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct TestSetup {
    database: Database,
    broker: MemoryBroker,
    routes: RoutesHandle,
    status: Arc<RelayStatus>,
    stop: CancellationToken,
    relays: JoinSet<Result<(), RelayError>>,
}

impl TestSetup {
    fn start(routes: Routes) -> Self {
        let database = Database::new(memory::Config { shards: 4, ..memory::Config::default() });
        let broker = MemoryBroker::new(BrokerConfig::default());
        let config = Config { routes, ..Config::default() };
        let relay = Relay::with_seed(Arc::new(database.store(MAIN)), Arc::new(broker.clone()), config, 7);
        let relay = relay.expect("a valid configuration");
        let (routes, status, stop) = (relay.routes_handle(), relay.status(), CancellationToken::new());
        let mut relays = JoinSet::new();
        relays.spawn(relay.run(stop.clone()));
        Self { database, broker, routes, status, stop, relays }
    }

    fn emit(&self, key: &str) {
        let mut tx = self.database.begin();
        tx.emit(Draft::json("orders", key, "T", "{}")).expect("a valid message");
        tx.commit().expect("an open transaction");
    }

    async fn wait_until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !condition(self) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_mins(10), waiting).await.is_ok(), "timeout: {what}");
    }

    /// The number of waiting messages in the store.
    fn parked(&self) -> usize {
        self.database.parked(MAIN).iter().map(|parked| parked.queue.len()).sum()
    }

    /// Keys and addresses, in the order of receipt.
    fn received(&self) -> Vec<(String, String)> {
        let messages = self.broker.received_messages().into_iter();
        messages.map(|message| (message.key, message.address.to_string())).collect()
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(result) = self.relays.join_next().await {
            result.expect("no panic").expect("a clean shutdown");
        }
        assert_eq!(self.status.leases(), 0, "the leases are released");
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
    let setup = TestSetup::start(routes_to("old"));
    setup.broker.freeze();
    setup.emit("a");
    setup.wait_until("the first message is in flight", |setup| setup.status.in_flight() == 1).await;
    setup.routes.replace(routes_to("new"));
    setup.emit("a");
    setup.broker.thaw();
    setup.wait_until("both are received", |setup| setup.broker.received() == 2).await;
    assert_eq!(setup.received(), [pair("a", "old"), pair("a", "new")]);
    setup.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_retried_message_uses_the_new_route() {
    let setup = TestSetup::start(routes_to("old"));
    setup.broker.add_failure(FailureRule::new(RuleTarget::Address("old".into()), Class::Transient));
    for _ in 0..3 {
        setup.emit("a");
    }
    setup.wait_until("all are parked", |setup| setup.parked() == 3).await;
    setup.routes.replace(routes_to("new"));
    setup.wait_until("all are received", |setup| setup.broker.received() == 3).await;
    assert_eq!(setup.received(), vec![pair("a", "new"); 3]);
    setup.stop().await;
}

/// Without the release, each key would wait for its own probe: half a minute per key.
#[tokio::test(start_paused = true)]
async fn new_routes_free_every_key_of_a_blocked_address() {
    let setup = TestSetup::start(routes_to("blocked"));
    setup.broker.add_failure(FailureRule::new(RuleTarget::Address("blocked".into()), Class::Blocked));
    for key in 0..50 {
        setup.emit(&format!("k{key}"));
    }
    setup.wait_until("all are parked", |setup| setup.parked() == 50).await;
    let start = tokio::time::Instant::now();
    setup.routes.replace(routes_to("open"));
    setup.wait_until("all are received", |setup| setup.broker.received() == 50).await;
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}", start.elapsed());
    assert!(setup.received().iter().all(|(_, address)| address == "open"));
    setup.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_message_without_a_route_is_skipped() {
    let setup = TestSetup::start(routes_to("old"));
    setup.broker.add_failure(FailureRule::new(RuleTarget::Address("old".into()), Class::Transient));
    setup.emit("a");
    setup.wait_until("it is parked", |setup| setup.parked() == 1).await;
    setup.routes.replace(Routes::new(Vec::new()));
    setup.wait_until("no message is parked", |setup| setup.parked() == 0).await;
    assert_eq!(setup.broker.received(), 0);
    setup.stop().await;
}

/// The watchdog depends on this.
#[tokio::test(start_paused = true)]
async fn the_loop_keeps_stepping_while_the_broker_hangs() {
    let setup = TestSetup::start(routes_to("anywhere"));
    setup.broker.freeze();
    setup.emit("a");
    setup.wait_until("the message is in flight", |setup| setup.status.in_flight() == 1).await;
    for _ in 0..20 {
        let before = setup.status.steps();
        tokio::time::sleep(Config::default().lease_duration).await;
        assert!(setup.status.steps() > before);
    }
    setup.broker.thaw();
    setup.stop().await;
}
