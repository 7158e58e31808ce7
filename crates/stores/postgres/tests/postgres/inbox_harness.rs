//! The harness of the inbox suite for PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use relevo_conformance::inbox::{HandlerTransaction, Harness};
use relevo_core::MessageId;
use relevo_core::inbox::InboxRetention;
use relevo_store_postgres::inbox::{Config, Inbox};
use relevo_store_postgres::{Operator, OperatorConfig};
use relevo_testkit::PgVersion;
use relevo_testkit::pgbouncer::PgBouncer;
use relevo_testkit::postgres::{Database, Server};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Row as _};
use tokio::time::Instant;
use uuid::Uuid;

use crate::migrated_database;
use crate::sql_support::code;

/// Longer than any test holds a row lock that it releases.
const LONG_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct PostgresHarness {
    database: Database,
    pooler: Option<PgBouncer>,
}

pub(crate) async fn on_13() -> PostgresHarness {
    prepared(PgVersion::V13, None).await
}

pub(crate) async fn on_15() -> PostgresHarness {
    prepared(PgVersion::V15, None).await
}

/// With a publication `FOR ALL TABLES`.
pub(crate) async fn published_18() -> PostgresHarness {
    let harness = prepared(PgVersion::V18, None).await;
    harness.run("CREATE PUBLICATION everything FOR ALL TABLES").await;
    harness
}

pub(crate) async fn pooled() -> PostgresHarness {
    let pooler = PgBouncer::in_front_of(Server::shared(PgVersion::V15).url()).await;
    prepared(PgVersion::V15, Some(pooler)).await
}

/// With REPEATABLE READ as the default isolation level.
pub(crate) async fn repeatable_read() -> PostgresHarness {
    let harness = on_15().await;
    let name = harness.database.name();
    harness.run(&format!("ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'")).await;
    harness
}

async fn prepared(version: PgVersion, pooler: Option<PgBouncer>) -> PostgresHarness {
    let harness = PostgresHarness { database: migrated_database::database(version).await, pooler };
    harness.run("CREATE TABLE ledger (no bigint GENERATED ALWAYS AS IDENTITY, line text NOT NULL)").await;
    harness
}

impl PostgresHarness {
    fn options(&self) -> PgConnectOptions {
        self.pooler.as_ref().map_or_else(|| self.database.options(), |pooler| pooler.options_for(self.database.name()))
    }

    async fn rows(&self, sql: &str) -> Vec<PgRow> {
        execute(&mut self.database.connect().await, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    async fn run(&self, sql: &str) {
        self.rows(sql).await;
    }
}

async fn execute(connection: &mut PgConnection, sql: &str) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await
}

/// Builds statements that move stored times back. They fail if another session holds a row for longer than `wait`.
fn shift_times_back(columns: &[(&str, &str)], time: Duration, wait: Duration) -> String {
    let wait = wait.as_millis();
    let time = format!("interval '1 millisecond' * {}", time.as_millis());
    let each = columns.iter().map(|(table, column)| format!("UPDATE relevo.{table} SET {column} = {column} - {time};"));
    let each: String = each.collect();
    format!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {wait}; {each}")
}

#[async_trait]
impl Harness for PostgresHarness {
    type Inbox = Inbox;
    type Operator = Operator;

    async fn inbox_with_retention(&self, consumer: &str, keeping: InboxRetention) -> Inbox {
        Inbox::open(&Config::new(self.options()), consumer, keeping).await.expect("a migrated database")
    }

    async fn operator(&self) -> Operator {
        Operator::open(OperatorConfig::new(self.options())).await.expect("a migrated database")
    }

    async fn effect(&self, transaction: &mut HandlerTransaction<Self>, line: &str) {
        // Not prepared, as a handler behind a pooler must do it.
        let effect = sqlx::query("INSERT INTO ledger (line) VALUES ($1)").bind(line).persistent(false);
        effect.execute(&mut **transaction).await.expect("a table of the test");
    }

    async fn effects(&self) -> Vec<String> {
        let rows = self.rows("SELECT line FROM ledger ORDER BY no").await;
        rows.iter().map(|row| row.try_get(0).expect("a line")).collect()
    }

    async fn emitted(&self) -> Vec<MessageId> {
        let rows = self.rows("SELECT id FROM relevo.message ORDER BY seq").await;
        rows.iter().map(|row| MessageId::from_uuid(row.try_get::<Uuid, _>(0).expect("an id"))).collect()
    }

    /// Moves stored times back. If a transaction of the test holds a row, it really waits: until the row is free, or
    /// for the whole time.
    async fn advance_time(&self, time: Duration) {
        let columns = [
            ("inbox", "claim_expires_at"),
            ("inbox_retry_queue", "next_at"),
            ("inbox_retry_queue", "claim_expires_at"),
            ("inbox_retry_message", "not_before"),
            ("inbox_member", "expires_at"),
        ];
        let (end, earlier) = (Instant::now() + time, shift_times_back(&columns, time, time));
        match execute(&mut self.database.connect().await, &earlier).await {
            Ok(_) => {}
            Err(error) if code(&error) == "55P03" => tokio::time::sleep_until(end).await,
            Err(error) => panic!("{error}"),
        }
    }

    async fn age_records(&self, time: Duration) {
        let columns = [
            ("inbox", "entered_at"),
            ("inbox_dead_letter", "dead_at"),
            ("inbox_dead_letter", "marked_at"),
            ("inbox_member", "expires_at"),
            ("inbox_member", "beat_at"),
        ];
        self.run(&shift_times_back(&columns, time, LONG_TIMEOUT)).await;
    }
}
