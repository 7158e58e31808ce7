//! Retry queues on a real server.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::QueueDeleteOptions;
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use relevo_broker_rabbitmq::{ConsumerOptions, GroupConsumer, Queue, retry_queue_name};
use relevo_conformance::broker::harness::{
    ADDRESS, BrokerHarness as _, assert_idle, number, publication, publish_all, receive, stale, tags, within_timeout,
};
use relevo_core::{AckOutcome, BrokerConsumer, Class, DelayedRetry as _, Delivery, RawMessage};
use serde_json::{Value, json};

use crate::consumer_harness::{EXCHANGE, Groups, retry};

const QUEUE: &str = "billing";

async fn acknowledge(consumer: &impl BrokerConsumer, delivery: &Delivery) {
    assert_eq!(stale(consumer, &[delivery.tag]).await.expect("acknowledged"), []);
}

async fn retry_one(consumer: &impl BrokerConsumer, delivery: &Delivery, after: Duration) {
    assert_eq!(retry(consumer, &[delivery.tag], after).await.expect("moved to a retry queue"), []);
}

/// The `x-death` header that the broker adds.
fn deaths(raw: &RawMessage) -> Vec<Value> {
    let header = raw.headers.iter().find(|(name, _)| name == "x-death").map(|(_, value)| value);
    header.map(|value| serde_json::from_slice(value).expect("a list")).unwrap_or_default()
}

