//! The harness of the store suite for PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use relevo_conformance::outbox::harness::{Capabilities, Harness, MAIN, RETENTION, SHARDS, WriteTransaction};
use relevo_core::MessageId;
use relevo_store_postgres::{Config, Draft, EmitError, OnDuplicate, Operator, OperatorConfig, Schema, Store, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::pgbouncer::PgBouncer;
use relevo_testkit::postgres::{Database, Private, Server};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};
use uuid::Uuid;

pub(crate) struct PostgresHarness {
    database: Database,
    server: Option<Private>,
    pooler: Option<PgBouncer>,
}

pub(crate) async fn shared_13() -> PostgresHarness {
    on_shared_server(PgVersion::V13).await
}

pub(crate) async fn shared_15() -> PostgresHarness {
    on_shared_server(PgVersion::V15).await
}

/// With a publication `FOR ALL TABLES`, as change data capture creates it.
pub(crate) async fn published_18() -> PostgresHarness {
    let harness = on_shared_server(PgVersion::V18).await;
    harness.run("CREATE PUBLICATION everything FOR ALL TABLES").await;
    harness
}

pub(crate) async fn private_13() -> PostgresHarness {
    on_private_server(PgVersion::V13).await
}

pub(crate) async fn private_15() -> PostgresHarness {
    on_private_server(PgVersion::V15).await
}

pub(crate) async fn private_18() -> PostgresHarness {
    on_private_server(PgVersion::V18).await
}

pub(crate) async fn pooled() -> PostgresHarness {
    let server = Server::shared(PgVersion::V15);
    let pooler = PgBouncer::in_front_of(server.url()).await;
    PostgresHarness::prepared(server.database().await, None, Some(pooler)).await
}

async fn on_shared_server(version: PgVersion) -> PostgresHarness {
    PostgresHarness::prepared(Server::shared(version).database().await, None, None).await
}

async fn on_private_server(version: PgVersion) -> PostgresHarness {
    let server = Private::start(version).await;
    PostgresHarness::prepared(server.database().await, Some(server), None).await
}

impl PostgresHarness {
    async fn prepared(database: Database, server: Option<Private>, pooler: Option<PgBouncer>) -> Self {
        let mut connection = database.connect().await;
        migrate::migrate(&mut connection, &Schema::default()).await.expect("an empty database");
        let harness = Self { database, server, pooler };
        harness.run(&format!("UPDATE relevo.settings SET retention = '{} seconds'", RETENTION.as_secs())).await;
        harness.run(&format!("SELECT relevo.add_destination('{MAIN}', {SHARDS}, 'oldest')")).await;
        harness
    }

