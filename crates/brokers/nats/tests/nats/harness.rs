//! NATS as the suite of publishing sees it.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use relevo_broker_nats::{Atomic, Config, NatsBroker, decode_headers};
use relevo_conformance::broker::harness::{BrokerHarness, Promises};
use relevo_core::Raw;
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

/// A server of its own, with one stream for everything.
pub(crate) struct Nats {
    pub(crate) server: Private,
    atomic: Atomic,
}

pub(crate) const STREAM: &str = "everything";

pub(crate) async fn newest() -> Nats {
    start(NatsVersion::V2_15, Atomic::Off).await
}

pub(crate) async fn oldest() -> Nats {
    start(NatsVersion::V2_9, Atomic::Auto).await
}

async fn start(version: NatsVersion, atomic: Atomic) -> Nats {
    let server = Private::start(version, Settings::new()).await;
    make_stream(&server, everything()).await;
    Nats { server, atomic }
}

/// A stream for the addresses that the suite uses.
pub(crate) fn everything() -> stream::Config {
    stream::Config {
        name: STREAM.to_owned(),
        // Not simply `>`: the server refuses acknowledgements to a stream that takes its own subjects too.
        subjects: ["orders", "orders.>", "archive", "archive.>"].map(str::to_owned).to_vec(),
        duplicate_window: Duration::from_mins(2),
        allow_atomic_publish: true,
        ..stream::Config::default()
    }
}

/// The library alone, for what a test prepares and looks at.
pub(crate) async fn client(server: &Private) -> Client {
    async_nats::connect(server.url()).await.expect("the server is there")
}

pub(crate) async fn make_stream(server: &Private, config: stream::Config) {
    jetstream::new(client(server).await).create_stream(config).await.expect("a stream");
}

/// Everything that a stream holds, with the subject of each.
pub(crate) async fn stored(server: &Private, name: &str) -> Vec<(String, Raw)> {
    let jetstream = jetstream::new(client(server).await);
    let stream = jetstream.get_stream(name).await.expect("the stream is there");
    let waiting = stream.cached_info().state.messages;
    let config = jetstream::consumer::pull::Config {
        ack_policy: jetstream::consumer::AckPolicy::None,
        ..jetstream::consumer::pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await.expect("a consumer");
    let mut stored = Vec::new();
    while (stored.len() as u64) < waiting {
        let mut some =
            consumer.batch().max_messages(1_000).expires(Duration::from_secs(5)).messages().await.expect("some");
        while let Some(message) = some.next().await {
            let message = message.expect("a message");
            let headers = message.headers.as_ref().map(decode_headers).unwrap_or_default();
            stored.push((message.subject.to_string(), Raw::new(headers, message.payload.clone())));
            if stored.len() as u64 == waiting {
                break;
            }
        }
    }
    stored
}

#[async_trait]
impl BrokerHarness for Nats {
    type Broker = NatsBroker;

    async fn broker(&self) -> NatsBroker {
        let stream = (self.atomic == Atomic::Always).then(|| STREAM.to_owned());
        let config = Config { stream, atomic: self.atomic, ..Config::new(self.server.url()) };
        NatsBroker::open(config).await.expect("a broker")
    }

    async fn kept(&self, address: &str) -> Vec<Raw> {
        let stored = stored(&self.server, STREAM).await;
        stored.into_iter().filter(|(subject, _)| subject == address).map(|(_, raw)| raw).collect()
    }

    async fn crash(&mut self) {
        self.server.kill9().await;
        self.server.start_again().await;
    }

    fn promises(&self) -> Promises {
        Promises { survives_crash: true, recognises_repeats: true }
    }
}
