//! Outcomes of published messages, by exchange.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lapin::ExchangeKind;
use lapin::options::{
    BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use relevo_broker_rabbitmq::{Config, Publisher};
use relevo_conformance::broker::harness::{numbers, publication_to, publish, publish_all, with_message};
use relevo_core::header_rules::HeaderRules;
use relevo_core::slot::{shard_of, slot_of};
use relevo_core::{Class, Publication};
use relevo_testkit::rabbitmq::{Server, Vhost};
use tokio::task::JoinSet;

use crate::harness::AmqpClient;

/// Longer than any call here, so that no outcome is a timeout.
const LONG_TIMEOUT: Duration = Duration::from_secs(20);

struct PublishTest {
    vhost: Vhost,
    client: AmqpClient,
}

impl PublishTest {
    async fn new() -> Self {
        let vhost = Server::shared().vhost().await;
        let client = AmqpClient::connect(&vhost.amqp_url()).await;
        Self { vhost, client }
    }

    fn config(&self) -> Config {
        Config { confirm_timeout: LONG_TIMEOUT, ..Config::new(self.vhost.amqp_url()) }
    }

    async fn broker(&self) -> Publisher {
        Publisher::open(self.config()).await.expect("a valid configuration")
    }

    async fn exchange(&self, name: &str, kind: ExchangeKind) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        self.client
            .channel
            .exchange_declare(name.into(), kind, options, FieldTable::default())
            .await
            .expect("an exchange");
    }

    async fn bind(&self, queue: &str, exchange: &str, key: &str, arguments: FieldTable) {
        self.client.quorum_queue(queue, &[]).await;
        let bound = self.client.channel.queue_bind(
            queue.into(),
            exchange.into(),
            key.into(),
            QueueBindOptions::default(),
            arguments,
        );
        bound.await.expect("a binding");
    }
}

