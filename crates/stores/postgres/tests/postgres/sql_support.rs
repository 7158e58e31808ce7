//! Support for the tests of the rules: sessions that visibly wait for each other, and a small reader.

use std::time::Duration;

use relevo_core::outbox::leases::{Lease, LeaseRequest, ShardLeases as _};
use relevo_core::outbox::log::{OutboxReader as _, PageRequest, SettleResult, Settlement, WindowLimit};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::store::StoreError;
use relevo_store_postgres::{Config, Operator, OperatorConfig, Schema, Store, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Private, Server};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

/// Timeout of every wait in a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(2);
const LEASE: Duration = Duration::from_mins(10);

/// An outbox for one test, with destination `main`.
pub(crate) struct SqlTest {
    pub(crate) database: Database,
    pub(crate) server: Option<Private>,
}

impl SqlTest {
    /// On the server that all tests share.
    pub(crate) async fn on_shared_server(shards: u16) -> Self {
        Self::prepared(Server::shared(PgVersion::V15).database().await, None, shards).await
    }

    /// On a private server without other transactions, for tests that depend on the next transaction id.
    pub(crate) async fn on_private_server(settings: &[(&str, &str)]) -> Self {
        let settings = [&[("autovacuum", "off")], settings].concat();
        let server = Private::start_with(PgVersion::V15, &settings).await;
        Self::prepared(server.database().await, Some(server), 8).await
    }

    async fn prepared(database: Database, server: Option<Private>, shards: u16) -> Self {
        let mut connection = database.connect().await;
        migrate::migrate(&mut connection, &Schema::default()).await.expect("an empty database");
        let bed = Self { database, server };
        bed.session().await.run(&format!("SELECT relevo.add_destination('main', {shards}, 'oldest')")).await;
        bed
    }

    pub(crate) async fn session(&self) -> Session {
        Session::new(self.database.connect().await).await
    }

    pub(crate) async fn store(&self) -> Store {
        Store::open(Config::new(self.database.options(), "main")).await.expect("a migrated database")
    }

    pub(crate) async fn operator(&self) -> Operator {
        Operator::open(OperatorConfig::new(self.database.options())).await.expect("a migrated database")
    }

    /// Runs one statement in its own session.
    pub(crate) async fn run(&self, sql: &str) {
        self.session().await.run(sql).await;
    }

    /// Emits in its own transaction.
    pub(crate) async fn emit(&self, key: &str, label: &str) {
        self.run(&emit(key, label)).await;
    }

    /// Replaces a phrase of a function in the database of this test, to show what fails without it.
    pub(crate) async fn mutate(&self, function: &str, phrase: &str, instead: &str) {
        let mut session = self.session().await;
        let source: String = session.scalar(&format!("SELECT pg_get_functiondef('relevo.{function}'::regproc)")).await;
        assert!(
            source.contains(phrase),
            "`{function}` no longer contains `{phrase}`: find the phrase that replaced it"
        );
        session.run(&source.replacen(phrase, instead, 1)).await;
    }

    /// Waits until a query returns true.
    pub(crate) async fn wait_until(&self, what: &str, query: &str) {
        let mut session = self.session().await;
        let deadline = Instant::now() + DEADLINE;
        while !session.scalar::<bool>(query).await {
            assert!(Instant::now() < deadline, "in vain for {DEADLINE:?}: {what}");
            sleep(POLL).await;
        }
    }

    /// Waits until a started statement is blocked by another session.
    pub(crate) async fn wait_until_blocked(&self, pending: &PendingStatement) {
        let query = format!("SELECT cardinality(pg_blocking_pids({})) > 0", pending.pid);
        self.wait_until("the statement waits for a lock", &query).await;
    }
}

/// The statement that emits a message whose type is its label.
pub(crate) fn emit(key: &str, label: &str) -> String {
    format!("SELECT relevo.emit('topic', '{key}', '{label}', '{{}}')")
}

/// One connection, one statement at a time.
pub(crate) struct Session {
    connection: PgConnection,
    pub(crate) pid: i32,
}

impl Session {
    pub(crate) async fn new(mut connection: PgConnection) -> Self {
        let row = sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(&mut connection).await;
        let pid = row.and_then(|row| row.try_get(0)).expect("a server");
        Self { connection, pid }
    }

    pub(crate) async fn try_rows(&mut self, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut self.connection);
        timeout(DEADLINE, rows).await.unwrap_or_else(|_| panic!("no answer within {DEADLINE:?}: {sql}"))
    }

    /// Runs a statement that may take longer than others.
    pub(crate) async fn run_slow(&mut self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.connection)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn rows(&mut self, sql: &str) -> Vec<PgRow> {
        self.try_rows(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub(crate) async fn run(&mut self, sql: &str) {
        self.rows(sql).await;
    }

    /// Returns the only value of a query.
    pub(crate) async fn scalar<T>(&mut self, sql: &str) -> T
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let rows = self.rows(sql).await;
        assert_eq!(rows.len(), 1, "one row: {sql}");
        rows[0].try_get(0).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Returns the first column of a query.
    pub(crate) async fn list(&mut self, sql: &str) -> Vec<String> {
        self.rows(sql).await.iter().map(|row| row.try_get(0).expect("text")).collect()
    }

    /// Returns the code of the error that a statement must raise.
    pub(crate) async fn expect_error(&mut self, sql: &str) -> String {
        match self.try_rows(sql).await {
            Ok(_) => panic!("it was not refused: {sql}"),
            Err(error) => code(&error),
        }
    }

    /// Like `refusal`, in a transaction that is rolled back afterwards.
    pub(crate) async fn expect_error_in(&mut self, begin: &str, sql: &str) -> String {
        self.run(begin).await;
        let code = self.expect_error(sql).await;
        self.run("ROLLBACK").await;
        code
    }

    /// Sends a statement without waiting for its result.
    pub(crate) fn start(mut self, sql: &str) -> PendingStatement {
        let (pid, sql) = (self.pid, sql.to_owned());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let answer = self.try_rows(&sql).await;
            (self, answer)
        });
        PendingStatement { pid, task }
    }
}

