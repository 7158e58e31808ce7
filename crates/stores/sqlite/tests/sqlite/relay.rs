//! The production relay on SQLite: committed messages arrive in order, whatever else happens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction};
use relevo_core::outbox::leases::{LeaseRequest, ShardLeases as _};
use relevo_core::{Class, MessageId};
use relevo_relay::{Advanced, Config as RelayConfig, Relay, RelayError};
use relevo_store_sqlite::{Config, Operator, Store, begin, emit};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::scratch::{MAIN, TempDirectory, connect, draft, operator, outbox};

/// Timeout of every wait in a test.
const DEADLINE: Duration = Duration::from_secs(30);

async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Relays that run until they are stopped.
struct RunningRelays {
    stop: CancellationToken,
    relays: JoinSet<Result<(), RelayError>>,
}

impl RunningRelays {
    async fn start(file: &Path, broker: &Arc<MemoryBroker>, count: usize) -> Self {
        let stop = CancellationToken::new();
        let mut relays = JoinSet::new();
        for _ in 0..count {
            let store = Arc::new(Store::open(Config::new(file, MAIN)).await.expect("a migrated file"));
            let advanced = Advanced { parked_poll_interval: Duration::from_millis(20), ..Advanced::default() };
            let config = RelayConfig { advanced, ..RelayConfig::default() };
            let relay = Relay::new(store, broker.clone(), config).expect("a valid configuration");
            relays.spawn(relay.run(stop.clone()));
        }
        Self { stop, relays }
    }

    async fn stop(self) {
        self.stop.cancel();
        for ended in self.relays.join_all().await {
            ended.expect("a relay ends well");
        }
    }
}

/// Commits and rolls back transactions. Returns the committed messages by key, in order.
async fn write(file: PathBuf, writer: usize, times: usize) -> BTreeMap<String, Vec<MessageId>> {
    let mut connection = connect(&file).await;
    let mut committed: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
    for number in 0..times {
        let mut tx = begin(&mut connection).await.expect("a turn");
        let mut emitted = Vec::new();
        for part in 0..3 {
            let key = format!("w-{writer}-{}", (number + part) % 7);
            emitted.push((key.clone(), emit(&mut tx, draft(&key)).await.expect("a message")));
        }
        if number % 4 == 3 {
            tx.rollback().await.expect("an open transaction");
            continue;
        }
        tx.commit().await.expect("an open transaction");
        for (key, id) in emitted {
            committed.entry(key).or_default().push(id);
        }
    }
    committed
}

async fn wait_until_drained(store: &Operator) {
    wait_until("everything is settled", async || {
        let backlog = store.backlog().await.expect("a backlog");
        backlog.pending + backlog.parked == 0
    })
    .await;
}

#[tokio::test]
async fn committed_messages_arrive_in_order_through_changing_relays() {
    let scratch = TempDirectory::new();
    outbox(&scratch.file(), 8).await;
    let store = operator(&scratch.file()).await;
    let broker = Arc::new(MemoryBroker::new(BrokerConfig::default()));
    let first = RunningRelays::start(&scratch.file(), &broker, 2).await;
    let mut writers = JoinSet::new();
    for writer in 0..3 {
        writers.spawn(write(scratch.file(), writer, 60));
    }
    wait_until("something went out", async || broker.received() > 50).await;
    let second = RunningRelays::start(&scratch.file(), &broker, 1).await;
    first.stop().await;
    let committed: BTreeMap<String, Vec<MessageId>> = writers.join_all().await.into_iter().flatten().collect();
    wait_until_drained(&store).await;
    second.stop().await;

    let mut seen = BTreeSet::new();
    let mut arrived: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
    for receipt in broker.received_messages() {
        if seen.insert(receipt.id) {
            arrived.entry(receipt.key.clone()).or_default().push(receipt.id);
        }
    }
    assert_eq!(arrived, committed);
    assert_eq!(store.verify(relevo_core::outbox::search::TimeRange::default()).await.unwrap().inconsistencies, [""; 0]);
}

#[tokio::test]
async fn a_dead_letter_holds_its_key_until_it_is_redriven() {
    let scratch = TempDirectory::new();
    outbox(&scratch.file(), 2).await;
    let store = operator(&scratch.file()).await;
    let broker = Arc::new(MemoryBroker::new(BrokerConfig::default()));
    broker.add_failure(FailureRule::new(RuleTarget::Key("bad".to_owned()), Class::Poison).times(1));
    let mut connection = connect(&scratch.file()).await;
    let mut bad = Vec::new();
    for _ in 0..3 {
        bad.push(crate::scratch::emit_one(&mut connection, draft("bad")).await);
        crate::scratch::emit_one(&mut connection, draft("good")).await;
    }
    let relay = RunningRelays::start(&scratch.file(), &broker, 1).await;
    wait_until("the other key flows", async || broker.received() == 3).await;
    wait_until("the key waits", async || store.backlog().await.is_ok_and(|it| (it.parked, it.dead) == (2, 1))).await;
    let filter = DeadLetterFilter { key: Some("bad".to_owned()), ..DeadLetterFilter::of_destination(MAIN) };
    assert_eq!(store.mark(MarkAction::Redrive, filter).await.unwrap(), 1);
    wait_until_drained(&store).await;
    relay.stop().await;
    let arrived: Vec<_> = broker.received_messages().iter().filter(|it| &*it.key == "bad").map(|it| it.id).collect();
    assert_eq!(arrived, bad, "before its successors");
}

/// The clock was set back by an hour after a relay died, so its leases end an hour ahead.
#[tokio::test]
async fn leases_from_before_a_clock_was_set_back_are_taken_over() {
    let scratch = TempDirectory::new();
    let file = scratch.file();
    outbox(&file, 8).await;
    let request = |owner| LeaseRequest {
        owner,
        name: "relay".to_owned(),
        duration: Duration::from_secs(10),
        held: Vec::new(),
        release: Vec::new(),
    };
    let store = Store::open(Config::new(&file, MAIN)).await.expect("an outbox");
    let dead = store.acquire_leases(request(Uuid::from_u128(1))).await.expect("leases");
    assert_eq!(dead.leases.len(), 8);
    let mut connection = connect(&file).await;
    for table in ["relevo_lease", "relevo_relay"] {
        let later = format!("UPDATE {table} SET expires_at_ms = expires_at_ms + 3600000");
        sqlx::raw_sql(AssertSqlSafe(later)).execute(&mut connection).await.expect("a free file");
    }
    let taken = store.acquire_leases(request(Uuid::from_u128(2))).await.expect("leases");
    assert_eq!(taken.leases.len(), 8);
    assert!(taken.duration <= Duration::from_secs(10), "{:?}", taken.duration);
    assert!(taken.leases.iter().zip(&dead.leases).all(|(new, old)| new.epoch > old.epoch), "{taken:?}");
}
