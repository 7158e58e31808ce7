//! The harness of the inbox suite for a SQLite file.

use std::time::Duration;

use async_trait::async_trait;
use relevo_conformance::inbox::{Capabilities, HandlerTransaction, Harness};
use relevo_core::MessageId;
use relevo_core::inbox::InboxRetention;
use relevo_store_sqlite::inbox::{Config, Inbox};
use relevo_store_sqlite::{Operator, OperatorConfig, connect_options};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use tokio::time::Instant;
use uuid::Uuid;

use crate::scratch::{self, LONG_WAIT, TempDirectory};

/// How long a call waits for another writer. In every case, a writer that ends does so earlier, even on a slow machine.
const WAIT: Duration = Duration::from_secs(2);

pub(crate) struct SqliteHarness {
    directory: TempDirectory,
    /// Stays open while the case runs. The last connection of a file locks it while it closes, so no other connection
    /// may be the last one.
    _keep_open: SqliteConnection,
}

pub(crate) async fn start() -> SqliteHarness {
    let scratch = TempDirectory::new();
    drop(scratch::outbox(&scratch.file(), 1).await);
    scratch::run(&scratch.file(), "CREATE TABLE ledger (no INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT NOT NULL)")
        .await;
    SqliteHarness { _keep_open: scratch::connect(&scratch.file()).await, directory: scratch }
}

impl SqliteHarness {
    /// Moves stored times back in one transaction. Returns an error if another connection writes for longer than
    /// `wait`.
    async fn shift_times_back(
        &self,
        columns: &[(&str, &str)],
        time: Duration,
        wait: Duration,
    ) -> Result<(), sqlx::Error> {
        let earlier =
            |(table, column): &(&str, &str)| format!("UPDATE {table} SET {column} = {column} - {};", time.as_millis());
        let each: String = columns.iter().map(earlier).collect();
        let mut connection = connect_options(self.directory.file()).busy_timeout(wait).connect().await?;
        let sql = AssertSqlSafe(format!("BEGIN IMMEDIATE; {each} COMMIT"));
        sqlx::raw_sql(sql).execute(&mut connection).await.map(|_| ())
    }

    async fn rows(&self, sql: &'static str) -> Vec<SqliteRow> {
        sqlx::query(sql).fetch_all(&mut scratch::connect(&self.directory.file()).await).await.expect("a table")
    }
}

#[async_trait]
impl Harness for SqliteHarness {
    type Inbox = Inbox;
    type Operator = Operator;

    async fn inbox_with_retention(&self, consumer: &str, keeping: InboxRetention) -> Inbox {
        let config = Config { lock_timeout: WAIT, ..Config::new(self.directory.file()) };
        Inbox::open(&config, consumer, keeping).await.expect("a migrated file")
    }

    async fn operator(&self) -> Operator {
        let config = OperatorConfig { busy_timeout: WAIT, ..OperatorConfig::new(self.directory.file()) };
        Operator::open(config).await.expect("a migrated file")
    }

    async fn effect(&self, transaction: &mut HandlerTransaction<Self>, line: &str) {
        let effect = sqlx::query("INSERT INTO ledger (line) VALUES (?1)").bind(line);
        effect.execute(&mut **transaction).await.expect("a table of the test");
    }

    async fn effects(&self) -> Vec<String> {
        self.rows("SELECT line FROM ledger ORDER BY no").await.iter().map(|row| row.get(0)).collect()
    }

    async fn emitted(&self) -> Vec<MessageId> {
        let rows = self.rows("SELECT id FROM relevo_message ORDER BY seq").await;
        rows.iter().map(|row| MessageId::from_uuid(row.get::<Uuid, _>(0))).collect()
    }

    /// Moves stored times back, also those of dead letters, because cases distinguish dead letters by their times. While
    /// another connection writes, this is not possible: it then waits for the end of that write, at most for `time`.
    async fn advance_time(&self, time: Duration) {
        let columns = [
            ("relevo_inbox", "claim_expires_at_ms"),
            ("relevo_inbox_retry_queue", "next_at_ms"),
            ("relevo_inbox_retry_queue", "claim_expires_at_ms"),
            ("relevo_inbox_retry_message", "not_before_ms"),
            ("relevo_inbox_member", "expires_at_ms"),
            ("relevo_inbox_dead_letter", "arrived_at_ms"),
            ("relevo_inbox_dead_letter", "dead_at_ms"),
        ];
        let end = Instant::now() + time;
        if self.shift_times_back(&columns, time, time).await.is_err() {
            tokio::time::sleep_until(end).await;
        }
    }

    async fn age_records(&self, time: Duration) {
        let columns = [
            ("relevo_inbox", "entered_at_ms"),
            ("relevo_inbox_dead_letter", "dead_at_ms"),
            ("relevo_inbox_dead_letter", "marked_at_ms"),
            ("relevo_inbox_member", "expires_at_ms"),
            ("relevo_inbox_member", "beat_at_ms"),
        ];
        self.shift_times_back(&columns, time, LONG_WAIT).await.expect("a free file");
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { single_writer: true }
    }
}
