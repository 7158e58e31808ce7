//! The conformance suite for replay sources.

use async_trait::async_trait;
use relevo_conformance::replay::Harness;
use relevo_core::replay_source::{OutboxRouting, ReplaySource};
use relevo_core::{Delivery, Draft, MessageId};
use relevo_store_memory as memory;

struct Memory(memory::Database);

#[expect(clippy::unused_async, reason = "the suite awaits it: other stores start servers")]
async fn start() -> Memory {
    Memory(memory::Database::new(memory::Config::default()))
}

#[async_trait]
impl Harness for Memory {
    async fn source(&self) -> Box<dyn ReplaySource> {
        Box::new(self.0.log(OutboxRouting::default()))
    }

    async fn publish(&mut self, drafts: Vec<Draft>) -> Vec<MessageId> {
        let mut transaction = self.0.begin();
        let ids = drafts.into_iter().map(|draft| transaction.emit(draft).expect("a message of the suite")).collect();
        transaction.commit().expect("an open transaction");
        ids
    }

    async fn received(&self) -> Option<Vec<Delivery>> {
        None
    }
}

relevo_conformance::replay_suite!(start);