/// A queue without lanes, with retry delays of 200 ms and 1 s.
async fn single_queue() -> (Groups, Queue) {
    let groups = Groups::shared().await;
    let delays = vec![Duration::from_millis(200), Duration::from_secs(1)];
    let queue = Queue { lanes: None, single_active_consumer: true, retry_delays: delays, ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    (groups, queue)
}

/// Publishes without a lane.
async fn publish_plain(groups: &Groups, properties: BasicProperties, payload: &[u8]) {
    groups.client().await.publish(EXCHANGE, ADDRESS, properties, payload).await;
}

fn table(headers: impl IntoIterator<Item = (&'static str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert(name.into(), value);
    }
    table
}

#[tokio::test]
async fn a_delay_longer_than_every_retry_delay_takes_several() {
    let (groups, queue) = single_queue().await;
    publish_plain(&groups, BasicProperties::default(), b"x").await;
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let first = receive(&consumer, 1).await.remove(0);
    let began = Instant::now();
    retry_one(&consumer, &first, Duration::from_millis(2_300)).await;
    let second = receive(&consumer, 1).await.remove(0);
    // Two delays of a second and two of 200 ms; a move between retry queues is not a delivery.
    assert!(began.elapsed() >= Duration::from_millis(2_300), "{:?}", began.elapsed());
    assert_eq!((second.redelivered, second.retry_count, &*second.raw.payload), (true, 1, &b"x"[..]));
    acknowledge(&consumer, &second).await;
    assert_idle(&consumer).await;
}

#[tokio::test]
async fn a_retried_message_keeps_its_content_and_address() {
    let (groups, queue) = single_queue().await;
    let headers = table([
        ("x-number", AMQPValue::LongInt(-7)),
        ("x-bytes", AMQPValue::ByteArray(vec![0, 0xff].into())),
        ("x-text", AMQPValue::LongString("clave-ñ".into())),
    ]);
    let properties = BasicProperties::default()
        .with_message_id("m-1".into())
        .with_correlation_id("c-1".into())
        .with_headers(headers);
    publish_plain(&groups, properties, &[0, 0xff]).await;
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let first = receive(&consumer, 1).await.remove(0);
    retry_one(&consumer, &first, Duration::ZERO).await;
    let second = receive(&consumer, 1).await.remove(0);
    assert_eq!((&second.address, &second.raw.payload), (&first.address, &first.raw.payload));
    assert_eq!(&*second.address, ADDRESS);
    let after: BTreeMap<_, _> = second.raw.headers.iter().cloned().collect();
    for (name, value) in &first.raw.headers {
        assert_eq!(after.get(name), Some(value), "{name}");
    }
    let deaths = deaths(&second.raw);
    assert_eq!(deaths.len(), 1, "{deaths:?}");
    assert_eq!((&deaths[0]["reason"], &deaths[0]["count"]), (&json!("expired"), &json!(1)));
    assert_eq!(deaths[0]["queue"], json!(retry_queue_name(QUEUE, queue.retry_delays[0])));
}

#[tokio::test]
async fn only_a_confirmed_retry_counts_as_one() {
    let (groups, queue) = single_queue().await;
    publish_plain(&groups, BasicProperties::default(), b"x").await;
    for time in 0..6 {
        let consumer =
            GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
        let held = receive(&consumer, 1).await.remove(0);
        assert_eq!((held.redelivered, held.retry_count), (time > 0, time / 3));
        if time % 3 == 2 {
            retry_one(&consumer, &held, Duration::ZERO).await;
        }
        within_timeout(consumer.close()).await.expect("closed");
    }
}

/// Later messages of its key overtake it, and it does not count as waiting for a consumer.
#[tokio::test]
async fn a_retried_message_comes_after_its_delay_and_holds_back_nothing() {
    let groups = Groups::shared().await;
    let queue = groups.queue(QUEUE);
    groups.declare(&queue, ADDRESS).await;
    let broker = groups.broker().await;
    publish_all(&broker, &[publication(1, "a"), publication(2, "a")]).await;
    let first = groups.member(&queue, ConsumerOptions::default()).await;
    let held = receive(&first, 2).await;
    let delay = *queue.retry_delays.last().expect("there are retry delays");
    retry_one(&first, &held[0], delay).await;
    acknowledge(&first, &held[1]).await;
    let lag = within_timeout(first.lag()).await.expect("a number per lane");
    assert!(lag.iter().all(|(_, waiting)| *waiting == 0), "{lag:?}");
    // The delay survives the death of its consumer.
    groups.disconnect(&first).await;
    let second = groups.member(&queue, ConsumerOptions::default()).await;
    publish_all(&broker, &[publication(3, "a")]).await;
    assert_eq!(number(&receive(&second, 1).await[0]), 3);
    assert_idle(&second).await;
    tokio::time::sleep(delay).await;
    let again = receive(&second, 1).await.remove(0);
    assert_eq!((number(&again), again.retry_count), (1, 1));
}

/// Properties of a message that an operator moved back with a shovel: its history names this queue.
fn expired_in_own_queue() -> BasicProperties {
    let mut deaths = FieldArray::default();
    deaths.push(AMQPValue::FieldTable(table([
        ("count", AMQPValue::LongLongInt(1)),
        ("queue", AMQPValue::LongString(QUEUE.into())),
        ("reason", AMQPValue::LongString("expired".into())),
        ("exchange", AMQPValue::LongString("".into())),
    ])));
    BasicProperties::default().with_headers(table([("x-death", AMQPValue::FieldArray(deaths))]))
}

#[tokio::test]
async fn a_message_that_expired_from_its_own_queue_is_not_dropped_as_a_cycle() {
    let (groups, queue) = single_queue().await;
    publish_plain(&groups, expired_in_own_queue(), b"x").await;
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let first = receive(&consumer, 1).await.remove(0);
    assert_eq!(deaths(&first.raw).len(), 1);
    retry_one(&consumer, &first, Duration::ZERO).await;
    assert_eq!(receive(&consumer, 1).await[0].retry_count, 1);
}

/// Shows why the history is removed: the broker alone would drop the message.
#[tokio::test]
async fn with_its_death_history_the_broker_silently_drops_a_message() {
    let (groups, queue) = single_queue().await;
    let (client, retry_queue) = (groups.client().await, retry_queue_name(QUEUE, queue.retry_delays[0]));
    client.publish("", &retry_queue, expired_in_own_queue(), b"dropped").await;
    client.publish("", &retry_queue, BasicProperties::default(), b"returned").await;
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    // A retry queue is first in, first out.
    assert_eq!(&*receive(&consumer, 1).await[0].raw.payload, b"returned");
    assert_idle(&consumer).await;
    assert_eq!(client.ready(&retry_queue).await, 0);
}

#[tokio::test]
async fn a_missing_retry_queue_keeps_the_message_outstanding_until_it_is_created() {
    let (groups, queue) = single_queue().await;
    publish_plain(&groups, BasicProperties::default(), b"x").await;
    let retry_queue = retry_queue_name(QUEUE, queue.retry_delays[0]);
    let client = groups.client().await;
    client.channel.queue_delete(retry_queue.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await.remove(0);
    let failure = retry(&consumer, &[held.tag], Duration::ZERO).await.expect_err("no retry queue");
    assert_eq!(failure.class(), Class::Blocked);
    assert!(failure.error_chain().contains(&retry_queue), "{}", failure.error_chain());
    groups.declare(&queue, ADDRESS).await;
    // The same call again.
    retry_one(&consumer, &held, Duration::ZERO).await;
    assert_eq!(receive(&consumer, 1).await[0].retry_count, 1);
}

#[tokio::test]
async fn a_retry_that_fails_holds_back_no_other() {
    let (groups, queue) = single_queue().await;
    for payload in [b"1", b"2"] {
        publish_plain(&groups, BasicProperties::default(), payload).await;
    }
    let retry_queue = retry_queue_name(QUEUE, queue.retry_delays[0]);
    let client = groups.client().await;
    client.channel.queue_delete(retry_queue.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 2).await;
    let broker = consumer.delayed_retry().expect("RabbitMQ has delayed retries");
    // The retry queue of the second message exists.
    let retries = [(held[0].tag, Duration::ZERO), (held[1].tag, queue.retry_delays[1])];
    let outcomes = within_timeout(broker.retry_later(&retries)).await;
    let [AckOutcome::Failed(failure), AckOutcome::Acknowledged] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(failure.class(), Class::Blocked);
    assert!(failure.error_chain().contains(&retry_queue), "{}", failure.error_chain());
    assert_eq!(receive(&consumer, 1).await[0].retry_count, 1);
    groups.declare(&queue, ADDRESS).await;
    let outcomes = within_timeout(broker.retry_later(&retries)).await;
    assert!(matches!(outcomes[..], [AckOutcome::Acknowledged, AckOutcome::Stale]), "{outcomes:?}");
    assert_eq!(receive(&consumer, 1).await[0].retry_count, 1);
}

#[tokio::test]
async fn a_delayed_message_is_delivered_when_the_retry_queues_are_removed() {
    let groups = Groups::shared().await;
    let queue = Queue { lanes: None, retry_delays: vec![], ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    let left = table([("relevo-delay-left-ms", AMQPValue::LongLongInt(60_000))]);
    publish_plain(&groups, BasicProperties::default().with_headers(left), b"x").await;
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    assert_eq!(&*receive(&consumer, 1).await[0].raw.payload, b"x");
}

#[tokio::test]
async fn without_retry_queues_no_message_is_retried_or_lost() {
    let groups = Groups::shared().await;
    let queue = Queue { lanes: None, retry_delays: vec![], dead_letter_queue: None, ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    publish_plain(&groups, BasicProperties::default(), b"x").await;
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await.remove(0);
    assert!(consumer.delayed_retry().is_none(), "the inbox must not rely on retries of the broker");
    let failure = match consumer.retry_later(&[(held.tag, Duration::ZERO)]).await.remove(0) {
        AckOutcome::Failed(failure) => failure,
        outcome => panic!("{outcome:?}"),
    };
    assert_eq!(failure.class(), Class::Blocked);
    acknowledge(&consumer, &held).await;
}

/// Settings of the original publisher do not apply to the copies.
#[tokio::test]
async fn a_moved_message_neither_expires_nor_is_copied() {
    /// Longer than a busy machine needs to receive the message.
    const EXPIRES: Duration = Duration::from_secs(6);
    let (groups, queue) = single_queue().await;
    let client = groups.client().await;
    client.quorum_queue("elsewhere", &[]).await;
    let mut copied = FieldArray::default();
    copied.push(AMQPValue::LongString("elsewhere".into()));
    let properties = BasicProperties::default()
        .with_expiration(EXPIRES.as_millis().to_string().into())
        .with_user_id("guest".into())
        .with_headers(table([("CC", AMQPValue::FieldArray(copied))]));
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    publish_plain(&groups, BasicProperties::default(), b"first").await;
    let subscribed = receive(&consumer, 1).await.remove(0);
    acknowledge(&consumer, &subscribed).await;
    publish_plain(&groups, properties, b"retried").await;
    let first = receive(&consumer, 1).await.remove(0);
    retry_one(&consumer, &first, Duration::ZERO).await;
    let second = receive(&consumer, 1).await.remove(0);
    let header = |name: &str| second.raw.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value);
    assert_eq!(header("expiration").map(|value| &**value), Some(EXPIRES.as_millis().to_string().as_bytes()));
    assert_eq!(header("user-id").map(|value| &**value), Some(&b"guest"[..]));
    // The copies went through the default exchange, where `elsewhere` is the name of that queue.
    assert_eq!(client.ready("elsewhere").await, 0);
}

#[tokio::test]
async fn a_crash_between_copy_and_acknowledgement_duplicates_and_never_loses() {
    let groups = Groups::shared().await;
    let queue = groups.queue(QUEUE);
    groups.declare(&queue, ADDRESS).await;
    let batch: Vec<_> = (1..=40).map(|number| publication(number, &format!("k-{}", number % 7))).collect();
    publish_all(&groups.broker().await, &batch).await;
    let (mut seen, mut acknowledged) = (Vec::new(), std::collections::BTreeSet::new());
    let retried = |one: &Delivery| one.raw.headers.iter().any(|(name, _)| name == "relevo-retries");
    let (mut climbed, mut enough) = (false, Duration::from_millis(1));
    for round in 0..14 {
        let member = groups.member(&queue, ConsumerOptions::default()).await;
        let some = within_timeout(member.receive(100)).await.expect("deliveries");
        seen.extend(some.iter().map(number));
        climbed |= some.iter().any(retried);
        // Cancels each call at a different moment and cuts the connections. The time doubles until copies are
        // published, and then varies up to that time.
        let given = if climbed { enough * (round % 5) / 4 } else { enough };
        tokio::time::timeout(given, retry(&member, &tags(&some), Duration::ZERO)).await.ok();
        groups.disconnect(&member).await;
        enough = if climbed { enough } else { enough * 2 };
    }
    let last = groups.member(&queue, ConsumerOptions::default()).await;
    while acknowledged.len() < 40 {
        let some = within_timeout(last.receive(100)).await.expect("deliveries");
        climbed |= some.iter().any(retried);
        for delivery in &some {
            acknowledge(&last, delivery).await;
        }
        acknowledged.extend(some.iter().map(number));
    }
    assert!(seen.len() > 40, "no message was delivered twice");
    assert!(climbed, "no copy was ever made");
}
