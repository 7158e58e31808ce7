//! The relay on virtual time with the memory store and broker: one named case each. The simulator combines such cases at
//! random.

use std::sync::Arc;
use std::time::Duration;

use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_core::{AfterDead, Class, RetryPolicy, Route, Routes};
use relevo_relay::{Advanced, Config, Relay, RelayError};
use relevo_store_memory::{self as memory, Database, Draft, MAIN};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct TestSetup {
    database: Database,
    broker: MemoryBroker,
    stop: CancellationToken,
    relays: JoinSet<Result<(), RelayError>>,
}

impl TestSetup {
    fn new(broker: BrokerConfig) -> Self {
        let database = Database::new(memory::Config { shards: 4, ..memory::Config::default() });
        let broker = MemoryBroker::new(broker);
        Self { database, broker, stop: CancellationToken::new(), relays: JoinSet::new() }
    }

    fn emit(&self, key: &str, kind: &str) {
        let mut tx = self.database.begin();
        tx.emit(Draft::json("orders", key, kind, "{}")).expect("a valid message");
        tx.commit().expect("an open transaction");
    }

    fn start(&mut self, route: Route) {
        self.start_with(Config { routes: Routes::new(vec![route]), ..Config::default() });
    }

    fn start_with(&mut self, config: Config) {
        let store = Arc::new(self.database.store(MAIN));
        // Relays with the same seed would be the same owner of leases.
        let seed = 7 + self.relays.len() as u64 * 10;
        let relay =
            Relay::with_seed(store, Arc::new(self.broker.clone()), config, seed).expect("a valid configuration");
        self.relays.spawn(relay.run(self.stop.clone()));
    }

    /// Fails every message of this key without a confirmation, as if it broke the connection.
    fn break_connection_at(&self, key: &str) {
        self.broker.add_failure(FailureRule::new(RuleTarget::Key(key.to_owned()), Class::Unknown));
    }

