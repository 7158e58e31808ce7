//! The memory store's harness for the conformance suite.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use relevo_conformance::outbox::harness::{Harness, RETENTION, SHARDS, WriteTransaction};
use relevo_core::{Draft, EmitError, MessageId};
use relevo_store_memory as memory;

pub(crate) struct Memory(memory::Database);

/// Starts the store on virtual time. Only the test cases advance the clock.
#[expect(clippy::unused_async, reason = "the suite awaits it: other stores start servers")]
pub(crate) async fn start() -> Memory {
    tokio::time::pause();
    Memory(memory::Database::new(memory::Config { shards: SHARDS, retention: RETENTION, ..Default::default() }))
}

#[async_trait]
impl Harness for Memory {
    type Store = memory::Store;
    type Operator = memory::Operator;
    type Writer = Transaction;

    async fn store_for(&self, name: &str) -> memory::Store {
        self.0.store(name)
    }

    async fn operator(&self) -> memory::Operator {
        self.0.operator()
    }

    async fn begin(&self) -> Transaction {
        Transaction { inner: self.0.begin(), savepoints: BTreeMap::new() }
    }

    async fn crash(&mut self) {
        self.0.restart();
    }

    fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn advance_time(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    async fn age_records(&self, time: Duration) {
        self.0.age(time);
    }

    async fn next_partition(&self) {}

    async fn stored_messages(&self) -> usize {
        self.0.retained().len()
    }
}

pub(crate) struct Transaction {
    inner: memory::Transaction,
    savepoints: BTreeMap<String, memory::Savepoint>,
}

#[async_trait]
impl WriteTransaction for Transaction {
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError> {
        self.inner.emit(draft)
    }

    async fn cancel(&mut self, id: MessageId) -> bool {
        self.inner.cancel(id).expect("an open transaction")
    }

    async fn savepoint(&mut self, name: &str) {
        self.savepoints.insert(name.to_owned(), self.inner.savepoint());
    }

    async fn rollback_to(&mut self, name: &str) {
        self.inner.rollback_to(self.savepoints[name]);
    }

    async fn commit(self) {
        self.inner.commit().expect("an open transaction");
    }

    async fn rollback(self) {
        self.inner.rollback();
    }
}
