//! RabbitMQ.

use std::time::Instant;

use anyhow::ensure;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind};
use relevo_broker_rabbitmq::{Config, RabbitBroker};
use relevo_core::{Publication, wire};

const NAME: &str = "relevo-bench";
const PERSISTENT: u8 = 2;

pub(super) async fn open(url: &str) -> anyhow::Result<RabbitBroker> {
    Ok(RabbitBroker::open(Config { exchange: NAME.to_owned(), ..Config::new(url) }).await?)
}

pub(super) async fn empty(url: &str) -> anyhow::Result<()> {
    let channel = channel(url).await?;
    channel.queue_delete(NAME.into(), QueueDeleteOptions::default()).await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(NAME.into(), ExchangeKind::Topic, durable, FieldTable::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(NAME.into(), durable, arguments).await?;
    channel
        .queue_bind(NAME.into(), NAME.into(), "#".into(), QueueBindOptions::default(), FieldTable::default())
        .await?;
    Ok(())
}

pub(super) async fn alone(url: &str, batch: &[Publication], window: usize) -> anyhow::Result<f64> {
    let channel = channel(url).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let began = Instant::now();
    let mut confirms = FuturesUnordered::new();
    for publication in batch {
        if confirms.len() >= window
            && let Some(confirm) = confirms.next().await
        {
            ensure!(matches!(confirm?, Confirmation::Ack(None)), "a message was refused");
        }
        let mut headers = FieldTable::default();
        wire::for_each(publication, "/bench", |name, value| {
            headers.insert(name.into(), AMQPValue::LongString(value.into()));
        });
        let id = ShortString::from(publication.message.id.to_string());
        let properties =
            BasicProperties::default().with_delivery_mode(PERSISTENT).with_message_id(id).with_headers(headers);
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (NAME.into(), ShortString::from(&*publication.address));
        let payload = &publication.message.payload;
        confirms.push(channel.basic_publish(exchange, key, mandatory, payload, properties).await?);
    }
    while let Some(confirm) = confirms.next().await {
        ensure!(matches!(confirm?, Confirmation::Ack(None)), "a message was refused");
    }
    Ok(f64::from(u32::try_from(batch.len())?) / began.elapsed().as_secs_f64())
}

async fn channel(url: &str) -> anyhow::Result<Channel> {
    Ok(Connection::connect(url, ConnectionProperties::default()).await?.create_channel().await?)
}
