//! A migrated outbox per test, relays that run on it, and checks of everything that they sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use relevo_broker_memory::MemoryBroker;
use relevo_core::{MessageId, RetryPolicy, Route, Routes};
use relevo_relay::{Advanced, Config as RelayConfig, Relay, RelayError, RelayStatus};
use relevo_store_postgres::{Config, Operator, OperatorConfig, Schema, Store, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Private, Server};
use relevo_testkit::proxy::CutProxy;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) const MAIN: &str = "main";
/// Timeout of every wait in a test.
const DEADLINE: Duration = Duration::from_secs(20);

/// Polls until the condition holds.
pub(crate) async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn execute(connection: &mut PgConnection, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await
}

/// Returns the SQLSTATE and the message of the error that a statement must raise.
pub(crate) async fn expect_error(connection: &mut PgConnection, sql: &str) -> (String, String) {
    match execute(connection, sql).await {
        Err(sqlx::Error::Database(error)) => {
            (error.code().expect("the server's errors have a code").into_owned(), error.message().to_owned())
        }
        other => panic!("`{sql}` was not refused: {other:?}"),
    }
}

/// A migrated database.
pub(crate) struct TestDatabase {
    pub(crate) database: Database,
    pub(crate) server: Option<Private>,
}

impl TestDatabase {
    /// On the shared server of version 15, with destination [`MAIN`]: eight shards, from the oldest message on.
    pub(crate) async fn new() -> Self {
        Self::on_version(PgVersion::V15).await
    }

    pub(crate) async fn on_version(version: PgVersion) -> Self {
        let world = Self { database: Server::shared(version).database().await, server: None };
        world.prepare(8).await;
        world
    }

    pub(crate) async fn with_shards(shards: u16) -> Self {
        let world = Self { database: Server::shared(PgVersion::V15).database().await, server: None };
        world.prepare(shards).await;
        world
    }

    /// On a private server, which a test may kill.
    pub(crate) async fn on_private_server() -> Self {
        Self::on_private_version(PgVersion::V15).await
    }

    pub(crate) async fn on_private_version(version: PgVersion) -> Self {
        let server = Private::start(version).await;
        let world = Self { database: server.database().await, server: Some(server) };
        world.prepare(8).await;
        world
    }

    async fn prepare(&self, shards: u16) {
        migrate::migrate(&mut self.connect().await, &Schema::default()).await.expect("an empty database");
        self.run(&format!("SELECT relevo.add_destination('{MAIN}', {shards}, 'oldest')")).await;
    }

    pub(crate) fn private_server(&self) -> &Private {
        self.server.as_ref().expect("the test has a server of its own")
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        self.database.connect().await
    }

