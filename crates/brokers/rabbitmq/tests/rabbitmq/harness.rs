//! The RabbitMQ harness for the suites, and direct access to the server for other tests.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use relevo_broker_rabbitmq::{Config, Publisher};
use relevo_conformance::broker::harness::{ADDRESS, BrokerHarness, Guarantees, MESSAGE_BYTES_MAX};
use relevo_core::RawMessage;
use relevo_testkit::rabbitmq::{Private, Server, Vhost};

/// A virtual host for one test case.
pub(crate) struct Rabbit {
    vhost: Vhost,
    /// Only a case that kills its server has a private one.
    private: Option<Private>,
}

pub(crate) async fn start() -> Rabbit {
    // The thread of a test has the name of the test. A server takes seconds to start, and only one case kills it.
    let crashes = std::thread::current().name().is_some_and(|name| name.contains("crash"));
    let private = if crashes { Some(Private::start().await) } else { None };
    let vhost = match &private {
        Some(server) => server.vhost().await,
        None => Server::shared().vhost().await,
    };
    let rabbit = Rabbit { vhost, private };
    let client = AmqpClient::connect(&rabbit.vhost.amqp_url()).await;
    for queue in [ADDRESS, "archive"] {
        client.quorum_queue(queue, &[]).await;
    }
    if crashes {
        // A quorum queue that is killed soon after its creation may be empty after a restart. Nothing reports when it
        // is safe.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    rabbit
}

#[async_trait]
impl BrokerHarness for Rabbit {
    type Broker = Publisher;

    async fn broker(&self) -> Publisher {
        let config = Config { message_size_max: MESSAGE_BYTES_MAX, ..Config::new(self.vhost.amqp_url()) };
        Publisher::open(config).await.expect("a valid configuration")
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        AmqpClient::connect(&self.vhost.amqp_url()).await.stored(address).await
    }

    async fn kill_and_restart(&mut self) {
        let server = self.private.as_ref().expect("a case that crashes the server has one of its own");
        server.kill9().await;
        server.start_again().await;
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { survives_crash: true, deduplicates: false }
    }
}

/// Another connection to the same server, with the plain client library.
pub(crate) struct AmqpClient {
    _connection: Connection,
    pub(crate) channel: Channel,
}

impl AmqpClient {
    pub(crate) async fn connect(url: &str) -> Self {
        let connection =
            Connection::connect(url, ConnectionProperties::default()).await.expect("the server is reachable");
        let channel = connection.create_channel().await.expect("a channel");
        Self { _connection: connection, channel }
    }

    /// Creates a durable quorum queue with these additional arguments.
    pub(crate) async fn quorum_queue(&self, name: &str, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        table.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(name.into(), options, table).await.expect("a queue");
    }

    /// All messages of a queue, in order; they stay in the queue.
    pub(crate) async fn stored(&self, queue: &str) -> Vec<RawMessage> {
        let mut stored = Vec::new();
        let mut last = None;
        while let Some(message) = self.get(queue).await {
            last = Some(message.delivery.delivery_tag);
            stored.push(raw_message(&message));
        }
        if let Some(tag) = last {
            let options = BasicNackOptions { multiple: true, requeue: true };
            self.channel.basic_nack(tag, options).await.expect("requeued");
        }
        stored
    }

    /// Takes all messages from a queue.
    pub(crate) async fn take_all(&self, queue: &str) -> Vec<RawMessage> {
        let mut taken = Vec::new();
        while let Some(message) = self.get(queue).await {
            message.delivery.acker.ack(BasicAckOptions::default()).await.expect("acknowledged");
            taken.push(raw_message(&message));
        }
        taken
    }

    async fn get(&self, queue: &str) -> Option<BasicGetMessage> {
        self.channel.basic_get(queue.into(), BasicGetOptions::default()).await.expect("the queue exists")
    }
}

fn raw_message(message: &BasicGetMessage) -> RawMessage {
    let headers = message.delivery.properties.headers().clone().unwrap_or_default();
    let headers = headers.inner().iter().filter_map(|(name, value)| match value {
        AMQPValue::LongString(value) => Some((name.to_string(), Bytes::copy_from_slice(value.as_bytes()))),
        _ => None,
    });
    RawMessage { headers: headers.collect(), payload: Bytes::copy_from_slice(&message.delivery.data) }
}
