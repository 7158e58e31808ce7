//! Spans of sampled messages.

use std::sync::Arc;

use relevo_core::trace::Operation;
use relevo_core::{Message, Outcome};

use crate::buffer::{BufferId, BufferedMessage};
use crate::relay::Relay;

impl Relay {
    /// Starts spans for messages that are about to be sent.
    pub(crate) fn start_spans(&mut self, batch: &[BufferId]) {
        let tracer = &self.config.tracer;
        if !tracer.is_enabled() {
            return;
        }
        for &id in batch {
            let message = &mut self.buffer[id];
            message.span = tracer.start(Operation::Send, &message.entry.message, &message.address);
            if let Some(span) = &mut message.span {
                // Only the route knows whether its address contains the key. Another part of the address may be equal
                // to the key.
                let without_key = message.route.address_without_key(&message.entry.message);
                span.destination(without_key.unwrap_or_else(|| Arc::clone(&message.address)));
                span.attempt(message.attempts + 1);
            }
        }
    }
}

impl BufferedMessage {
    /// The message as it is sent.
    pub(crate) fn outgoing(&self) -> Arc<Message> {
        match &self.span {
            Some(span) => span.inject(&self.entry.message),
            None => Arc::clone(&self.entry.message),
        }
    }

    /// Ends the span with the broker's outcome. For a confirmed message, starts the span of its settlement.
    pub(crate) fn end_span(&mut self, outcome: &Outcome) {
        let Some(span) = self.span.take() else { return };
        match outcome {
            Ok(()) => {
                self.span = Some(span.follow_up(Operation::Settle));
                span.end();
            }
            Err(failure) => span.fail(failure.class().as_str(), failure.error_chain()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use parking_lot::Mutex;
    use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
    use relevo_core::trace::{CommonAttributes, SpanData, SpanId, SpanRecorder, TraceId};
    use relevo_core::{Route, Routes, Tracer};
    use relevo_store_memory::{self as memory, Database, Draft, MAIN};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::Config;

    /// A recorder that samples everything and keeps the recorded destinations.
    #[derive(Default)]
    struct DestinationRecorder(Mutex<Vec<(Operation, String)>>);

    impl SpanRecorder for DestinationRecorder {
        fn is_sampled(&self, _trace: TraceId) -> bool {
            true
        }

        fn new_span_id(&self) -> SpanId {
            SpanId::from_bytes([1; 8]).unwrap()
        }

        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH
        }

        fn record(&self, span: SpanData) {
            self.0.lock().push((span.operation, span.destination.to_string()));
        }
    }

    /// The spans of a message with topic `sales.eu` and key `eu` that is published to this address.
    async fn recorded_spans(address: &str) -> Vec<(Operation, String)> {
        let outbox = Database::new(memory::Config::default());
        let mut tx = outbox.begin();
        tx.emit(Draft::json("sales.eu", "eu", "T", "{}")).expect("a valid message");
        tx.commit().expect("an open transaction");
        let recorder = Arc::new(DestinationRecorder::default());
        let tracer = Tracer::new(Arc::clone(&recorder) as Arc<dyn SpanRecorder>, CommonAttributes::default());
        let routes = Routes::new(vec![Route { address: address.to_owned(), ..Route::catch_all() }]);
        let config = Config { routes, tracer, ..Config::default() };
        let broker = Arc::new(MemoryBroker::new(BrokerConfig::default()));
        let relay = Relay::with_seed(Arc::new(outbox.store(MAIN)), broker, config, 7);
        let stop = CancellationToken::new();
        let until_recorded = async {
            while recorder.0.lock().len() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            stop.cancel();
        };
        let (result, ()) = tokio::join!(relay.expect("a valid configuration").run(stop.clone()), until_recorded);
        result.expect("a clean shutdown");
        recorder.0.lock().clone()
    }

    #[tokio::test(start_paused = true)]
    async fn a_recorded_address_hides_the_key_only_where_its_route_puts_it() {
        for (address, recorded) in
            [("orders.eu", "orders.eu"), ("{topic}", "sales.eu"), ("{topic}.{key}", "sales.eu.{key}"), ("eu", "eu")]
        {
            let expected = [Operation::Send, Operation::Settle].map(|operation| (operation, recorded.to_owned()));
            assert_eq!(recorded_spans(address).await, expected, "{address}");
        }
    }
}
