//! Runs the replay source suite on each version.

use std::sync::Arc;

use async_trait::async_trait;
use relevo_conformance::replay::Harness;
use relevo_core::replay_source::{OutboxRouting, ReplaySource};
use relevo_core::{Delivery, Draft, MessageId};
use relevo_store_postgres::{Operator, OperatorConfig, OutboxReplaySource, Schema, emit, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Server};
use sqlx::Connection as _;

struct PostgresHarness(Database);

async fn on_13() -> PostgresHarness {
    start(PgVersion::V13).await
}

async fn on_15() -> PostgresHarness {
    start(PgVersion::V15).await
}

async fn on_18() -> PostgresHarness {
    start(PgVersion::V18).await
}

async fn start(version: PgVersion) -> PostgresHarness {
    let database = Server::shared(version).database().await;
    migrate::migrate(&mut database.connect().await, &Schema::default()).await.expect("an empty database");
    PostgresHarness(database)
}

#[async_trait]
impl Harness for PostgresHarness {
    async fn source(&self) -> Box<dyn ReplaySource> {
        let store = Operator::open(OperatorConfig::new(self.0.options())).await.expect("a migrated database");
        Box::new(OutboxReplaySource::new(Arc::new(store), OutboxRouting::default()))
    }

    async fn publish(&mut self, drafts: Vec<Draft>) -> Vec<MessageId> {
        let mut connection = self.0.connect().await;
        let mut transaction = connection.begin().await.expect("a server");
        let mut ids = Vec::new();
        for draft in drafts {
            ids.push(emit(&mut transaction, draft).await.expect("a message of the suite"));
        }
        transaction.commit().await.expect("an open transaction");
        ids
    }

    async fn received(&self) -> Option<Vec<Delivery>> {
        None
    }
}

mod postgres_13 {
    relevo_conformance::replay_suite!(super::on_13);
}

mod postgres_15 {
    relevo_conformance::replay_suite!(super::on_15);
}

mod postgres_18 {
    relevo_conformance::replay_suite!(super::on_18);
}
