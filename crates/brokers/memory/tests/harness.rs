//! The memory broker's harness for the conformance suite.

use async_trait::async_trait;
use relevo_broker_memory::{MemoryBroker, Receipt, Settings};
use relevo_conformance::broker::harness::{BrokerHarness, Promises};
use relevo_core::{Publication, Raw, wire};

pub(crate) struct Memory(MemoryBroker, Settings);

#[expect(clippy::unused_async, reason = "the suite awaits it: other brokers start servers")]
pub(crate) async fn plain() -> Memory {
    start(false)
}

#[expect(clippy::unused_async, reason = "the suite awaits it: other brokers start servers")]
pub(crate) async fn fenced() -> Memory {
    start(true)
}

fn start(fences_order: bool) -> Memory {
    let settings = Settings { fences_order, message_bytes_max: 1 << 20, ..Settings::default() };
    Memory(MemoryBroker::new(settings.clone()), settings)
}

#[async_trait]
impl BrokerHarness for Memory {
    type Broker = MemoryBroker;

    async fn broker(&self) -> MemoryBroker {
        self.0.clone()
    }

    async fn kept(&self, address: &str) -> Vec<Raw> {
        let receipts = self.0.receipts().into_iter().filter(|receipt| &*receipt.address == address);
        receipts.map(sent).collect()
    }

    /// The memory is lost with the process.
    async fn crash(&mut self) {
        self.0 = MemoryBroker::new(self.1.clone());
    }

    fn promises(&self) -> Promises {
        Promises { survives_crash: false, recognises_repeats: false }
    }
}

/// What a consumer would receive.
fn sent(receipt: Receipt) -> Raw {
    let Receipt { address, seq, epoch, message, .. } = receipt;
    let payload = message.payload.clone();
    Raw::new(
        wire::headers(&Publication { message, address, headers: std::sync::Arc::default(), seq, epoch }, "/memory"),
        payload,
    )
}
