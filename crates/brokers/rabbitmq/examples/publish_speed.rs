//! How fast it is here: `cargo run --release -p relevo-broker-rabbitmq --example publish_speed [messages]`. It starts a server
//! of its own.
//!
//! 300-byte payloads of 1 000 keys to a quorum queue in windows of several sizes, persistent, mandatory and confirmed: the
//! client library alone with the same properties and headers, then the adapter, in turn.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use relevo_broker_rabbitmq::{Config, Publisher};
use relevo_core::broker::OutcomeReceiver;
use relevo_core::message::{Headers, Message, MessageId};
use relevo_core::{Broker, Publication, wire};
use relevo_testkit::rabbitmq::Private;

const QUEUE: &str = "relevo-speed";
const ROUNDS: usize = 3;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let messages: usize = std::env::args().nth(1).map_or(Ok(50_000), |text| text.parse())?;
    let server = Private::start().await;
    let url = server.amqp_url();
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let config = Config { confirm_timeout: Duration::from_secs(30), ..Config::new(url) };
    let broker = Publisher::open(config).await?;
    for window in [1, 100, 1_000, 5_000] {
        // One at a time is slow.
        let messages = if window == 1 { messages / 20 } else { messages };
        let (mut alone, mut adapter) = (0, 0);
        for _ in 0..ROUNDS {
            fresh_queue(&channel).await?;
            alone = alone.max(rate(messages, raw(&channel, messages, window)).await?);
            fresh_queue(&channel).await?;
            adapter = adapter.max(rate(messages, ours(&broker, messages, window)).await?);
        }
        let share = adapter * 100 / alone.max(1);
        let mut out = std::io::stdout();
        writeln!(out, "window {window}: lapin alone {alone}/s, adapter {adapter}/s, {share} %")?;
    }
    broker.close().await;
    Ok(())
}

async fn rate(messages: usize, run: impl Future<Output = Outcome<()>>) -> Outcome<u128> {
    let start = Instant::now();
    run.await?;
    Ok(messages as u128 * 1_000_000 / start.elapsed().as_micros().max(1))
}

async fn fresh_queue(channel: &Channel) -> Outcome<()> {
    channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(QUEUE.into(), options, arguments).await?;
    Ok(())
}

/// The library alone: always so many in flight, publish futures polled together.
async fn raw(channel: &Channel, messages: usize, window: usize) -> Outcome<()> {
    let mut flying = FuturesUnordered::new();
    for number in 0..messages {
        if flying.len() == window {
            let confirmed: lapin::Result<lapin::Confirmation> = flying.next().await.ok_or("in flight")?;
            assert!(confirmed?.is_ack(), "everything is confirmed");
        }
        let publication = publication(number);
        flying.push(async move {
            let mut headers = FieldTable::default();
            wire::for_each(&publication, "/relevo", |name, value| {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            });
            let message = &publication.message;
            let properties = BasicProperties::default()
                .with_delivery_mode(2)
                .with_message_id(message.id.to_string().into())
                .with_content_type((&*message.content_type).into())
                .with_type((&*message.kind).into())
                .with_headers(headers);
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            channel.basic_publish("".into(), QUEUE.into(), options, &message.payload, properties).await?.await
        });
    }
    while let Some(confirmed) = flying.next().await {
        assert!(confirmed?.is_ack(), "everything is confirmed");
    }
    Ok(())
}

/// The adapter: ten calls at a time, or one, that together have the window in flight.
async fn ours(broker: &Publisher, messages: usize, window: usize) -> Outcome<()> {
    let calls = window.min(10);
    let batch = window / calls;
    let numbers: Vec<usize> = (0..messages).collect();
    let each = numbers.chunks(batch).map(|chunk| async move {
        let batch: Vec<Publication> = chunk.iter().map(|number| publication(*number)).collect();
        let reports = OutcomeReceiver::default();
        broker.publish(&batch, &reports.sender(1)).await;
        let confirmed = reports.take().iter().filter(|(_, _, outcome)| outcome.is_ok()).count();
        assert_eq!(confirmed, chunk.len(), "everything is confirmed");
    });
    futures_util::stream::iter(each).buffer_unordered(calls).collect::<Vec<()>>().await;
    Ok(())
}

fn publication(number: usize) -> Publication {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    let message = Message {
        id: MessageId::v7(number as u64 / 100, random),
        kind: "OrderPlaced".into(),
        key: format!("order-{}", number % 1_000).into(),
        topic: "orders".into(),
        payload: Bytes::from(vec![b'x'; 300]),
        content_type: "application/json".into(),
        headers: Headers::new(),
        created_at: "2026-03-01T12:00:00Z".parse().expect("a time"),
    };
    let seq = i64::try_from(number).expect("a small number");
    Publication { message: Arc::new(message), address: QUEUE.into(), headers: Arc::default(), seq, epoch: 1 }
}
