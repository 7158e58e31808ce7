//! Measures the throughput on this machine:
//! `cargo run --release -p relevo-broker-embedded --example embedded_speed [messages]`.
//!
//! Publishes 300-byte payloads of 1 000 keys in batches of 1 000. Then it receives and acknowledges them, and finally
//! does both at once.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use relevo_broker_embedded::{BrokerFile, Config, Group, Membership};
use relevo_core::broker::OutcomeReceiver;
use relevo_core::message::{Headers, Message, MessageId};
use relevo_core::{AckOutcome, Broker, BrokerConsumer, DeliveryTag, Publication};

const BATCH: usize = 1_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let messages: usize = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse())?;
    let directory = std::env::temp_dir().join(format!("relevo-speed-{}", uuid::Uuid::new_v4().simple()));
    std::fs::create_dir(&directory)?;
    let result = measure(&directory, messages).await;
    std::fs::remove_dir_all(&directory)?;
    result
}

async fn measure(directory: &std::path::Path, messages: usize) -> Outcome<()> {
    let broker = BrokerFile::open(Config::new(directory.join("broker.db"))).await?;
    broker.declare_group(&Group::new("all", ["**"])).await?;
    let membership = Membership { prefetch: BATCH, ..Membership::default() };
    let consumer = broker.consumer("all", membership).await?;

    let start = Instant::now();
    publish(&broker, 0..messages).await;
    say("published", messages, start)?;

    let start = Instant::now();
    consume(&consumer, messages).await?;
    say("received and acknowledged", messages, start)?;

    let start = Instant::now();
    let (both, ()) = tokio::join!(consume(&consumer, messages), publish(&broker, messages..2 * messages));
    both?;
    say("both at once", messages, start)?;
    consumer.close().await?;
    broker.close().await;
    Ok(())
}

fn say(what: &str, messages: usize, start: Instant) -> std::io::Result<()> {
    let micros = start.elapsed().as_micros().max(1);
    writeln!(std::io::stdout(), "{what}: {} messages/s", messages as u128 * 1_000_000 / micros)
}

async fn publish(broker: &BrokerFile, numbers: std::ops::Range<usize>) {
    for first in numbers.step_by(BATCH) {
        let batch: Vec<Publication> = (first..first + BATCH).map(publication).collect();
        let reports = OutcomeReceiver::default();
        broker.publish(&batch, &reports.sender(1)).await;
        assert!(reports.take().iter().all(|(_, _, outcome)| outcome.is_ok()), "everything is confirmed");
    }
}

async fn consume(consumer: &impl BrokerConsumer, messages: usize) -> Outcome<()> {
    let mut left = messages;
    while left > 0 {
        let deliveries = consumer.receive(BATCH).await?;
        let tags: Vec<DeliveryTag> = deliveries.iter().map(|delivery| delivery.tag).collect();
        let outcomes = consumer.acknowledge(&tags).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, AckOutcome::Acknowledged)), "{outcomes:?}");
        left -= deliveries.len();
    }
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
    Publication { message: Arc::new(message), address: "orders".into(), headers: Arc::default(), seq, epoch: 1 }
}