    async fn run(&self, sql: &str) {
        let mut connection = self.database.connect().await;
        execute(&mut connection, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn options(&self) -> PgConnectOptions {
        self.pooler.as_ref().map_or_else(|| self.database.options(), |pooler| pooler.options_for(self.database.name()))
    }
}

async fn execute(connection: &mut PgConnection, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.map(|_| ())
}

#[async_trait]
impl Harness for PostgresHarness {
    type Store = Store;
    type Operator = Operator;
    type Writer = WriteSession;

    async fn store_for(&self, name: &str) -> Store {
        Store::open(Config::new(self.options(), name)).await.expect("a migrated database")
    }

    async fn operator(&self) -> Operator {
        Operator::open(OperatorConfig::new(self.options())).await.expect("a migrated database")
    }

    async fn begin(&self) -> WriteSession {
        let mut connection = self.database.options().connect().await.expect("a server");
        execute(&mut connection, "BEGIN").await.expect("a new transaction");
        WriteSession(connection)
    }

    async fn crash(&mut self) {
        let server = self.server.as_ref().expect("the cases that crash have a server of their own");
        server.kill9().await;
        server.start_again().await;
    }

    /// Moves stored times back, so that no test has to wait.
    async fn advance_time(&self, time: Duration) {
        let time = format!("interval '{} milliseconds'", time.as_millis());
        for (table, column) in [
            ("lease", "expires_at"),
            ("relay", "expires_at"),
            ("parked_key", "next_at"),
            ("address_hold", "next_at"),
            ("scheduled", "due_at"),
        ] {
            self.run(&format!("UPDATE relevo.{table} SET {column} = {column} - {time}")).await;
        }
    }

    async fn age_records(&self, time: Duration) {
        let time = format!("interval '{} milliseconds'", time.as_millis());
        for (table, column) in [("message", "created_at"), ("progress", "settled_at"), ("tick", "created_at")] {
            self.run(&format!("UPDATE relevo.{table} SET {column} = {column} - {time}")).await;
        }
    }

    async fn next_partition(&self) {
        self.run("SELECT relevo.maintain()").await;
        self.run(
            "SELECT setval('relevo.message_seq', (SELECT end_seq FROM relevo.message_partition, relevo.message_seq \
             WHERE last_value >= first_seq AND last_value < end_seq))",
        )
        .await;
        self.run("SELECT relevo.maintain()").await;
    }

    async fn stored_messages(&self) -> usize {
        let mut connection = self.database.connect().await;
        let row = sqlx::raw_sql("SELECT count(*) FROM relevo.message").fetch_one(&mut connection).await;
        let count: i64 = row.and_then(|row| row.try_get(0)).expect("a count");
        usize::try_from(count).expect("a count")
    }

    fn capabilities(&self) -> Capabilities {
        // Progress alone commits asynchronously. A shared server also runs transactions of other tests.
        Capabilities { exclusive_server: false, durable_progress: false, ..Capabilities::default() }
    }
}

/// An application's transaction on its own connection.
pub(crate) struct WriteSession(PgConnection);

impl WriteSession {
    async fn run(&mut self, sql: &str) {
        execute(&mut self.0, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
}

#[async_trait]
impl WriteTransaction for WriteSession {
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError> {
        let headers = (!draft.headers.is_empty()).then(|| serde_json::to_string(&draft.headers).expect("strings"));
        let on_duplicate = match draft.on_duplicate {
            OnDuplicate::Error => "error",
            OnDuplicate::Ignore => "ignore",
        };
        let row = sqlx::query(
            "SELECT relevo.emit_bytes($1, $2, $3, $4, $5, headers => $6::text::jsonb, id => $7, \
             deliver_at => to_timestamp($8), on_duplicate => $9)",
        )
        .bind(&*draft.topic)
        .bind(&*draft.key)
        .bind(&*draft.kind)
        .bind(&draft.payload[..])
        .bind(&*draft.content_type)
        .bind(headers)
        .bind(draft.id.map(|id| *id.as_uuid()))
        .bind(draft.deliver_at.map(|at| at.as_duration().as_secs_f64()))
        .bind(on_duplicate)
        .fetch_one(&mut self.0)
        .await;
        match row {
            Ok(row) => Ok(MessageId::from_uuid(row.try_get::<Uuid, _>(0).expect("an id"))),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                Err(EmitError::DuplicateId(draft.id.expect("only a chosen id can repeat")))
            }
            Err(error) => panic!("the emit failed: {error}"),
        }
    }

    async fn cancel(&mut self, id: MessageId) -> bool {
        let row = sqlx::query("SELECT relevo.cancel($1)").bind(id.as_uuid()).fetch_one(&mut self.0).await;
        row.and_then(|row| row.try_get(0)).expect("an answer")
    }

    async fn savepoint(&mut self, name: &str) {
        self.run(&format!("SAVEPOINT {name}")).await;
    }

    async fn rollback_to(&mut self, name: &str) {
        self.run(&format!("ROLLBACK TO SAVEPOINT {name}")).await;
    }

    async fn commit(mut self) {
        self.run("COMMIT").await;
    }

    async fn rollback(mut self) {
        self.run("ROLLBACK").await;
    }
}
