//! RabbitMQ, with Relevo and with its client library alone.

use anyhow::ensure;
use async_trait::async_trait;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind};
use relevo_broker_rabbitmq::{Config, ConsumerOptions, GroupConsumer, Publisher, Queue};
use relevo_core::{Publication, wire};

use super::alone::{Client, Confirm};

const NAME: &str = "relevo-bench";
const PERSISTENT: u8 = 2;

pub(super) async fn open(url: &str) -> anyhow::Result<Publisher> {
    Ok(Publisher::open(Config { exchange: NAME.to_owned(), ..Config::new(url) }).await?)
}

pub(super) async fn consumer(url: &str) -> anyhow::Result<GroupConsumer> {
    let queue = Queue { retry_delays: Vec::new(), ..Queue::new(NAME) };
    Ok(GroupConsumer::open(&Config::new(url), &queue, ConsumerOptions::default()).await?)
}

pub(super) async fn empty(url: &str) -> anyhow::Result<()> {
    let channel = channel(url).await?;
    channel.queue_delete(NAME.into(), QueueDeleteOptions::default()).await?;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare(NAME.into(), ExchangeKind::Topic, durable, FieldTable::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    // Costs publishers nothing, and keeps the order for consumers.
    arguments.insert("x-single-active-consumer".into(), AMQPValue::Boolean(true));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(NAME.into(), durable, arguments).await?;
    channel
        .queue_bind(NAME.into(), NAME.into(), "#".into(), QueueBindOptions::default(), FieldTable::default())
        .await?;
    Ok(())
}

/// The client library, on one channel with publisher confirms.
pub(super) async fn client(url: &str) -> anyhow::Result<Channel> {
    let channel = channel(url).await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

#[async_trait]
impl Client for Channel {
    async fn send(&self, publication: &Publication) -> anyhow::Result<Confirm> {
        let mut headers = FieldTable::default();
        wire::for_each(publication, "/bench", |name, value| {
            headers.insert(name.into(), AMQPValue::LongString(value.into()));
        });
        let id = ShortString::from(publication.message.id.to_string());
        let properties =
            BasicProperties::default().with_delivery_mode(PERSISTENT).with_message_id(id).with_headers(headers);
        let mandatory = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (NAME.into(), ShortString::from(&*publication.address));
        let confirm = self.basic_publish(exchange, key, mandatory, &publication.message.payload, properties).await?;
        Ok(Box::pin(async {
            ensure!(matches!(confirm.await?, Confirmation::Ack(None)), "a message was refused");
            Ok(())
        }))
    }
}

async fn channel(url: &str) -> anyhow::Result<Channel> {
    Ok(Connection::connect(url, ConnectionProperties::default()).await?.create_channel().await?)
}
