//! The memory broker's harness for the conformance suite.

use async_trait::async_trait;
use relevo_broker_memory::{Config, MemoryBroker, ReceivedMessage};
use relevo_conformance::broker::harness::{BrokerHarness, Guarantees};
use relevo_core::{Publication, RawMessage, wire};

pub(crate) struct Memory(MemoryBroker, Config);

#[expect(clippy::unused_async, reason = "the suite awaits it: other brokers start servers")]
pub(crate) async fn plain() -> Memory {
    start(false)
}

#[expect(clippy::unused_async, reason = "the suite awaits it: other brokers start servers")]
pub(crate) async fn fenced() -> Memory {
    start(true)
}

fn start(fences_order: bool) -> Memory {
    let settings = Config { ordered_in_flight: fences_order, message_bytes_max: 1 << 20, ..Config::default() };
    Memory(MemoryBroker::new(settings.clone()), settings)
}

#[async_trait]
impl BrokerHarness for Memory {
    type Broker = MemoryBroker;

    async fn broker(&self) -> MemoryBroker {
        self.0.clone()
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        let receipts = self.0.received_messages().into_iter().filter(|receipt| &*receipt.address == address);
        receipts.map(raw_message).collect()
    }

    /// The memory is lost with the process.
    async fn kill_and_restart(&mut self) {
        self.0 = MemoryBroker::new(self.1.clone());
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { survives_crash: false, deduplicates: false }
    }
}

/// What a consumer would receive.
fn raw_message(receipt: ReceivedMessage) -> RawMessage {
    let ReceivedMessage { address, seq, epoch, message, .. } = receipt;
    let payload = message.payload.clone();
    RawMessage::new(
        wire::headers(&Publication { message, address, headers: std::sync::Arc::default(), seq, epoch }, "/memory"),
        payload,
    )
}
