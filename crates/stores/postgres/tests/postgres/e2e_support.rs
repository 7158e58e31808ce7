//! An outbox of one test's own, relays that run on it, and what must be true of everything they sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use relevo_broker_memory::MemoryBroker;
use relevo_core::{MessageId, Policy, Route, Routes};
use relevo_relay::{Config as RelayConfig, Relay, RelayError, Stats};
use relevo_store_postgres::{Config, Schema, Store, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Private, Server};
use relevo_testkit::proxy::CutProxy;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) const MAIN: &str = "main";
/// Nothing that a test waits for takes longer.
const DEADLINE: Duration = Duration::from_secs(20);

/// Polls until the condition holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn execute(connection: &mut PgConnection, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await
}

/// The SQLSTATE with which a statement is refused, and the sentence.
pub(crate) async fn refusal(connection: &mut PgConnection, sql: &str) -> (String, String) {
    match execute(connection, sql).await {
        Err(sqlx::Error::Database(error)) => {
            (error.code().expect("the server's errors have a code").into_owned(), error.message().to_owned())
        }
        other => panic!("`{sql}` was not refused: {other:?}"),
    }
}

/// A migrated database.
pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) server: Option<Private>,
}

impl World {
    /// On the shared server of version 15, with [`MAIN`] of eight shards, which starts with the oldest message.
    pub(crate) async fn new() -> Self {
        Self::on(PgVersion::V15).await
    }

    pub(crate) async fn on(version: PgVersion) -> Self {
        let world = Self { database: Server::shared(version).database().await, server: None };
        world.prepare(8).await;
        world
    }

    pub(crate) async fn with_shards(shards: u16) -> Self {
        let world = Self { database: Server::shared(PgVersion::V15).database().await, server: None };
        world.prepare(shards).await;
        world
    }

    /// On a server of its own, which may be killed.
    pub(crate) async fn alone() -> Self {
        Self::alone_on(PgVersion::V15).await
    }

    pub(crate) async fn alone_on(version: PgVersion) -> Self {
        let server = Private::start(version).await;
        let world = Self { database: server.database().await, server: Some(server) };
        world.prepare(8).await;
        world
    }

    /// With the schema as an older program left it.
    pub(crate) async fn at_version(version: i32) -> Self {
        let world = Self { database: Server::shared(PgVersion::V15).database().await, server: None };
        world.prepare_at(8, version).await;
        world
    }

    async fn prepare(&self, shards: u16) {
        self.prepare_at(shards, migrate::VERSION).await;
    }

    async fn prepare_at(&self, shards: u16, version: i32) {
        migrate::migrate_to(&mut self.connect().await, &Schema::default(), version).await.expect("an empty database");
        self.run(&format!("SELECT relevo.add_destination('{MAIN}', {shards}, 'oldest')")).await;
    }

    pub(crate) fn private(&self) -> &Private {
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

    /// The one number that a query gives.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let rows = self.rows(&format!("SELECT ({sql})::bigint")).await;
        rows[0].try_get(0).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The first column of a query, as text.
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

    /// A proxy in front of the server, and a store that goes through it.
    pub(crate) async fn proxied(&self) -> (Arc<CutProxy>, Arc<Store>) {
        let options = self.database.options();
        let upstream: SocketAddr = format!("127.0.0.1:{}", options.get_port()).parse().expect("a loopback address");
        let proxy = Arc::new(CutProxy::start(upstream).await);
        let options = options.host("127.0.0.1").port(proxy.addr().port());
        (proxy, store(options, MAIN).await)
    }

    /// Emits `count` messages over `keys` keys in one transaction; gives them in order.
    pub(crate) async fn emit_some(&self, count: usize, keys: usize) -> Ledger {
        let sql = format!(
            "SELECT relevo.emit_bytes('orders', 'k-' || n % {keys}, 'Counted', convert_to(n::text, 'UTF8'), 'text/plain'), \
             'k-' || n % {keys} FROM generate_series(1, {count}) AS n"
        );
        Ledger::read(&self.rows(&sql).await)
    }

    /// One message of each of these keys, each in a transaction of its own.
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

    /// Waits until nothing is pending or parked.
    pub(crate) async fn drained(&self) {
        self.drained_for(MAIN).await;
    }

    pub(crate) async fn drained_for(&self, destination: &str) {
        let mut connection = self.connect().await;
        until("everything is settled", async || {
            let sql = format!("SELECT pending + parked FROM relevo.backlog('{destination}')");
            let rows = execute(&mut connection, &sql).await.expect("a backlog");
            rows[0].try_get::<i64, _>(0).expect("a number") == 0
        })
        .await;
    }

    /// How many shards each owner holds, the most first.
    pub(crate) async fn shares(&self) -> Vec<i64> {
        let sql = "SELECT count(*) FROM relevo.lease WHERE owner IS NOT NULL GROUP BY owner ORDER BY 1 DESC";
        self.rows(sql).await.iter().map(|row| row.try_get(0).expect("a count")).collect()
    }

    /// P8: in no shard was anything settled under an older epoch after a newer one.
    pub(crate) async fn assert_epochs_never_go_back(&self) {
        let back = "SELECT count(*) FROM (SELECT epoch < lag(epoch) OVER (PARTITION BY destination, shards, shard \
                    ORDER BY no) AS back FROM relevo.progress) AS p WHERE back";
        assert_eq!(self.number(back).await, 0, "somebody settled without the lease");
    }
}

pub(crate) async fn store(options: PgConnectOptions, destination: &str) -> Arc<Store> {
    Arc::new(Store::open(Config::new(options, destination)).await.expect("a migrated database"))
}

/// What was committed, in the order of commits within each key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger(pub(crate) Vec<(String, MessageId)>);

impl Ledger {
    /// From rows of id and key.
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

