//! The harness of the store suite for a SQLite file.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use relevo_conformance::outbox::harness::{Capabilities, Harness, RETENTION, SHARDS, WriteTransaction};
use relevo_core::MessageId;
use relevo_store_sqlite::{Config, Draft, EmitError, Operator, OperatorConfig, Store, cancel, connect_options, emit};
use sqlx::sqlite::{Sqlite, SqliteConnection, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _, Transaction};
use tokio::time::Instant;

use crate::scratch::{self, LONG_WAIT, TempDirectory};

/// How long store connections wait for an open writer. In a case that writer never ends in the meantime.
const BUSY: Duration = Duration::from_millis(250);
/// The same for writers. It is shorter because a case tries many.
const BUSY_WRITER: Duration = Duration::from_millis(20);

pub(crate) struct SqliteHarness {
    directory: TempDirectory,
    path: PathBuf,
    /// Open while the case runs, so that no other connection is ever the last one. The last one locks the file while it
    /// closes, and deletes the write-ahead log.
    keep_open: SqliteConnection,
}

pub(crate) async fn start() -> SqliteHarness {
    let scratch = TempDirectory::new();
    let file = scratch.file();
    scratch::outbox(&file, SHARDS).await;
    let harness = SqliteHarness { directory: scratch, keep_open: scratch::connect(&file).await, path: file };
    let retention = format!("UPDATE relevo_settings SET retention_ms = {}", RETENTION.as_millis());
    harness.run(&retention).await.expect("a free file");
    harness
}

impl SqliteHarness {
    async fn run(&self, sql: &str) -> Result<(), sqlx::Error> {
        self.run_within(LONG_WAIT, sql).await
    }

    async fn run_within(&self, wait: Duration, sql: &str) -> Result<(), sqlx::Error> {
        let mut connection = connect_options(&self.path).busy_timeout(wait).connect().await?;
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.map(|_| ())
    }

    async fn begin_within(&self, wait: Duration) -> Result<WriteSession, sqlx::Error> {
        let options = connect_options(&self.path).busy_timeout(LONG_WAIT);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        let short = format!("PRAGMA busy_timeout = {}", wait.as_millis());
        sqlx::raw_sql(AssertSqlSafe(short)).execute(&pool).await?;
        Ok(WriteSession(relevo_store_sqlite::begin(&pool).await?))
    }
}

/// Moves stored times back in one transaction.
fn shift_times_back(columns: &[(&str, &str)], time: Duration) -> String {
    let each =
        columns.iter().map(|(table, column)| format!("UPDATE {table} SET {column} = {column} - {};", time.as_millis()));
    format!("BEGIN IMMEDIATE; {} COMMIT", each.collect::<String>())
}

#[async_trait]
impl Harness for SqliteHarness {
    type Store = Store;
    type Operator = Operator;
    type Writer = WriteSession;

    async fn store_for(&self, name: &str) -> Store {
        let config = Config { busy_timeout: BUSY, ..Config::new(&self.path, name) };
        Store::open(config).await.expect("a migrated file")
    }

    async fn operator(&self) -> Operator {
        let config = OperatorConfig { busy_timeout: BUSY, ..OperatorConfig::new(&self.path) };
        Operator::open(config).await.expect("a migrated file")
    }

    async fn begin(&self) -> WriteSession {
        self.begin_within(LONG_WAIT).await.expect("no other writer")
    }

    async fn try_begin_second(&self) -> Option<WriteSession> {
        self.begin_within(BUSY_WRITER).await.ok()
    }

    /// A killed process leaves the two files as they are at that moment. SQLite recreates the shared memory.
    async fn crash(&mut self) {
        let after = self.directory.path().join("after-the-crash.db");
        for suffix in ["", "-wal"] {
            let name = |file: &PathBuf| PathBuf::from(format!("{}{suffix}", file.display()));
            std::fs::copy(name(&self.path), name(&after)).expect("a copy");
        }
        self.keep_open = scratch::connect(&after).await;
        self.path = after;
    }

    /// Moves stored times back. While a writer is open this is not possible. Then it really waits, for the writer or
    /// for the time.
    async fn advance_time(&self, time: Duration) {
        let columns = [
            ("relevo_lease", "expires_at_ms"),
            ("relevo_relay", "expires_at_ms"),
            ("relevo_parked_key", "next_at_ms"),
            ("relevo_address_hold", "next_at_ms"),
            ("relevo_scheduled", "due_at_ms"),
        ];
        let end = Instant::now() + time;
        if self.run_within(time, &shift_times_back(&columns, time)).await.is_err() {
            tokio::time::sleep_until(end).await;
        }
    }

    async fn age_records(&self, time: Duration) {
        let columns = [
            ("relevo_message", "created_at_ms"),
            ("relevo_progress", "settled_at_ms"),
            ("relevo_settle_history", "settled_at_ms"),
        ];
        self.run(&shift_times_back(&columns, time)).await.expect("a free file");
    }

    async fn next_partition(&self) {}

    async fn stored_messages(&self) -> usize {
        let mut connection = scratch::connect(&self.path).await;
        let row = sqlx::query("SELECT count(*) FROM relevo_message").fetch_one(&mut connection).await;
        let count: i64 = row.and_then(|row| row.try_get(0)).expect("a count");
        usize::try_from(count).expect("a count")
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { single_writer: true, ..Capabilities::default() }
    }
}

/// An application's transaction on its own connection.
pub(crate) struct WriteSession(Transaction<'static, Sqlite>);

impl WriteSession {
    async fn run(&mut self, sql: String) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *self.0).await.expect("an open transaction");
    }
}

#[async_trait]
impl WriteTransaction for WriteSession {
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError> {
        emit(&mut self.0, draft).await
    }

    async fn cancel(&mut self, id: MessageId) -> bool {
        cancel(&mut self.0, id).await.expect("an open transaction")
    }

    async fn savepoint(&mut self, name: &str) {
        self.run(format!("SAVEPOINT {name}")).await;
    }

    async fn rollback_to(&mut self, name: &str) {
        self.run(format!("ROLLBACK TO SAVEPOINT {name}")).await;
    }

    async fn commit(self) {
        self.0.commit().await.expect("an open transaction");
    }

    async fn rollback(self) {
        self.0.rollback().await.expect("an open transaction");
    }
}
