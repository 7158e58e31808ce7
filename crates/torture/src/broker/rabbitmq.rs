//! RabbitMQ, read only with its client library: the oracle does not use the tested adapter.

use anyhow::{Context as _, Result, ensure};
use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use relevo_testkit::proxy::CutProxy;
use relevo_testkit::rabbitmq::Private;

use crate::consumers::{Group, LANES};
use crate::oracle::StoredMessage;

const EXCHANGE: &str = "torture";
const QUEUE: &str = "oracle";
const PREFETCH: u16 = 1000;

/// A server, and the proxy between it and the relays.
pub(crate) struct RabbitMq {
    pub(super) server: Private,
    pub(super) proxy: CutProxy,
}

impl RabbitMq {
    pub(super) async fn start() -> Result<Self> {
        let server = Private::start().await;
        let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
        let broker = Self { server, proxy };
        let channel = broker.channel().await?;
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, FieldTable::default()).await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(QUEUE.into(), durable, arguments).await?;
        let all = QueueBindOptions::default();
        channel.queue_bind(QUEUE.into(), EXCHANGE.into(), "#".into(), all, FieldTable::default()).await?;
        Ok(broker)
    }

    pub(super) fn config(&self, destination: &str) -> String {
        let url = self.url();
        format!(
            "[outboxes.torture.destinations.{destination}]\n\
             [outboxes.torture.destinations.{destination}.broker]\nkind = \"rabbitmq\"\nurls = [{url:?}]\n\
             exchange = \"{EXCHANGE}\"\nlanes = {LANES}\nconfirm_timeout = \"1s\"\nheartbeat = \"2s\"\n"
        )
    }

    /// The URL through the proxy.
    pub(super) fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.proxy.addr())
    }

    pub(super) async fn stored_messages(&self) -> Result<Vec<StoredMessage>> {
        let channel = self.channel().await?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(QUEUE.into(), passive, FieldTable::default()).await?;
        let count = queue.message_count() as usize;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let mut consumer = channel.basic_consume(QUEUE.into(), "oracle".into(), options, FieldTable::default()).await?;
        let mut stored_messages = Vec::with_capacity(count);
        while stored_messages.len() < count {
            let delivery = consumer.next().await.context("the oracle's consumer ended")??;
            let headers = delivery.properties.headers().as_ref();
            let key = headers.and_then(|headers| match headers.inner().get("ce-partitionkey") {
                Some(AMQPValue::LongString(key)) => Some(key.to_string()),
                _ => None,
            });
            stored_messages.push(super::stored_message(key, &delivery.data)?);
            if stored_messages.len() % usize::from(PREFETCH / 2) == 0 || stored_messages.len() == count {
                let acked = delivery.acker.ack(BasicAckOptions { multiple: true }).await?;
                ensure!(acked, "the oracle lost its channel");
            }
        }
        Ok(stored_messages)
    }

    async fn channel(&self) -> Result<Channel> {
        let connection = Connection::connect(&self.server.amqp_url(), ConnectionProperties::default()).await?;
        Ok(connection.create_channel().await?)
    }
}

/// The queue of a group at this server.
pub(super) fn spec(url: &str, group: Group) -> String {
    format!("{url}#{}?exchange={EXCHANGE}", group.name)
}
