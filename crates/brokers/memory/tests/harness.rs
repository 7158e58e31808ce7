//! The memory broker's harness for the conformance suite.

use async_trait::async_trait;
use relevo_broker_memory::{Config, MemoryBroker, ReceivedMessage};
use relevo_conformance::broker::harness::{BrokerHarness, Guarantees, MESSAGE_BYTES_MAX};
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

fn start(ordered_in_flight: bool) -> Memory {
    let config = Config { ordered_in_flight, message_size_max: MESSAGE_BYTES_MAX, ..Config::default() };
    Memory(MemoryBroker::new(config.clone()), config)
}

#[async_trait]
impl BrokerHarness for Memory {
    type Broker = MemoryBroker;

    async fn broker(&self) -> MemoryBroker {
        self.0.clone()
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        let messages = self.0.received_messages().into_iter().filter(|received| &*received.address == address);
        messages.map(raw_message).collect()
    }

    /// The memory is lost with the process.
    async fn kill_and_restart(&mut self) {
        self.0 = MemoryBroker::new(self.1.clone());
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { survives_crash: false, deduplicates: false }
    }
}

/// The bytes that a consumer would receive.
fn raw_message(received: ReceivedMessage) -> RawMessage {
    let ReceivedMessage { address, seq, epoch, message, .. } = received;
    let payload = message.payload.clone();
    RawMessage::new(
        wire::headers(&Publication { message, address, headers: std::sync::Arc::default(), seq, epoch }, "/memory"),
        payload,
    )
}