    /// Emits messages of a good key, one after the other, until the broken keys are parked. Each success proves that the
    /// broker works. Then asserts that they are quarantined.
    async fn emit_until_quarantined(&self, good: &str, broken: &[&str]) {
        for _ in 0..60 {
            if self.database.parked(MAIN).len() == broken.len() {
                break;
            }
            let before = self.broker.received();
            self.emit(good, "T");
            self.wait_for_received(before + 1).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        self.assert_quarantined(broken);
    }

    fn assert_quarantined(&self, keys: &[&str]) {
        let mut parked = self.database.parked(MAIN);
        parked.sort_by(|a, b| a.key.cmp(&b.key));
        assert_eq!(parked.iter().map(|key| &*key.key).collect::<Vec<_>>(), keys);
        assert!(parked.iter().all(|key| key.state == memory::ParkedStateView::Quarantined), "{parked:?}");
    }

    /// Waits until the broker has received this number of messages. The timeout costs nothing on virtual time.
    async fn wait_for_received(&self, count: u64) {
        let received = async {
            while self.broker.received() < count {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_mins(10), received).await.is_ok();
        assert!(in_time, "{} of {count} messages were received", self.broker.received());
    }

    async fn stop(mut self) -> Vec<String> {
        self.stop.cancel();
        while let Some(result) = self.relays.join_next().await {
            result.expect("no panic").expect("a clean shutdown");
        }
        self.broker.received_messages().into_iter().map(|message| message.key).collect()
    }
}

fn fast_retries() -> Route {
    let policy = RetryPolicy { base: Duration::from_millis(100), attempts_max: 3, ..RetryPolicy::default() };
    Route { policy, ..Route::catch_all() }
}

#[tokio::test(start_paused = true)]
async fn a_parked_key_does_not_delay_other_keys() {
    let mut setup = TestSetup::new(BrokerConfig { latency: Duration::from_millis(1), ..BrokerConfig::default() });
    setup.broker.add_failure(FailureRule::new(RuleTarget::Key("bad".into()), Class::Transient).times(2));
    setup.start(fast_retries());
    for key in ["bad", "good", "bad"] {
        setup.emit(key, "T");
    }
    setup.wait_for_received(3).await;
    assert_eq!(setup.stop().await, ["good", "bad", "bad"]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_counts_no_attempt_and_loses_no_message() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    setup.broker.down();
    setup.start(fast_retries());
    for _ in 0..5 {
        setup.emit("a", "T");
    }
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(setup.broker.received(), 0);
    assert_eq!(
        setup.database.dead_letters(MAIN).len() + setup.database.parked(MAIN).len(),
        0,
        "an outage parks no message"
    );
    setup.broker.up();
    setup.wait_for_received(5).await;
    assert_eq!(setup.stop().await.len(), 5);
}

/// Runs a relay for this time and then stops calling it.
async fn run_for(relay: &mut Relay, time: Duration) {
    let end = tokio::time::Instant::now() + time;
    while let Ok(stepped) = tokio::time::timeout_at(end, relay.step()).await {
        stepped.expect("no store error");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_reported_until_no_message_waits() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    let unreachable = MemoryBroker::new(BrokerConfig::default());
    unreachable.down();
    let config = Config { routes: Routes::new(vec![fast_retries()]), ..Config::default() };
    let store = Arc::new(setup.database.store(MAIN));
    let mut relay = Relay::with_seed(store, Arc::new(unreachable.clone()), config, 8).expect("a valid configuration");
    let status = relay.status();
    setup.emit("a", "T");
    run_for(&mut relay, Duration::from_mins(5)).await;
    assert!(status.is_broker_down(), "the message is sent again and again");
    // The relay does nothing for longer than its lease, so another relay takes the shards and publishes the waiting
    // messages.
    setup.start(fast_retries());
    setup.wait_for_received(1).await;
    unreachable.up();
    run_for(&mut relay, Duration::from_mins(5)).await;
    assert_eq!((status.is_broker_down(), unreachable.received()), (false, 0), "no message is left to send");
    assert_eq!(setup.stop().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_breaks_the_connection_is_quarantined() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    setup.broker.add_failure(FailureRule::new(RuleTarget::Key("bad".into()), Class::Unknown));
    setup.start(fast_retries());
    setup.emit("bad", "T");
    for key in ["a", "b", "c"] {
        setup.emit(key, "T");
    }
    setup.wait_for_received(3).await;
    while setup.database.parked(MAIN).is_empty() {
        setup.emit("a", "T"); // its success proves that the broker is up
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(setup.database.parked(MAIN)[0].state, memory::ParkedStateView::Quarantined);
    assert!(setup.database.dead_letters(MAIN).is_empty());
    setup.broker.clear_failures();
    let before = setup.broker.received();
    setup.wait_for_received(before + 1).await;
    assert_eq!(setup.stop().await.iter().filter(|key| *key == "bad").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_messages_that_break_the_connection_do_not_block_each_other_or_the_rest() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    for key in ["bad-1", "bad-2"] {
        setup.break_connection_at(key);
        setup.emit(key, "T");
    }
    setup.start(fast_retries());
    // Each is sent alone again and again. Nothing shows yet that the broker works.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(setup.database.parked(MAIN).is_empty());
    setup.emit_until_quarantined("good", &["bad-1", "bad-2"]).await;
    setup.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_isolated_message_is_sent_again_if_there_is_no_other_message() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    setup.break_connection_at("only");
    setup.emit("only", "T");
    setup.start(fast_retries());
    // No success of another message can prove that the broker works, so it is not quarantined.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(setup.database.parked(MAIN).is_empty());
    setup.broker.clear_failures();
    setup.wait_for_received(1).await;
    assert_eq!(setup.stop().await, ["only"]);
}

#[tokio::test(start_paused = true)]
async fn a_relay_with_full_memory_reads_on_to_quarantine_an_isolated_message() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    setup.break_connection_at("bad");
    setup.emit("bad", "T");
    setup.emit("good", "T");
    let routes = Routes::new(vec![fast_retries()]);
    let advanced = Advanced { page_messages: 1, pages_max: 1, ..Advanced::default() };
    setup.start_with(Config { routes, advanced, ..Config::default() });
    setup.wait_for_received(1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    setup.assert_quarantined(&["bad"]);
    assert_eq!(setup.stop().await, ["good"]);
}

#[tokio::test(start_paused = true)]
async fn a_relay_reads_a_shard_that_it_will_release_to_quarantine_an_isolated_message() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    // Of four shards, "o-1" is in shard 1 and "o-2" in shard 3.
    setup.break_connection_at("o-1");
    setup.emit("o-1", "T");
    setup.start(fast_retries());
    tokio::time::sleep(Duration::from_mins(1)).await;
    // The second relay waits for shards 2 and 3. The first cannot release them while "o-1" blocks the page.
    setup.start(fast_retries());
    tokio::time::sleep(Duration::from_secs(5)).await;
    setup.emit_until_quarantined("o-2", &["o-1"]).await;
    setup.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_blocked_address_holds_its_own_keys_only_and_a_probe_frees_them() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    setup.broker.add_failure(FailureRule::new(RuleTarget::Address("Closed".into()), Class::Blocked).times(3));
    setup.start(Route { address: "{type}".into(), ..fast_retries() });
    for key in ["a", "b", "c"] {
        setup.emit(key, "Closed");
    }
    setup.emit("d", "Open");
    setup.wait_for_received(4).await;
    assert!(setup.database.dead_letters(MAIN).is_empty(), "a blocked address counts no attempt");
    assert_eq!(setup.stop().await.first().map(String::as_str), Some("d"));
}

#[tokio::test(start_paused = true)]
async fn a_key_continues_after_a_dead_letter_only_if_its_route_allows_it() {
    for (after_dead, expected) in [(AfterDead::Hold, 0), (AfterDead::Continue, 1)] {
        let mut setup = TestSetup::new(BrokerConfig::default());
        setup.broker.add_failure(FailureRule::new(RuleTarget::Key("bad".into()), Class::Poison).times(1));
        setup.start(Route { after_dead, ..fast_retries() });
        setup.emit("bad", "First");
        setup.emit("bad", "Second");
        setup.emit("other", "T");
        setup.wait_for_received(1 + expected).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(setup.database.dead_letters(MAIN).len(), 1);
        assert_eq!(setup.stop().await.iter().filter(|key| *key == "bad").count() as u64, expected, "{after_dead:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordered_broker_receives_a_key_in_commit_order() {
    let config =
        BrokerConfig { ordered_in_flight: true, latency: Duration::from_millis(20), ..BrokerConfig::default() };
    let mut setup = TestSetup::new(config);
    setup.broker.add_failure(FailureRule::new(RuleTarget::Key("a".into()), Class::Transient).times(1));
    for _ in 0..50 {
        setup.emit("a", "T");
    }
    setup.start(fast_retries());
    setup.wait_for_received(50).await;
    let mut first_receipts: Vec<i64> = Vec::new();
    for message in setup.broker.received_messages() {
        if !first_receipts.contains(&message.seq) {
            first_receipts.push(message.seq);
        }
    }
    assert!(first_receipts.is_sorted(), "first receipts are in commit order");
    setup.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_unrouted_message_is_skipped() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    setup.start(Route { topic: "orders".into(), kind: "Wanted".into(), ..fast_retries() });
    setup.emit("a", "Unwanted");
    setup.emit("a", "Wanted");
    setup.wait_for_received(1).await;
    assert_eq!(setup.stop().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn shutdown_settles_confirmed_messages() {
    let mut setup = TestSetup::new(BrokerConfig::default());
    for number in 0..100 {
        setup.emit(&format!("k-{number}"), "T");
    }
    setup.start(fast_retries());
    setup.wait_for_received(100).await;
    let (database, broker) = (setup.database.clone(), setup.broker.clone());
    setup.stop().await;
    let mut next = TestSetup { database, broker, stop: CancellationToken::new(), relays: JoinSet::new() };
    next.start(fast_retries());
    next.emit("last", "T");
    next.wait_for_received(101).await;
    assert_eq!(next.stop().await.len(), 101, "no message is published twice");
}
