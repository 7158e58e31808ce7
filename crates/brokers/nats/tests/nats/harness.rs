//! The NATS harness for the publishing suite.

use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use relevo_broker_nats::{Atomic, Config, NatsBroker, decode_headers};
use relevo_conformance::broker::harness::{BrokerHarness, Promises, soon};
use relevo_core::broker::Reports;
use relevo_core::{Broker as _, Class, Publication, Raw};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

/// A private server with one stream for all addresses.
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

pub(crate) async fn atomic() -> Nats {
    start(NatsVersion::V2_15, Atomic::Always).await
}

async fn start(version: NatsVersion, atomic: Atomic) -> Nats {
    let server = Private::start(version, Settings::new()).await;
    make_stream(&server, everything()).await;
    Nats { server, atomic }
}

/// A stream for the addresses of the suite.
pub(crate) fn everything() -> stream::Config {
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
    async_nats::connect(server.url()).await.expect("the server is there")
}

pub(crate) async fn make_stream(server: &Private, config: stream::Config) {
    jetstream::new(client(server).await).create_stream(config).await.expect("a stream");
}

/// Creates the default stream on a server that requires a login.
pub(crate) async fn make_stream_as(server: &Private, user: &str, password: &str) {
    let options = async_nats::ConnectOptions::with_user_and_password(user.to_owned(), password.to_owned());
    let client = options.connect(server.url()).await.expect("the server lets us in");
    jetstream::new(client).create_stream(everything()).await.expect("a stream");
}

/// All messages of a stream, each with its subject.
pub(crate) async fn stored(server: &Private, name: &str) -> Vec<(String, Raw)> {
    // Boxed, because the library's futures are large and every test would hold this one.
    soon(Box::pin(read(server, name))).await
}

async fn read(server: &Private, name: &str) -> Vec<(String, Raw)> {
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
            // In a cluster, a consumer exists before it has a leader; the read is repeated then.
            let Ok(message) = message else { break };
            let headers = message.headers.as_ref().map(decode_headers).unwrap_or_default();
            stored.push((message.subject.to_string(), Raw::new(headers, message.payload.clone())));
            if stored.len() as u64 == waiting {
                break;
            }
        }
    }
    stored
}

/// A private server with the default stream, and a broker for it.
pub(crate) async fn server(version: NatsVersion) -> (Private, NatsBroker) {
    let server = Private::start(version, Settings::new()).await;
    make_stream(&server, everything()).await;
    let broker = open(Config::new(server.url())).await;
    (server, broker)
}

pub(crate) async fn open(config: Config) -> NatsBroker {
    NatsBroker::open(config).await.expect("a configuration that can work")
}

/// Publishes a batch. Returns the failure of each unconfirmed message.
pub(crate) async fn told(broker: &NatsBroker, batch: &[Publication]) -> Vec<Option<(Class, String)>> {
    let reports = Reports::default();
    soon(broker.publish(batch, &reports.confirms(1))).await;
    let mut told: Vec<_> = reports.take().into_iter().map(|(_, index, outcome)| (index, outcome)).collect();
    told.sort_by_key(|(index, _)| *index);
    assert!(told.iter().map(|(index, _)| *index).eq(0..batch.len()), "one outcome a message");
    told.into_iter().map(|(_, outcome)| outcome.err().map(|failure| (failure.class(), failure.describe()))).collect()
}

/// Publishes one message. Returns its failure, if any.
pub(crate) async fn told_of(broker: &NatsBroker, one: &Publication) -> Option<(Class, String)> {
    told(broker, std::slice::from_ref(one)).await.remove(0)
}

/// Publishes one message repeatedly until it has this outcome. Returns the error text.
pub(crate) async fn until(broker: &NatsBroker, one: &Publication, class: Option<Class>) -> String {
    let trying = async {
        loop {
            let told = told_of(broker, one).await;
            if told.as_ref().map(|(class, _)| *class) == class {
                return told.map(|(_, text)| text).unwrap_or_default();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(trying).await
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
