//! How fast the broker publishes, beside the client library alone, on servers of its own:
//! `cargo run --release -p relevo-broker-nats --example nats_speed`.
//!
//! It needs what the tests need: `eval "$(cargo xtask services up)"`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, stream};
use bytes::Bytes;
use futures_util::StreamExt as _;
use relevo_broker_nats::{AtomicBatches, Config, Publisher};
use relevo_core::broker::OutcomeReceiver;
use relevo_core::message::{Headers, Message, MessageId};
use relevo_core::{Broker as _, Publication, wire};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

const KEYS: u32 = 1_000;
const BATCH: usize = 1_000;
const WINDOW: usize = 8_000;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is what an example is for")]
async fn main() {
    println!("300 bytes, {KEYS} keys, {WINDOW} in flight; messages a second");
    for (name, setting, count) in [
        ("2.15, default sync", "", 200_000),
        ("2.15, sync always", "sync_interval: always", 20_000),
        ("2.9, default sync", "", 200_000),
    ] {
        let version = if name.starts_with("2.9") { NatsVersion::V2_9 } else { NatsVersion::V2_15 };
        let server = Private::start(version, Settings::new().jetstream(setting)).await;
        let messages = messages(count);
        for round in 1..=3 {
            let id_only = bare(&server, &messages, false).await;
            let alike = bare(&server, &messages, true).await;
            let single = ours(&server, &messages, AtomicBatches::Off).await;
            let atomic = ours(&server, &messages, AtomicBatches::Always).await;
            println!(
                "{name}, round {round}: library with an id only {id_only:.0}, with the same headers {alike:.0}; \
                 relevo {single:.0} ({:.2}), atomic {atomic:.0}",
                single / alike
            );
        }
        let hot: Vec<_> = messages.iter().take(count / 20).cloned().collect();
        println!("{name}, one key, one at a time: {:.0}", one_at_a_time(&server, &hot).await);
    }
}

fn messages(count: usize) -> Vec<Publication> {
    let numbers = 0..u32::try_from(count).expect("a small number");
    let publication = |number: u32| {
        let mut random = [0; 10];
        random[6..].copy_from_slice(&number.to_be_bytes());
        let message = Message {
            id: MessageId::v7(number.into(), random),
            kind: "OrderPlaced".into(),
            key: format!("order-{}", number % KEYS).into(),
            topic: "orders".into(),
            payload: Bytes::from(vec![b'x'; 300]),
            content_type: "application/json".into(),
            headers: Headers::new(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let (message, headers) = (Arc::new(message), Arc::default());
        Publication { message, address: "orders".into(), headers, seq: number.into(), epoch: 1 }
    };
    numbers.map(publication).collect()
}

/// A new stream every time, so that nothing is a repeat.
async fn fresh(server: &Private) -> async_nats::Client {
    let client = async_nats::connect(server.url()).await.expect("the server is there");
    let context = jetstream::new(client.clone());
    context.delete_stream("orders").await.ok();
    let config = stream::Config {
        name: "orders".to_owned(),
        subjects: vec!["orders".to_owned()],
        duplicate_window: Duration::from_mins(2),
        allow_atomic_publish: server.version() == NatsVersion::V2_15,
        ..stream::Config::default()
    };
    context.create_stream(config).await.expect("a stream");
    client
}

/// The library alone, with as many in flight.
async fn bare(server: &Private, messages: &[Publication], alike: bool) -> f64 {
    let client = fresh(server).await;
    // With a sync before every acknowledgement so many in flight take longer than its five seconds.
    let context = ContextBuilder::new().timeout(Duration::from_mins(1)).max_ack_inflight(WINDOW + 1).build(client);
    let start = Instant::now();
    let mut waiting = futures_util::stream::FuturesUnordered::new();
    for publication in messages {
        if waiting.len() == WINDOW {
            let acknowledged: Option<Result<_, _>> = waiting.next().await;
            acknowledged.expect("one").expect("stored");
        }
        let mut headers = HeaderMap::new();
        if alike {
            wire::for_each(publication, "/relevo", |name, value| headers.insert(name, value));
        }
        headers.insert("Nats-Msg-Id", format!("{}/orders", publication.message.id));
        let message = PublishMessage::build().payload(publication.message.payload.clone()).headers(headers);
        waiting.push(context.send_publish("orders", message).await.expect("sent").into_future());
    }
    while let Some(acknowledged) = waiting.next().await {
        acknowledged.expect("stored");
    }
    rate(messages.len(), start)
}

async fn ours(server: &Private, messages: &[Publication], atomic: AtomicBatches) -> f64 {
    fresh(server).await;
    let stream = Some("orders".to_owned());
    let broker = Publisher::open(Config { stream, atomic_batches: atomic, ..Config::new(server.url()) })
        .await
        .expect("a broker");
    let start = Instant::now();
    let calls = futures_util::stream::iter(messages.chunks(BATCH)).map(|batch| {
        let broker = &broker;
        async move {
            let reports = OutcomeReceiver::default();
            broker.publish(batch, &reports.sender(1)).await;
            let reports = reports.take();
            let failed = reports.iter().find_map(|(_, _, outcome)| outcome.as_ref().err());
            assert!(failed.is_none(), "not everything was confirmed: {failed:?}");
            reports.len()
        }
    });
    let confirmed: usize = calls.buffer_unordered(WINDOW / BATCH).fold(0, async |sum, count| sum + count).await;
    assert_eq!(confirmed, messages.len());
    rate(messages.len(), start)
}

async fn one_at_a_time(server: &Private, messages: &[Publication]) -> f64 {
    fresh(server).await;
    let broker = Publisher::open(Config::new(server.url())).await.expect("a broker");
    let start = Instant::now();
    for message in messages.chunks(1) {
        let reports = OutcomeReceiver::default();
        broker.publish(message, &reports.sender(1)).await;
        assert!(reports.take()[0].2.is_ok(), "not confirmed");
    }
    rate(messages.len(), start)
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}
