//! The NATS harness for the publishing suite.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use relevo_broker_nats::{AtomicBatches, Config, Publisher, decode_headers};
use relevo_conformance::broker::harness::{BrokerHarness, Guarantees, within_timeout};
use relevo_core::broker::OutcomeReceiver;
use relevo_core::{Broker as _, Class, Publication, RawMessage};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

/// A private server with one stream for all addresses.
pub(crate) struct Nats {
    pub(crate) server: Private,
    atomic: AtomicBatches,
}

pub(crate) const STREAM: &str = "everything";

pub(crate) async fn newest() -> Nats {
    start(NatsVersion::V2_15, AtomicBatches::Off).await
}

pub(crate) async fn oldest() -> Nats {
    start(NatsVersion::V2_9, AtomicBatches::Auto).await
}

pub(crate) async fn atomic() -> Nats {
    start(NatsVersion::V2_15, AtomicBatches::Always).await
}

async fn start(version: NatsVersion, atomic: AtomicBatches) -> Nats {
    let server = Private::start(version, Settings::new()).await;
    create_stream(&server, catch_all_stream()).await;
    Nats { server, atomic }
}

/// A stream for the addresses of the suite.
pub(crate) fn catch_all_stream() -> stream::Config {
    stream::Config {
        name: STREAM.to_owned(),
        // Not simply `>`: the server refuses acknowledgements for a stream that also stores the server's own subjects.
        subjects: ["orders", "orders.>", "archive", "archive.>"].map(str::to_owned).to_vec(),
        duplicate_window: Duration::from_mins(2),
        allow_atomic_publish: true,
        ..stream::Config::default()
    }
}

/// The plain client library, for setup and inspection.
pub(crate) async fn client(server: &Private) -> Client {
    async_nats::connect(server.url()).await.expect("the server is reachable")
}

pub(crate) async fn create_stream(server: &Private, config: stream::Config) {
    jetstream::new(client(server).await).create_stream(config).await.expect("a stream");
}

/// Creates the default stream on a server that requires a login.
pub(crate) async fn create_stream_as(server: &Private, user: &str, password: &str) {
    let options = async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
    let client = options.connect(server.url()).await.expect("the server lets us in");
    jetstream::new(client).create_stream(catch_all_stream()).await.expect("a stream");
}

/// All messages of a stream, each with its subject.
pub(crate) async fn stored(server: &Private, name: &str) -> Vec<(String, RawMessage)> {
    // Boxed, because the library's futures are large and every test would hold this one.
    within_timeout(Box::pin(read(server, name))).await
}

async fn read(server: &Private, name: &str) -> Vec<(String, RawMessage)> {
    let jetstream = jetstream::new(client(server).await);
    let stream = jetstream.get_stream(name).await.expect("the stream exists");
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
            // In a cluster, a consumer exists before it has a leader; the read is repeated then.
            let Ok(message) = message else { break };
            let headers = message.headers.as_ref().map(decode_headers).unwrap_or_default();
            stored.push((message.subject.to_string(), RawMessage::new(headers, message.payload.clone())));
            if stored.len() as u64 == waiting {
                break;
            }
        }
    }
    stored
}

/// A private server with the default stream, and a broker for it.
pub(crate) async fn server(version: NatsVersion) -> (Private, Publisher) {
    let server = Private::start(version, Settings::new()).await;
    create_stream(&server, catch_all_stream()).await;
    let broker = open(Config::new(server.url())).await;
    (server, broker)
}

pub(crate) async fn open(config: Config) -> Publisher {
    Publisher::open(config).await.expect("a configuration that can work")
}

/// Publishes a batch. Returns the failure of each unconfirmed message.
pub(crate) async fn outcomes_of(broker: &Publisher, batch: &[Publication]) -> Vec<Option<(Class, String)>> {
    let reports = OutcomeReceiver::default();
    within_timeout(broker.publish(batch, &reports.sender(1))).await;
    let mut outcomes: Vec<_> = reports.take().into_iter().map(|(_, index, outcome)| (index, outcome)).collect();
    outcomes.sort_by_key(|(index, _)| *index);
    assert!(outcomes.iter().map(|(index, _)| *index).eq(0..batch.len()), "one outcome per message");
    outcomes
        .into_iter()
        .map(|(_, outcome)| outcome.err().map(|failure| (failure.class(), failure.error_chain())))
        .collect()
}

/// Publishes one message. Returns its failure, if any.
pub(crate) async fn outcome_of(broker: &Publisher, one: &Publication) -> Option<(Class, String)> {
    outcomes_of(broker, std::slice::from_ref(one)).await.remove(0)
}

/// Publishes one message repeatedly until it has this outcome. Returns the error text.
pub(crate) async fn publish_until(broker: &Publisher, one: &Publication, class: Option<Class>) -> String {
    let trying = async {
        loop {
            let outcomes = outcome_of(broker, one).await;
            if outcomes.as_ref().map(|(class, _)| *class) == class {
                return outcomes.map(|(_, text)| text).unwrap_or_default();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within_timeout(trying).await
}

#[async_trait]
impl BrokerHarness for Nats {
    type Broker = Publisher;

    async fn broker(&self) -> Publisher {
        let stream = (self.atomic == AtomicBatches::Always).then(|| STREAM.to_owned());
        let config = Config { stream, atomic_batches: self.atomic, ..Config::new(self.server.url()) };
        Publisher::open(config).await.expect("a broker")
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        let stored = stored(&self.server, STREAM).await;
        stored.into_iter().filter(|(subject, _)| subject == address).map(|(_, raw)| raw).collect()
    }

    async fn kill_and_restart(&mut self) {
        self.server.kill9().await;
        self.server.start_again().await;
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { survives_crash: true, deduplicates: true }
    }
}
