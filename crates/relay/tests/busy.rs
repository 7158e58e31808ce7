//! The relay with a busy or slow store: a call that changed nothing is repeated, and nothing else happens.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_core::dead_letters::{DeadLetterAdmin as _, DeadLetterFilter, MarkAction, MarkRequest};
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases};
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, SettleResult, Settlement};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::store::StoreError;
use relevo_core::{AfterDead, Class, RetryPolicy, Route, Routes};
use relevo_relay::{Advanced, Config, Relay, RelayStatus};
use relevo_store_memory::{self as memory, Database, Draft, MAIN, Store};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// A store whose calls of one kind are busy a few times, or whose settlements have no reply for a long time.
struct BusyStore {
    inner: Store,
    state: Mutex<BusyState>,
}

#[derive(Default)]
struct BusyState {
    call: &'static str,
    remaining: u32,
    owners: BTreeSet<Uuid>,
    /// The time between the effect of a settlement and its reply.
    settle_reply_delay: Duration,
}

impl BusyStore {
    /// Fails if the store is busy for this call. Nothing of the call has happened then.
    fn check(&self, call: &str) -> Result<(), StoreError> {
        let mut state = self.state.lock();
        if state.call != call || state.remaining == 0 {
            return Ok(());
        }
        state.remaining -= 1;
        Err(StoreError::Busy { retry_after: None, source: "a lock timeout".into() })
    }
}

#[async_trait]
impl ShardLeases for BusyStore {
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        self.state.lock().owners.insert(request.owner);
        self.check("acquire_leases")?;
        self.inner.acquire_leases(request).await
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.release_leases(owner).await
    }
}

#[async_trait]
impl OutboxReader for BusyStore {
    async fn read(&self, request: PageRequest<'_>) -> Result<Page, StoreError> {
        self.check("read")?;
        self.inner.read(request).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        self.check("settle")?;
        let result = self.inner.settle(settlement).await;
        let delay = self.state.lock().settle_reply_delay;
        tokio::time::sleep(delay).await;
        result
    }
}

#[async_trait]
impl ParkedReader for BusyStore {
    async fn read_parked(
        &self,
        leases: &[Lease],
        keys: usize,
        messages: usize,
    ) -> Result<Vec<ParkedBatch>, StoreError> {
        self.check("read_parked")?;
        self.inner.read_parked(leases, keys, messages).await
    }

    async fn settle_parked(&self, settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        self.check("settle_parked")?;
        self.inner.settle_parked(settlements).await
    }
}

#[async_trait]
impl Maintenance for BusyStore {
    async fn maintain(&self, budget: Duration) -> Result<MaintenanceReport, StoreError> {
        self.check("maintain")?;
        self.inner.maintain(budget).await
    }
}

fn emit(database: &Database, key: &str, kind: &str) {
    let mut tx = database.begin();
    tx.emit(Draft::json("orders", key, kind, "{}")).expect("a valid message");
    tx.commit().expect("an open transaction");
}

/// Publishes six messages of three keys, one of which is parked once, with a store that is busy for this call.
async fn publish_with_busy(call: &'static str, remaining: u32) -> (Vec<String>, Arc<RelayStatus>, BTreeSet<Uuid>) {
    let database = Database::new(memory::Config { shards: 4, ..memory::Config::default() });
    let broker = MemoryBroker::new(BrokerConfig::default());
    broker.add_failure(FailureRule::new(RuleTarget::Key("bad".into()), Class::Transient).times(1));
    let state = Mutex::new(BusyState { call, remaining, ..BusyState::default() });
    let store = Arc::new(BusyStore { inner: database.store(MAIN), state });
    let policy = RetryPolicy { base: Duration::from_millis(100), ..RetryPolicy::default() };
    let routes = Routes::new(vec![Route { policy, ..Route::catch_all() }]);
    let config = Config { routes, ..Config::default() };
    let relay = Relay::with_seed(Arc::clone(&store) as _, Arc::new(broker.clone()), config, 7).expect("a valid config");
    let (status, stop) = (relay.status(), CancellationToken::new());
    for key in ["bad", "a", "b", "bad", "a", "b"] {
        emit(&database, key, "T");
    }
    let mut run = JoinSet::new();
    run.spawn(relay.run(stop.clone()));
    tokio::time::sleep(Duration::from_mins(1)).await;
    stop.cancel();
    run.join_next().await.expect("a relay").expect("no panic").expect("a clean shutdown");
    let owners = store.state.lock().owners.clone();
    assert_eq!((store.state.lock().remaining, database.parked(MAIN).len()), (0, 0), "{call}");
    (broker.received_messages().into_iter().map(|message| message.key).collect(), status, owners)
}