/// Returns the code of a server error.
pub(crate) fn code(error: &sqlx::Error) -> String {
    let database = error.as_database_error().unwrap_or_else(|| panic!("not the server's: {error}"));
    database.code().expect("a code").into_owned()
}

/// A statement that was sent.
pub(crate) struct PendingStatement {
    pub(crate) pid: i32,
    task: JoinSet<(Session, Result<Vec<PgRow>, sqlx::Error>)>,
}

impl PendingStatement {
    /// Returns its session and its result.
    pub(crate) async fn result(mut self) -> (Session, Result<Vec<PgRow>, sqlx::Error>) {
        self.task.join_next().await.expect("one task").expect("it does not panic")
    }

    /// Returns its session after success.
    pub(crate) async fn finish(self) -> Session {
        let (session, answer) = self.result().await;
        answer.expect("the statement goes well");
        session
    }
}

/// Reads and settles all shards together, without publishing.
pub(crate) struct Reader {
    pub(crate) store: Store,
    pub(crate) leases: Vec<Lease>,
    pub(crate) position: Position,
}

impl Reader {
    pub(crate) async fn start(bed: &SqlTest) -> Self {
        let store = bed.store().await;
        let owner = Uuid::new_v4();
        let name = "reader".to_owned();
        let request = LeaseRequest { owner, name, duration: LEASE, held: Vec::new(), release: Vec::new() };
        let response = store.acquire_leases(request).await.expect("leases");
        let at = response.taken.first().expect("free shards").position.clone();
        assert!(response.taken.iter().all(|shard| shard.position == at), "the shards are at one position");
        Self { store, leases: response.leases, position: at }
    }

    /// Releases the leases, so that another reader can continue.
    pub(crate) async fn leave(self) {
        self.store.release_leases(self.leases[0].owner).await.expect("an answer");
    }

    pub(crate) async fn page(&self, limit: usize, window_limit: WindowLimit) -> ReadPage {
        read_at(&self.store, &self.leases, &self.position, limit, window_limit).await.expect("a page")
    }

    pub(crate) async fn settle(&mut self, end: Position) {
        let progress = self.leases.iter().map(|lease| (*lease, end.clone())).collect();
        let settled = self.store.settle(Settlement { progress, parked: Vec::new() }).await.expect("an answer");
        assert_eq!(settled, SettleResult::default());
        self.position = end;
    }

    /// Reads and settles one page. Returns its labels.
    pub(crate) async fn next(&mut self, limit: usize) -> Vec<String> {
        let page = self.page(limit, WindowLimit::Unlimited).await;
        self.settle(page.end.clone()).await;
        labels(&page)
    }

    /// Reads and settles the window that ends at a tick. Returns its labels.
    pub(crate) async fn read_to_tick(&mut self, tick: i64) -> Vec<String> {
        let page = self.page(100, WindowLimit::UntilTick(tick)).await;
        assert_eq!(page.end, Position::at(tick), "one page to the window's end");
        self.settle(page.end.clone()).await;
        labels(&page)
    }

    /// Reads and settles all committed messages. Returns their labels.
    pub(crate) async fn drain(&mut self) -> Vec<String> {
        let mut labels = Vec::new();
        loop {
            // The rest of a window may be empty although the next window is not.
            let in_window = !self.position.is_exhausted();
            let page = self.next(100).await;
            if page.is_empty() && !in_window {
                return labels;
            }
            labels.extend(page);
        }
    }
}

/// A page of shards that are all at one position.
#[derive(Debug)]
pub(crate) struct ReadPage {
    pub(crate) entries: Vec<LogEntry>,
    /// The position of all shards after the page.
    pub(crate) end: Position,
}

/// Reads the next page of shards that are at this position.
pub(crate) async fn read_at(
    store: &Store,
    leases: &[Lease],
    after: &Position,
    messages_max: usize,
    window_limit: WindowLimit,
) -> Result<ReadPage, StoreError> {
    let shards: Vec<_> = leases.iter().map(|lease| (*lease, after.clone())).collect();
    let request = PageRequest { shards: &shards, messages_max, bytes_max: usize::MAX >> 1, window_limit };
    let page = store.read(request).await?;
    let end = page.shards.first().map_or(after, |read| &read.end).clone();
    assert!(page.shards.iter().all(|read| read.end == end), "shards at one position are read together");
    Ok(ReadPage { entries: page.entries, end })
}

fn labels(page: &ReadPage) -> Vec<String> {
    page.entries.iter().map(|entry| entry.message.kind.to_string()).collect()
}