    pub(crate) async fn rows(&self, sql: &str) -> Vec<PgRow> {
        execute(&mut self.connect().await, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub(crate) async fn run(&self, sql: &str) {
        self.rows(sql).await;
    }

    /// Returns the only number of a query result.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let rows = self.rows(&format!("SELECT ({sql})::bigint")).await;
        rows[0].try_get(0).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Returns the first column of a query result as text.
    pub(crate) async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.rows(sql).await;
        rows.iter().map(|row| row.try_get(0).unwrap_or_else(|error| panic!("{sql}: {error}"))).collect()
    }

    pub(crate) async fn store(&self) -> Arc<Store> {
        self.store_for(MAIN).await
    }

    pub(crate) async fn store_for(&self, destination: &str) -> Arc<Store> {
        store(self.database.options(), destination).await
    }

    pub(crate) async fn operator(&self) -> Operator {
        operator(self.database.options()).await
    }

    /// Starts a proxy in front of the server, and a store that connects through it.
    pub(crate) async fn proxied(&self) -> (Arc<CutProxy>, Arc<Store>) {
        let options = self.database.options();
        let upstream: SocketAddr = format!("127.0.0.1:{}", options.get_port()).parse().expect("a loopback address");
        let proxy = Arc::new(CutProxy::start(upstream).await);
        let options = options.host("127.0.0.1").port(proxy.addr().port());
        (proxy, store(options, MAIN).await)
    }

    /// Emits `count` messages over `keys` keys in one transaction. Returns them in order.
    pub(crate) async fn emit_many(&self, count: usize, keys: usize) -> EmittedMessages {
        let sql = format!(
            "SELECT relevo.emit_bytes('orders', 'k-' || n % {keys}, 'Counted', convert_to(n::text, 'UTF8'), 'text/plain'), \
             'k-' || n % {keys} FROM generate_series(1, {count}) AS n"
        );
        EmittedMessages::read(&self.rows(&sql).await)
    }

    /// Emits one message per key, each in its own transaction.
    pub(crate) async fn emit(&self, keys: &[&str]) -> Vec<MessageId> {
        let mut connection = self.connect().await;
        let mut ids = Vec::new();
        for key in keys {
            let rows =
                execute(&mut connection, &format!("SELECT relevo.emit('orders', '{key}', 'OrderPlaced', '{{}}')"))
                    .await
                    .expect("a good message");
            ids.push(MessageId::from_uuid(rows[0].try_get::<Uuid, _>(0).expect("an id")));
        }
        ids
    }

    /// Waits until no message is pending or parked.
    pub(crate) async fn wait_until_drained(&self) {
        self.wait_until_drained_for(MAIN).await;
    }

    pub(crate) async fn wait_until_drained_for(&self, destination: &str) {
        let mut connection = self.connect().await;
        wait_until("everything is settled", async || {
            let sql = format!("SELECT pending + parked FROM relevo.backlog('{destination}')");
            let rows = execute(&mut connection, &sql).await.expect("a backlog");
            rows[0].try_get::<i64, _>(0).expect("a number") == 0
        })
        .await;
    }

    /// Returns the number of shards of each owner, in descending order.
    pub(crate) async fn shards_per_owner(&self) -> Vec<i64> {
        let sql = "SELECT count(*) FROM relevo.lease WHERE owner IS NOT NULL GROUP BY owner ORDER BY 1 DESC";
        self.rows(sql).await.iter().map(|row| row.try_get(0).expect("a count")).collect()
    }

    /// P8: in no shard is a settlement of an older epoch after one of a newer epoch.
    pub(crate) async fn assert_epochs_never_decrease(&self) {
        let back = "SELECT count(*) FROM (SELECT epoch < lag(epoch) OVER (PARTITION BY destination, shards, shard \
                    ORDER BY progress_id) AS back FROM relevo.progress) AS p WHERE back";
        assert_eq!(self.number(back).await, 0, "a settlement without the lease");
    }
}

pub(crate) async fn store(options: PgConnectOptions, destination: &str) -> Arc<Store> {
    Arc::new(Store::open(Config::new(options, destination)).await.expect("a migrated database"))
}

/// The committed messages, in commit order within each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct EmittedMessages(pub(crate) Vec<(String, MessageId)>);

impl EmittedMessages {
    /// Reads rows of id and key.
    pub(crate) fn read(rows: &[PgRow]) -> Self {
        let read = |row: &PgRow| {
            let id: Uuid = row.try_get(0).expect("an id");
            (row.try_get(1).expect("a key"), MessageId::from_uuid(id))
        };
        Self(rows.iter().map(read).collect())
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// P1, P2, P3: all of these messages arrived and no others. The first deliveries of each key follow its order.
    /// Returns the number of repeats.
    pub(crate) fn assert_received(&self, broker: &MemoryBroker) -> usize {
        let receipts = broker.received_messages();
        let known: BTreeSet<MessageId> = self.0.iter().map(|(_, id)| *id).collect();
        let mut expected: BTreeMap<&str, Vec<MessageId>> = BTreeMap::new();
        for (key, id) in &self.0 {
            expected.entry(key).or_default().push(*id);
        }
        let mut seen = BTreeSet::new();
        let mut first: BTreeMap<&str, Vec<MessageId>> = BTreeMap::new();
        for receipt in &receipts {
            assert!(known.contains(&receipt.id), "{} was published and never committed", receipt.id);
            if seen.insert(receipt.id) {
                first.entry(&receipt.key).or_default().push(receipt.id);
            }
        }
        let lost: Vec<_> = self.0.iter().filter(|(_, id)| !seen.contains(id)).collect();
        assert!(lost.is_empty(), "{} of {} never arrived: {:?} …", lost.len(), self.len(), lost.first());
        for (key, ids) in &expected {
            assert_eq!(first.get(key), Some(ids), "the order of `{key}`");
        }
        receipts.len() - seen.len()
    }
}

/// Defaults with short pauses. Leases last ten seconds, so that a slow machine loses none.
pub(crate) fn config() -> RelayConfig {
    RelayConfig {
        routes: Routes::new(vec![fast_retry_route()]),
        outage_backoff_max: Duration::from_millis(200),
        advanced: Advanced {
            parked_poll_interval: Duration::from_millis(20),
            outage_backoff_min: Duration::from_millis(20),
            settle_interval_max: Duration::from_millis(100),
            ..Advanced::default()
        },
        ..RelayConfig::default()
    }
}

/// [`config`] with these settings.
pub(crate) fn with(advanced: Advanced) -> RelayConfig {
    RelayConfig { advanced, ..config() }
}

/// Leases short enough to expire within a test.
pub(crate) fn short_leases() -> RelayConfig {
    RelayConfig {
        lease_duration: Duration::from_secs(2),
        publish_timeout: Duration::from_secs(1),
        advanced: Advanced { lease_margin: Duration::from_millis(300), ..config().advanced },
        ..config()
    }
}

/// Three attempts with very short pauses.
pub(crate) fn fast_retry_route() -> Route {
    let policy = RetryPolicy {
        base: Duration::from_millis(30),
        max: Duration::from_millis(100),
        attempts_max: 3,
        ..RetryPolicy::default()
    };
    Route { policy, ..Route::catch_all() }
}

/// A relay in its own task. Dropping it simulates a crash: it neither finishes its work nor releases its leases.
pub(crate) struct RunningRelay {
    stop: CancellationToken,
    task: JoinSet<Result<(), RelayError>>,
    pub(crate) stats: Arc<RelayStatus>,
}

impl RunningRelay {
    pub(crate) fn start(store: Arc<Store>, broker: &MemoryBroker, config: RelayConfig) -> Self {
        Self::start_with(store, broker, config, CancellationToken::new())
    }

