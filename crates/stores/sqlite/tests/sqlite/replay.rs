//! Runs the replay source suite.

use std::sync::Arc;

use async_trait::async_trait;
use relevo_conformance::replay::Harness;
use relevo_core::replay_source::{OutboxRouting, ReplaySource};
use relevo_core::{Delivery, Draft, MessageId};
use relevo_store_sqlite::{OutboxReplaySource, begin, emit};

use crate::scratch::{self, TempDirectory};

struct SqliteHarness(TempDirectory);

async fn start() -> SqliteHarness {
    let scratch = TempDirectory::new();
    scratch::outbox(&scratch.file(), 1).await;
    SqliteHarness(scratch)
}

#[async_trait]
impl Harness for SqliteHarness {
    async fn source(&self) -> Box<dyn ReplaySource> {
        let operator = scratch::operator(&self.0.file()).await;
        Box::new(OutboxReplaySource::new(Arc::new(operator), OutboxRouting::default()))
    }

    async fn publish(&mut self, drafts: Vec<Draft>) -> Vec<MessageId> {
        let mut connection = scratch::connect(&self.0.file()).await;
        let mut transaction = begin(&mut connection).await.expect("no other writer");
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

relevo_conformance::replay_suite!(start);
