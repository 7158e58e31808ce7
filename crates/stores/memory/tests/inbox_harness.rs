//! The memory inbox's harness for the conformance suite.

use std::time::Duration;

use async_trait::async_trait;
use relevo_conformance::inbox::Harness;
use relevo_core::MessageId;
use relevo_core::inbox::InboxRetention;
use relevo_store_memory::{Config, Database, Inbox, Operator, Transaction};

pub(crate) struct Memory(Database);

/// Starts the store on virtual time. The clock advances only when a test case advances it or waits.
#[expect(clippy::unused_async, reason = "the suite awaits it: other stores start servers")]
pub(crate) async fn start() -> Memory {
    tokio::time::pause();
    Memory(Database::new(Config::default()))
}

#[async_trait]
impl Harness for Memory {
    type Inbox = Inbox;
    type Operator = Operator;

    async fn inbox_with_retention(&self, consumer: &str, retention: InboxRetention) -> Inbox {
        self.0.inbox(consumer, retention)
    }

    async fn operator(&self) -> Operator {
        self.0.operator()
    }

    async fn effect(&self, transaction: &mut Transaction, line: &str) {
        transaction.record_effect(line).expect("an open transaction");
    }

    async fn effects(&self) -> Vec<String> {
        self.0.effects()
    }

    async fn emitted(&self) -> Vec<MessageId> {
        self.0.committed().iter().map(|entry| entry.message.id).collect()
    }

    async fn advance_time(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    async fn age_records(&self, time: Duration) {
        self.0.age(time);
    }
}