    pub(crate) fn start_with(
        store: Arc<Store>,
        broker: &MemoryBroker,
        config: RelayConfig,
        stop: CancellationToken,
    ) -> Self {
        let relay = Relay::new(store, Arc::new(broker.clone()), config).expect("a valid configuration");
        let stats = relay.status();
        let mut task = JoinSet::new();
        task.spawn(relay.run(stop.clone()));
        Self { stop, task, stats }
    }

    /// Shuts the relay down and waits until it ends.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.wait_for_end().await.expect("a clean shutdown");
    }

    /// Waits until the relay has ended after another shutdown request.
    pub(crate) async fn wait_until_stopped(self) {
        self.wait_for_end().await.expect("a clean shutdown");
    }

    /// Waits until the relay ends without a request.
    pub(crate) async fn wait_for_end(mut self) -> Result<(), RelayError> {
        let ended = tokio::time::timeout(DEADLINE, self.task.join_next()).await;
        ended.expect("it ends in time").expect("one task").expect("it does not panic")
    }
}

/// Writers that emit until they are stopped, each with its own keys. They fail if an emit waits too long for a lock.
pub(crate) struct BackgroundWriters {
    stop: CancellationToken,
    tasks: JoinSet<EmittedMessages>,
}

impl BackgroundWriters {
    pub(crate) fn start(world: &TestDatabase, writers: usize) -> Self {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            tasks.spawn(write(world.database.options(), writer, stop.clone()));
        }
        Self { stop, tasks }
    }

    /// Stops the writers after the broker has received this many messages. Returns what they committed.
    pub(crate) async fn stop_after(self, broker: &MemoryBroker, received: u64) -> EmittedMessages {
        wait_until("traffic arrives", async || broker.received() >= received).await;
        self.stop().await
    }

    /// Stops the writers. Returns what they committed.
    pub(crate) async fn stop(mut self) -> EmittedMessages {
        self.stop.cancel();
        let mut ledger = EmittedMessages::default();
        while let Some(written) = self.tasks.join_next().await {
            ledger.add(written.expect("no emit was refused"));
        }
        ledger
    }
}

async fn write(options: PgConnectOptions, writer: usize, stop: CancellationToken) -> EmittedMessages {
    let mut connection = options.connect().await.expect("a server");
    execute(&mut connection, "SET lock_timeout = '10s'").await.expect("a setting");
    let mut ledger = EmittedMessages::default();
    let mut n = 0;
    while !stop.is_cancelled() {
        n += 1;
        let key = format!("w{writer}-{}", n % 7);
        // Every seventh transaction is rolled back. Its message must never be delivered.
        let end = if n % 7 == 3 { "ROLLBACK" } else { "COMMIT" };
        execute(&mut connection, "BEGIN").await.expect("a transaction");
        let sql = format!("SELECT relevo.emit('orders', '{key}', 'Counted', '{n}'), '{key}'");
        let rows = execute(&mut connection, &sql).await.unwrap_or_else(|error| panic!("an emit failed: {error}"));
        execute(&mut connection, end).await.expect("an end");
        if end == "COMMIT" {
            ledger.add(EmittedMessages::read(&rows));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    ledger
}

pub(crate) async fn operator(options: PgConnectOptions) -> Operator {
    Operator::open(OperatorConfig::new(options)).await.expect("a migrated database")
}