#[tokio::test(start_paused = true)]
async fn a_busy_call_is_repeated_and_nothing_is_discarded() {
    for call in ["acquire_leases", "read", "settle", "read_parked", "settle_parked", "maintain"] {
        let (mut received, status, owners) = publish_with_busy(call, 3).await;
        received.sort();
        assert_eq!(received, ["a", "a", "b", "b", "bad", "bad"], "{call}: each message is published once");
        assert_eq!(owners.len(), 1, "{call}: the relay keeps its leases");
        assert_eq!((status.database_outages(), status.is_database_down()), (0, false), "{call}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_stays_busy_counts_as_an_outage() {
    // The backoff ends at five seconds, and a minute is several leases.
    let (received, status, _) = publish_with_busy("settle", 12).await;
    assert!(received.len() >= 6, "{received:?}");
    assert!(status.database_outages() > 0);
}

/// A store whose maintenance waits for ever, with the lock that settling and releasing need.
struct LockedStore {
    inner: Store,
    lock: tokio::sync::Mutex<()>,
    maintaining: AtomicBool,
}

#[async_trait]
impl ShardLeases for LockedStore {
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        self.inner.acquire_leases(request).await
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        let _guard = self.lock.lock().await;
        self.inner.release_leases(owner).await
    }
}

#[async_trait]
impl OutboxReader for LockedStore {
    async fn read(&self, request: PageRequest<'_>) -> Result<Page, StoreError> {
        self.inner.read(request).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<SettleResult, StoreError> {
        let _guard = self.lock.lock().await;
        self.inner.settle(settlement).await
    }
}

#[async_trait]
impl ParkedReader for LockedStore {
    async fn read_parked(
        &self,
        leases: &[Lease],
        keys: usize,
        messages: usize,
    ) -> Result<Vec<ParkedBatch>, StoreError> {
        self.inner.read_parked(leases, keys, messages).await
    }

    async fn settle_parked(&self, settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        self.inner.settle_parked(settlements).await
    }
}

#[async_trait]
impl Maintenance for LockedStore {
    async fn maintain(&self, _budget: Duration) -> Result<MaintenanceReport, StoreError> {
        let _guard = self.lock.lock().await;
        self.maintaining.store(true, Ordering::Relaxed);
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_maintenance() {
    let database = Database::new(memory::Config { shards: 2, ..memory::Config::default() });
    let store = Arc::new(LockedStore {
        inner: database.store(MAIN),
        lock: tokio::sync::Mutex::new(()),
        maintaining: AtomicBool::new(false),
    });
    let config = Config { routes: Routes::new(vec![Route::catch_all()]), ..Config::default() };
    let broker = MemoryBroker::new(BrokerConfig::default());
    let (stop, grace) = (CancellationToken::new(), config.shutdown_grace);
    let relay = Relay::with_seed(Arc::clone(&store) as _, Arc::new(broker), config, 7).expect("a valid config");
    let mut run = JoinSet::new();
    run.spawn(relay.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(store.maintaining.load(Ordering::Relaxed));
    let stopped_at = tokio::time::Instant::now();
    stop.cancel();
    run.join_next().await.expect("a relay").expect("no panic").expect("a clean shutdown");
    assert!(stopped_at.elapsed() < grace, "{:?}", stopped_at.elapsed());
    assert!(store.lock.try_lock().is_ok());
}

#[tokio::test(start_paused = true)]
async fn shutdown_repeats_a_busy_settlement() {
    let database = Database::new(memory::Config { shards: 1, ..memory::Config::default() });
    let broker = MemoryBroker::new(BrokerConfig::default());
    let state = Mutex::new(BusyState { remaining: 3, ..BusyState::default() });
    let store = Arc::new(BusyStore { inner: database.store(MAIN), state });
    let config = Config {
        routes: Routes::new(vec![Route::catch_all()]),
        // Only the shutdown settles.
        advanced: Advanced {
            settle_interval_min: Duration::from_mins(9),
            settle_interval_max: Duration::from_mins(9),
            ..Advanced::default()
        },
        ..Config::default()
    };
    let start = |config| Relay::with_seed(Arc::clone(&store) as _, Arc::new(broker.clone()), config, 7).expect("valid");
    let (stop, relay) = (CancellationToken::new(), start(config.clone()));
    let mut run = JoinSet::new();
    run.spawn(relay.run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await; // the first, empty settlement
    emit(&database, "a", "T");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(broker.received(), 1);
    store.state.lock().call = "settle";
    stop.cancel();
    run.join_next().await.expect("a relay").expect("no panic").expect("a clean shutdown");
    assert_eq!(store.state.lock().remaining, 0);

    let stop = CancellationToken::new();
    run.spawn(start(config).run(stop.clone()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    stop.cancel();
    run.join_next().await.expect("a relay").expect("no panic").expect("a clean shutdown");
    assert_eq!(broker.received(), 1, "the confirmed message was settled");
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_repeat_a_settlement_that_has_no_reply() {
    let database = Database::new(memory::Config { shards: 1, ..memory::Config::default() });
    let broker = MemoryBroker::new(BrokerConfig::default());
    broker.add_failure(FailureRule::new(RuleTarget::Key("a".into()), Class::Transient));
    let state = Mutex::new(BusyState { settle_reply_delay: Duration::from_mins(5), ..BusyState::default() });
    let store = Arc::new(BusyStore { inner: database.store(MAIN), state });
    emit(&database, "a", "T");
    let config = Config { routes: Routes::new(vec![Route::catch_all()]), ..Config::default() };
    let relay = Relay::with_seed(store as _, Arc::new(broker.clone()), config, 7).expect("a valid config");
    let (stop, mut run) = (CancellationToken::new(), JoinSet::new());
    run.spawn(relay.run(stop.clone()));
    while database.parked(MAIN).is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    run.join_next().await.expect("a relay").expect("no panic").expect("a clean shutdown");
    assert_eq!(database.parked(MAIN)[0].queue.len(), 1, "the failed message is parked once");
}

#[tokio::test(start_paused = true)]
async fn a_freed_key_stays_parked_while_the_failure_of_another_message_is_not_settled() {
    let database = Database::new(memory::Config { shards: 1, ..memory::Config::default() });
    let broker = MemoryBroker::new(BrokerConfig::default());
    let store = Arc::new(BusyStore { inner: database.store(MAIN), state: Mutex::default() });
    let policy = RetryPolicy { base: Duration::from_millis(100), ..RetryPolicy::default() };
    let route = Route { policy, after_dead: AfterDead::Continue, ..Route::catch_all() };
    let config = Config { routes: Routes::new(vec![route]), ..Config::default() };
    let relay = Relay::with_seed(Arc::clone(&store) as _, Arc::new(broker.clone()), config, 7).expect("a valid config");
    let (stop, mut run) = (CancellationToken::new(), JoinSet::new());
    run.spawn(relay.run(stop.clone()));
    broker.add_failure(FailureRule::new(RuleTarget::Key("a".into()), Class::Poison).times(1));
    emit(&database, "a", "First");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(database.dead_letters(MAIN).len(), 1);

    *store.state.lock() = BusyState { call: "settle", remaining: u32::MAX, ..BusyState::default() };
    broker.add_failure(FailureRule::new(RuleTarget::Key("a".into()), Class::Transient).times(1));
    emit(&database, "a", "Second");
    emit(&database, "a", "Third");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((broker.received(), database.parked(MAIN).len()), (0, 0), "the failure is known to the relay only");
    let redrive = MarkRequest {
        filter: DeadLetterFilter::of_destination(MAIN),
        action: MarkAction::Redrive,
        dry_run: false,
        rate_per_second: None,
        by: "ana".to_owned(),
        reason: "fixed".to_owned(),
    };
    database.operator().mark_dead_letters(&redrive).await.expect("the store answers");
    tokio::time::sleep(Duration::from_secs(5)).await;
    store.state.lock().remaining = 0;
    tokio::time::sleep(Duration::from_mins(1)).await;
    stop.cancel();
    run.join_next().await.expect("a relay").expect("no panic").expect("a clean shutdown");
    let received: Vec<String> = broker.received_messages().iter().map(|it| it.message.kind.to_string()).collect();
    assert_eq!(received, ["First", "Second", "Third"]);
}
