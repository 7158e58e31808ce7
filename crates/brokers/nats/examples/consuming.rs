//! How fast a group consumes, beside the client library alone, on servers of its own:
//! `cargo run --release -p relevo-broker-nats --example consuming [messages]`.
//!
//! It needs what the tests need: `eval "$(cargo xtask services up)"`.

use std::time::Instant;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use relevo_broker_nats::{Config, Group, Membership, Publisher, consumer, declare_group};
use relevo_conformance::broker::harness::{publication, publish_all, with_message};
use relevo_core::{AckOutcome, BrokerConsumer as _, DeliveryTag, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

const LANES: u16 = 8;
const KEYS: usize = 1_000;
const BATCH: usize = 1_000;

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is what an example is for")]
async fn main() {
    let argument = std::env::args().nth(1);
    let count: usize = argument.map_or(100_000, |text| text.parse().expect("a number of messages"));
    println!("{count} messages of 300 bytes, {KEYS} keys, {LANES} lanes; messages a second");
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new()).await;
        let config = Config { lanes: Some(LANES), ..Config::new(server.url()) };
        fill(&config, count).await;
        for round in 1..=3 {
            let group = |name: &str| Group {
                lanes: Some(LANES),
                max_ack_pending: 2_000,
                ..Group::new(format!("{name}{round}"), "s", ["orders"])
            };
            let unconfirmed = library(&config, &group("plain"), count, false).await;
            let confirmed = library(&config, &group("double"), count, true).await;
            let batches = ours(&config, &group("batches"), count, BATCH).await;
            let singly = ours(&config, &group("singly"), count / 10, 1).await;
            println!(
                "{}, round {round}: library with `ack` {unconfirmed:.0}, with `double_ack` {confirmed:.0}; relevo \
                 settling what it received {batches:.0} ({:.2} of `double_ack`), one by one in every lane {singly:.0}",
                version.number(),
                batches / confirmed
            );
        }
    }
}

async fn fill(config: &Config, count: usize) {
    let client = async_nats::connect(&config.urls[0]).await.expect("the server is there");
    let subjects = vec!["orders.*".to_owned()];
    let stream = stream::Config { name: "s".to_owned(), subjects, ..stream::Config::default() };
    jetstream::new(client).create_stream(stream).await.expect("a stream");
    let broker = Publisher::open(config.clone()).await.expect("a broker");
    let numbers: Vec<usize> = (0..count).collect();
    for some in numbers.chunks(10_000) {
        let publication = |number: &usize| {
            let plain = publication(u32::try_from(*number).expect("not that many"), &format!("k-{}", number % KEYS));
            with_message(&plain, |message| message.payload = vec![b'x'; 300].into())
        };
        publish_all(&broker, &some.iter().map(publication).collect::<Vec<Publication>>()).await;
    }
}

/// A durable consumer a lane, a task each, a hundred acknowledgements on their way.
async fn library(config: &Config, group: &Group, count: usize, confirmed: bool) -> f64 {
    declare_group(config, group).await.expect("a group");
    let client = async_nats::connect(&config.urls[0]).await.expect("the server is there");
    let stream = jetstream::new(client).get_stream("s").await.expect("the stream");
    let start = Instant::now();
    let lanes = (0..LANES).map(|lane| {
        let (stream, name) = (stream.clone(), format!("{}-{lane}", group.name));
        async move {
            let consumer: PullConsumer = stream.get_consumer(&name).await.expect("a consumer");
            let left = usize::try_from(consumer.cached_info().num_pending).expect("a small number");
            let messages = consumer.stream().max_messages_per_batch(500).messages().await.expect("messages");
            let answered = messages.take(left).map(|message| async move {
                let message = message.expect("a message");
                let answered = if confirmed { message.double_ack().await } else { message.ack().await };
                answered.expect("an answer");
            });
            answered.buffer_unordered(100).count().await
        }
    });
    let answered: usize = join_all(lanes).await.into_iter().sum();
    assert_eq!(answered, count);
    rate(count, start)
}

async fn ours(config: &Config, group: &Group, count: usize, batch: usize) -> f64 {
    declare_group(config, group).await.expect("a group");
    let start = Instant::now();
    let consumer = consumer(config, group, Membership { prefetch: BATCH, ..Membership::default() }).await;
    let consumer = consumer.expect("a consumer");
    let mut done = 0;
    while done < count {
        let some = consumer.receive(BATCH).await.expect("deliveries");
        done += some.len();
        let tags: Vec<DeliveryTag> = some.iter().map(|delivery| delivery.tag).collect();
        let outcomes = join_all(tags.chunks(batch).map(|tags| consumer.acknowledge(tags))).await.concat();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, AckOutcome::Acknowledged)), "{outcomes:?}");
    }
    let rate = rate(done, start);
    consumer.close().await.expect("closed");
    rate
}

#[expect(clippy::cast_precision_loss, reason = "nobody counts that far here")]
fn rate(count: usize, start: Instant) -> f64 {
    count as f64 / start.elapsed().as_secs_f64()
}
