//! How fast a queue is emptied: this consumer beside the bare client library, in one run.
//!
//! `RELEVO_TEST_RABBITMQ_URL=amqp://… cargo run --release -p relevo-broker-rabbitmq --example consume_speed`

use std::time::Instant;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use relevo_broker_rabbitmq::{Config, Group, Membership, consumer};
use relevo_core::{AckOutcome, BrokerConsumer as _, DeliveryTag};

const MESSAGES: usize = 100_000;
const BYTES: usize = 300;
const PREFETCH: u16 = 500;
const GROUP: u64 = 50;
const QUEUE: &str = "relevo-consume-speed";

#[tokio::main]
#[expect(clippy::print_stdout, reason = "its output is what it is for")]
async fn main() {
    let url = std::env::var("RELEVO_TEST_RABBITMQ_URL").expect("`RELEVO_TEST_RABBITMQ_URL` names a server");
    let connection = Connection::connect(&url, ConnectionProperties::default()).await.expect("the server is there");
    let channel = connection.create_channel().await.expect("a channel");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    for round in 1..=2 {
        fill(&channel).await;
        let began = Instant::now();
        bare(&connection).await;
        let bare = rate(began);
        fill(&channel).await;
        let began = Instant::now();
        ours(&url).await;
        let ours = rate(began);
        println!("round {round}: bare {bare:.0}/s, relevo {ours:.0}/s, share {:.2}", ours / bare);
    }
    channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await.expect("deleted");
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(began: Instant) -> f64 {
    MESSAGES as f64 / began.elapsed().as_secs_f64()
}

async fn fill(channel: &Channel) {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(QUEUE.into(), options, table).await.expect("a queue");
    let payload = [b'x'; BYTES];
    let mut confirms = Vec::new();
    for _ in 0..MESSAGES {
        let properties = BasicProperties::default().with_delivery_mode(2);
        let sent = channel.basic_publish("".into(), QUEUE.into(), BasicPublishOptions::default(), &payload, properties);
        confirms.push(sent.await.expect("sent"));
        if confirms.len() == 5_000 {
            futures_util::future::join_all(confirms.drain(..)).await;
        }
    }
    futures_util::future::join_all(confirms).await;
}

async fn bare(connection: &Connection) {
    let channel = connection.create_channel().await.expect("a channel");
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.expect("a prefetch");
    let consumed =
        channel.basic_consume(QUEUE.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let mut deliveries = consumed.await.expect("a subscription");
    for _ in 0..MESSAGES {
        let delivery = deliveries.next().await.expect("a delivery").expect("a delivery");
        if delivery.delivery_tag % GROUP == 0 {
            channel.basic_ack(delivery.delivery_tag, BasicAckOptions { multiple: true }).await.expect("acknowledged");
        }
    }
    channel.close(200, "OK".into()).await.expect("closed");
}

async fn ours(url: &str) {
    let membership = Membership { prefetch: PREFETCH, ..Membership::default() };
    let consumer = consumer(&Config::new(url), &Group::new(QUEUE), membership).await.expect("a consumer");
    let mut settled = 0;
    while settled < MESSAGES {
        let some = consumer.receive(256).await.expect("deliveries");
        let tags: Vec<DeliveryTag> = some.iter().map(|one| one.tag).collect();
        let outcomes = consumer.acknowledge(&tags).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, AckOutcome::Acknowledged)), "{outcomes:?}");
        settled += some.len();
    }
    consumer.close().await.expect("closed");
}