/// Publishes from several tasks at once. `expected` is the outcome for each address.
async fn assert_outcomes(
    broker: &Publisher,
    tasks: u32,
    messages: u32,
    expected: fn(u32) -> (&'static str, Option<Class>),
) {
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let broker = broker.clone();
        running.spawn(async move {
            let numbers: Vec<u32> = (0..messages).map(|number| task * messages + number).collect();
            for chunk in numbers.chunks(500) {
                let batch: Vec<Publication> = chunk
                    .iter()
                    .map(|number| publication_to(expected(*number).0, *number, &format!("k-{number}")))
                    .collect();
                let outcomes = publish(&broker, &batch).await;
                for (number, outcome) in chunk.iter().zip(outcomes) {
                    assert_eq!(outcome, expected(*number).1, "message {number}");
                }
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("every verdict is right");
    }
}

/// The client library attaches a returned message to the wrong confirm; the adapter reports the right one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_returned_message_gets_the_unroutable_outcome() {
    let place = PublishTest::new().await;
    place.client.quorum_queue("orders", &[]).await;
    let broker = place.broker().await;
    assert_outcomes(&broker, 6, 5_000, |number| match number % 7 {
        0 | 3 => ("unbound", Some(Class::Blocked)),
        _ => ("orders", None),
    })
    .await;
}

/// The client library confuses confirms when tasks share a channel; the adapter's tasks do not share one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_message_that_a_full_queue_refuses_gets_the_throttled_outcome() {
    let place = PublishTest::new().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    place.client.channel.queue_declare("full".into(), durable, arguments).await.expect("a queue");
    place.client.quorum_queue("room", &[]).await;
    let broker = place.broker().await;
    publish_all(&broker, &[publication_to("full", 1_000_000, "k")]).await;
    assert_outcomes(&broker, 8, 2_000, |number| match number % 3 {
        0 => ("full", Some(Class::Throttled(Duration::from_secs(1)))),
        _ => ("room", None),
    })
    .await;
}

#[tokio::test]
async fn a_missing_exchange_blocks_only_its_own_messages_until_it_exists() {
    let place = PublishTest::new().await;
    place.client.quorum_queue("orders", &[]).await;
    let broker = place.broker().await;
    let batch: Vec<Publication> = (0..200)
        .map(|number| publication_to(if number % 2 == 0 { "orders" } else { "later/x" }, number, "k"))
        .collect();
    let expected: Vec<_> = (0..200).map(|number| if number % 2 == 0 { None } else { Some(Class::Blocked) }).collect();
    assert_eq!(publish(&broker, &batch).await, expected);
    place.exchange("later", ExchangeKind::Topic).await;
    place.bind("late", "later", "#", FieldTable::default()).await;
    let rest: Vec<Publication> = batch.iter().skip(1).step_by(2).cloned().collect();
    publish_all(&broker, &rest).await;
    assert_eq!(place.client.stored("late").await.len(), 100);
    assert_eq!(place.client.stored("orders").await.len(), 100, "no other channel was closed");
}

#[tokio::test]
async fn a_deleted_exchange_blocks_its_address_and_no_other() {
    let place = PublishTest::new().await;
    place.exchange("brief", ExchangeKind::Fanout).await;
    place.bind("orders", "brief", "", FieldTable::default()).await;
    let broker = place.broker().await;
    publish_all(&broker, &[publication_to("brief/", 1, "k"), publication_to("orders", 2, "k")]).await;
    place.client.channel.exchange_delete("brief".into(), ExchangeDeleteOptions::default()).await.expect("deleted");
    let batch = [publication_to("brief/", 3, "k"), publication_to("orders", 4, "k")];
    assert_eq!(publish(&broker, &batch).await, [Some(Class::Blocked), None]);
    assert_eq!(numbers(&place.client.stored("orders").await), [1, 2, 4]);
}

#[tokio::test]
async fn every_kind_of_exchange_routes() {
    let place = PublishTest::new().await;
    for (name, kind) in [
        ("by-topic", ExchangeKind::Topic),
        ("by-key", ExchangeKind::Direct),
        ("to-all", ExchangeKind::Fanout),
        ("by-headers", ExchangeKind::Headers),
    ] {
        place.exchange(name, kind).await;
    }
    let mut matching = FieldTable::default();
    matching.insert("x-match".into(), AMQPValue::LongString("all".into()));
    matching.insert("ce-type".into(), AMQPValue::LongString("OrderPlaced".into()));
    place.bind("a", "by-topic", "orders.*", FieldTable::default()).await;
    place.bind("b", "by-key", "orders", FieldTable::default()).await;
    place.bind("c", "to-all", "", FieldTable::default()).await;
    place.bind("d", "by-headers", "", matching).await;
    let config = Config { exchange: "by-topic".to_owned(), ..place.config() };
    let broker = Publisher::open(config).await.expect("a valid configuration");
    let batch = [
        publication_to("orders.eu", 1, "k"),
        publication_to("by-key/orders", 2, "k"),
        publication_to("to-all/", 3, "k"),
        publication_to("by-headers/", 4, "k"),
        publication_to("/a", 5, "k"),
        with_message(&publication_to("by-headers/", 6, "k"), |message| message.kind = "Other".into()),
    ];
    assert_eq!(publish(&broker, &batch).await, [None, None, None, None, None, Some(Class::Blocked)]);
    for (queue, expected) in [("a", vec![1, 5]), ("b", vec![2]), ("c", vec![3]), ("d", vec![4])] {
        let mut stored = numbers(&place.client.stored(queue).await);
        stored.sort_unstable();
        assert_eq!(stored, expected, "queue {queue}");
    }
}

#[tokio::test]
async fn lanes_are_the_last_word_of_the_routing_key() {
    let place = PublishTest::new().await;
    place.exchange("events", ExchangeKind::Topic).await;
    for lane in 0..3 {
        place.bind(&format!("lane-{lane}"), "events", &format!("orders.{lane}"), FieldTable::default()).await;
    }
    let config = Config { lanes: Some(3), ..place.config() };
    let broker = Publisher::open(config).await.expect("a valid configuration");
    let mut expected: BTreeMap<u16, Vec<i64>> = BTreeMap::new();
    let batch: Vec<Publication> = (0..30)
        .map(|number| {
            let key = format!("k-{number}");
            expected.entry(shard_of(slot_of(&key), 3)).or_default().push(number.into());
            publication_to("events/orders", number, &key)
        })
        .collect();
    publish_all(&broker, &batch).await;
    assert_eq!(expected.len(), 3);
    for (lane, numbers_of_lane) in expected {
        assert_eq!(numbers(&place.client.stored(&format!("lane-{lane}")).await), numbers_of_lane);
    }
}

#[tokio::test]
async fn properties_and_the_routes_own_headers_are_sent() {
    let place = PublishTest::new().await;
    place.client.quorum_queue("orders", &[]).await;
    let add = BTreeMap::from([("x-event-id".to_owned(), "{id}".to_owned())]);
    let rename = BTreeMap::from([("correlation".to_owned(), "x-correlation-id".to_owned())]);
    let sent = with_message(&publication_to("orders", 7, "k"), |message| {
        message.headers.insert("correlation".to_owned(), "c-1".to_owned());
    });
    let sent = Publication { headers: Arc::new(HeaderRules { add, rename }), ..sent };
    publish_all(&place.broker().await, std::slice::from_ref(&sent)).await;
    let got =
        place.client.channel.basic_get("orders".into(), BasicGetOptions::default()).await.expect("the queue exists");
    let properties = &got.as_ref().expect("a message").delivery.properties;
    let id = sent.message.id.to_string();
    assert_eq!(properties.message_id().as_ref().map(ToString::to_string), Some(id.clone()));
    assert_eq!(properties.kind().as_ref().map(ToString::to_string), Some("OrderPlaced".to_owned()));
    assert_eq!(properties.content_type().as_ref().map(ToString::to_string), Some("application/json".to_owned()));
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(*properties.timestamp(), Some(1_772_366_400));
    let headers = properties.headers().as_ref().expect("headers").inner();
    assert_eq!(headers.get("x-event-id"), Some(&AMQPValue::LongString(id.into())));
    assert_eq!(headers.get("x-correlation-id"), Some(&AMQPValue::LongString("c-1".into())));
    assert_eq!(headers.get("correlation"), None);
}

/// The client library panics on long names, and the server closes the connection on headers that fill a frame.
#[tokio::test]
async fn a_message_that_cannot_be_encoded_affects_no_other() {
    let place = PublishTest::new().await;
    place.client.quorum_queue("orders", &[]).await;
    let broker = place.broker().await;
    let header = |number, name: String, value: String| {
        with_message(&publication_to("orders", number, "k"), |message| {
            message.headers.insert(name, value);
        })
    };
    let batch = [
        publication_to("orders", 1, "k"),
        header(2, "n".repeat(256), "v".to_owned()),
        header(3, "n".to_owned(), "v".repeat(200_000)),
        publication_to(&"x".repeat(256), 4, "k"),
        publication_to(&format!("{}/x", "x".repeat(256)), 5, "k"),
        with_message(&publication_to("orders", 6, "k"), |message| {
            message.payload = vec![0; place.config().message_size_max + 1].into();
        }),
        header(7, "n".repeat(255), "v".repeat(100_000)),
        with_message(&publication_to("orders", 8, &"k".repeat(1_000)), |message| {
            message.kind = "t".repeat(1_000).into();
            message.content_type = "c".repeat(1_000).into();
        }),
        publication_to("orders", 9, "k"),
        header(10, "CC".to_owned(), "elsewhere".to_owned()),
        header(11, "BCC".to_owned(), "elsewhere".to_owned()),
        header(12, "cc".to_owned(), "just a header".to_owned()),
    ];
    let (poison, blocked) = (Some(Class::Poison), Some(Class::Blocked));
    let expected = [None, poison, poison, blocked, blocked, poison, None, None, None, poison, poison, None];
    assert_eq!(publish(&broker, &batch).await, expected);
    assert_eq!(numbers(&place.client.stored("orders").await), [1, 7, 8, 9, 12]);
}

#[tokio::test]
async fn several_channels_keep_each_key_in_order() {
    let place = PublishTest::new().await;
    place.client.quorum_queue("orders", &[]).await;
    let config = Config { channels_per_exchange: 4, in_flight_max: 50, ..place.config() };
    let broker = Publisher::open(config).await.expect("a valid configuration");
    let batch: Vec<Publication> =
        (0..1_000).map(|number| publication_to("orders", number, &format!("k-{}", number % 10))).collect();
    publish_all(&broker, &batch).await;
    let stored = numbers(&place.client.take_all("orders").await);
    assert_eq!(stored.len(), 1_000);
    for key in 0..10 {
        let of_key: Vec<i64> = stored.iter().copied().filter(|number| number % 10 == key).collect();
        assert!(of_key.is_sorted(), "key {key}");
    }
}

#[tokio::test]
async fn a_closed_broker_reports_an_outage() {
    let place = PublishTest::new().await;
    place.client.quorum_queue("orders", &[]).await;
    let broker = place.broker().await;
    publish_all(&broker, &[publication_to("orders", 1, "k")]).await;
    broker.close().await;
    assert_eq!(publish(&broker, &[publication_to("orders", 2, "k")]).await, [Some(Class::Outage)]);
}
