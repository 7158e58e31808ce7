//! The messages of a real broker, read with its client library.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use serde_json::Value;

use crate::daemon::DEADLINE;

/// A queue that delivers nothing for this long is empty, or waits for a publisher.
const IDLE: Duration = Duration::from_millis(200);

/// A message at the broker: its number, and its headers.
#[derive(Debug)]
pub(crate) struct BrokerMessage {
    pub(crate) number: i64,
    pub(crate) headers: BTreeMap<String, String>,
}

/// Numbers of messages in the order in which each was first seen.
pub(crate) fn first_seen(messages: &[BrokerMessage]) -> Vec<i64> {
    let mut seen = std::collections::BTreeSet::new();
    messages.iter().map(|message| message.number).filter(|number| seen.insert(*number)).collect()
}

/// Requires each of these numbers, and the order within each key.
pub(crate) fn assert_in_order(messages: &[BrokerMessage], numbers: std::ops::RangeInclusive<i64>) {
    let seen = first_seen(messages);
    let mut sorted = seen.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, numbers.collect::<Vec<_>>());
    for key in 0..7 {
        let of_key: Vec<i64> = seen.iter().copied().filter(|number| number % 7 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

fn number(payload: &[u8]) -> i64 {
    let payload: Value = serde_json::from_slice(payload).expect("JSON");
    payload["n"].as_i64().expect("a number")
}

pub(crate) async fn channel(url: &str) -> (Connection, lapin::Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("the server runs");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

/// A durable queue with these arguments.
pub(crate) async fn declare_queue(url: &str, queue: &str, arguments: &[(&str, AMQPValue)]) {
    let (_connection, channel) = channel(url).await;
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), options, table).await.expect("a new queue");
}

/// Consumes a queue until the last of these numbers has arrived and the queue is empty. A queue with a single active consumer
/// refuses `basic.get`.
pub(crate) async fn take_from_queue(url: &str, queue: &str, last: i64) -> Vec<BrokerMessage> {
    let (_connection, channel) = channel(url).await;
    let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
    let consumed = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default()).await;
    let mut messages = consumed.expect("the queue exists");
    let (mut taken, end) = (Vec::new(), Instant::now() + DEADLINE);
    loop {
        let Ok(next) = tokio::time::timeout(IDLE, messages.next()).await else {
            if taken.iter().any(|message: &BrokerMessage| message.number == last)
                && !channel_has_more(&channel, queue).await
            {
                return taken;
            }
            assert!(Instant::now() < end, "{last} has not arrived: {:?}", first_seen(&taken));
            continue;
        };
        let message = next.expect("the consumer is open").expect("a delivery");
        let table = message.properties.headers().clone().unwrap_or_default();
        let headers = table.inner().iter().filter_map(|(name, value)| match value {
            AMQPValue::LongString(text) => Some((name.to_string(), text.to_string())),
            _ => None,
        });
        taken.push(BrokerMessage { number: number(&message.data), headers: headers.collect() });
    }
}

async fn channel_has_more(channel: &lapin::Channel, queue: &str) -> bool {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare(queue.into(), options, FieldTable::default()).await;
    declared.expect("the queue exists").message_count() > 0
}

pub(crate) async fn jetstream(url: &str) -> jetstream::Context {
    jetstream::new(async_nats::connect(url).await.expect("the server runs"))
}

/// All messages of a stream.
pub(crate) async fn stored_in(url: &str, stream: &str) -> Vec<BrokerMessage> {
    let mut stream = jetstream(url).await.get_stream(stream).await.expect("the stream exists");
    let last = stream.info().await.expect("it answers").state.last_sequence;
    let mut stored = Vec::new();
    for sequence in 1..=last {
        let message = stream.get_raw_message(sequence).await.expect("the stream retains all messages");
        let headers = message.headers.iter().map(|(name, values)| {
            let value = values.first().map_or_else(String::new, ToString::to_string);
            (name.to_string(), value)
        });
        stored.push(BrokerMessage { number: number(&message.payload), headers: headers.collect() });
    }
    stored
}