    /// P1, P2, P3: everything of this arrived and nothing else did, and first appearances of each key follow its order.
    /// Gives the number of repeats.
    pub(crate) fn check(&self, broker: &MemoryBroker) -> usize {
        let receipts = broker.receipts();
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

/// Defaults with short pauses; leases last ten seconds, so that a busy machine costs none.
pub(crate) fn config() -> RelayConfig {
    RelayConfig {
        routes: Routes::new(vec![quick_route()]),
        due_every: Duration::from_millis(20),
        outage_min: Duration::from_millis(20),
        outage_max: Duration::from_millis(200),
        settle_every: Duration::from_millis(100),
        ..RelayConfig::default()
    }
}

/// Leases that a test can outlive.
pub(crate) fn short_leases() -> RelayConfig {
    RelayConfig {
        lease: Duration::from_secs(2),
        lease_margin: Duration::from_millis(300),
        publish_deadline: Duration::from_secs(1),
        ..config()
    }
}

/// Three attempts within a blink.
pub(crate) fn quick_route() -> Route {
    let policy = Policy {
        base: Duration::from_millis(30),
        ceiling: Duration::from_millis(100),
        attempts_max: 3,
        ..Policy::default()
    };
    Route { policy, ..Route::everything() }
}

/// A relay in a task of its own. Dropping it is a crash: nothing is finished, nothing is given back.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinSet<Result<(), RelayError>>,
    pub(crate) stats: Arc<Stats>,
}

impl Running {
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
        let stats = relay.stats();
        let mut task = JoinSet::new();
        task.spawn(relay.run(stop.clone()));
        Self { stop, task, stats }
    }

    /// Stops it politely and waits for its end.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended().await.expect("a relay that is told to stop has no complaint");
    }

    /// Waits until it has stopped, which somebody else told it.
    pub(crate) async fn stopped(self) {
        self.ended().await.expect("a relay that is told to stop has no complaint");
    }

    /// Waits until it ends by itself.
    pub(crate) async fn ended(mut self) -> Result<(), RelayError> {
        let ended = tokio::time::timeout(DEADLINE, self.task.join_next()).await;
        ended.expect("it ends in time").expect("one task").expect("it does not panic")
    }
}

/// Writers that emit until they are told to stop, each with keys of its own, and fail if an emit waits for a lock that somebody
/// keeps.
pub(crate) struct Traffic {
    stop: CancellationToken,
    tasks: JoinSet<Ledger>,
}

impl Traffic {
    pub(crate) fn start(world: &World, writers: usize) -> Self {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            tasks.spawn(write(world.database.options(), writer, stop.clone()));
        }
        Self { stop, tasks }
    }

    /// Ends the writers once the broker has received so much; gives what they committed.
    pub(crate) async fn stop_after(self, broker: &MemoryBroker, received: u64) -> Ledger {
        until("traffic arrives", async || broker.received() >= received).await;
        self.stop().await
    }

    /// Ends the writers; gives what they committed.
    pub(crate) async fn stop(mut self) -> Ledger {
        self.stop.cancel();
        let mut ledger = Ledger::default();
        while let Some(written) = self.tasks.join_next().await {
            ledger.add(written.expect("no emit was refused"));
        }
        ledger
    }
}

async fn write(options: PgConnectOptions, writer: usize, stop: CancellationToken) -> Ledger {
    let mut connection = options.connect().await.expect("a server");
    execute(&mut connection, "SET lock_timeout = '10s'").await.expect("a setting");
    let mut ledger = Ledger::default();
    let mut n = 0;
    while !stop.is_cancelled() {
        n += 1;
        let key = format!("w{writer}-{}", n % 7);
        // Every seventh transaction is rolled back: it must never be seen.
        let end = if n % 7 == 3 { "ROLLBACK" } else { "COMMIT" };
        execute(&mut connection, "BEGIN").await.expect("a transaction");
        let sql = format!("SELECT relevo.emit('orders', '{key}', 'Counted', '{n}'), '{key}'");
        let rows = execute(&mut connection, &sql).await.unwrap_or_else(|error| panic!("an emit failed: {error}"));
        execute(&mut connection, end).await.expect("an end");
        if end == "COMMIT" {
            ledger.add(Ledger::read(&rows));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    ledger
}
