//! RabbitMQ as the suites see it, and what other tests do at a server beside the adapter.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use lapin::message::BasicGetMessage;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicNackOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use relevo_broker_rabbitmq::{Config, RabbitBroker};
use relevo_conformance::broker::harness::{ADDRESS, BrokerHarness, Promises};
use relevo_core::Raw;
use relevo_testkit::rabbitmq::{Private, Server, Vhost};

/// A virtual host of one case's own.
pub(crate) struct Rabbit {
    vhost: Vhost,
    /// Only a case that kills its server has one of its own.
    private: Option<Private>,
}

pub(crate) async fn start() -> Rabbit {
    // The thread of a test has its name; a server takes seconds to start, and one case of many kills it.
    let crashes = std::thread::current().name().is_some_and(|name| name.contains("crash"));
    let private = if crashes { Some(Private::start().await) } else { None };
    let vhost = match &private {
        Some(server) => server.vhost().await,
        None => Server::shared().vhost().await,
    };
    let rabbit = Rabbit { vhost, private };
    let side = Side::of(&rabbit.vhost.amqp_url()).await;
    for queue in [ADDRESS, "archive"] {
        side.quorum_queue(queue, &[]).await;
    }
    if crashes {
        // A quorum queue that is killed within its first moments may come back empty, and nothing tells when it is safe.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    rabbit
}

#[async_trait]
impl BrokerHarness for Rabbit {
    type Broker = RabbitBroker;

    async fn broker(&self) -> RabbitBroker {
        let config = Config { message_bytes_max: 1 << 20, ..Config::new(self.vhost.amqp_url()) };
        RabbitBroker::open(config).await.expect("a configuration that works")
    }

    async fn kept(&self, address: &str) -> Vec<Raw> {
        Side::of(&self.vhost.amqp_url()).await.kept(address).await
    }

    async fn crash(&mut self) {
        let server = self.private.as_ref().expect("a case that crashes the server has one of its own");
        server.kill9().await;
        server.start_again().await;
    }

    fn promises(&self) -> Promises {
        Promises { survives_crash: true, recognises_repeats: false }
    }
}

/// Another connection to the same server, with the client library alone.
pub(crate) struct Side {
    _connection: Connection,
    pub(crate) channel: Channel,
}

impl Side {
    pub(crate) async fn of(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.expect("the server is there");
        let channel = connection.create_channel().await.expect("a channel");
        Self { _connection: connection, channel }
    }

    /// Makes a durable quorum queue with these arguments beside its type.
    pub(crate) async fn quorum_queue(&self, name: &str, arguments: &[(&str, AMQPValue)]) {
        let mut table = FieldTable::default();
        table.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(name.into(), options, table).await.expect("a queue");
    }

    /// Everything that a queue holds, in order; it stays there.
    pub(crate) async fn kept(&self, queue: &str) -> Vec<Raw> {
        let mut kept = Vec::new();
        let mut last = None;
        while let Some(message) = self.get(queue).await {
            last = Some(message.delivery.delivery_tag);
            kept.push(raw(&message));
        }
        if let Some(tag) = last {
            let options = BasicNackOptions { multiple: true, requeue: true };
            self.channel.basic_nack(tag, options).await.expect("given back");
        }
        kept
    }

    /// How many messages a queue holds, taking them all.
    pub(crate) async fn take_all(&self, queue: &str) -> Vec<Raw> {
        let mut taken = Vec::new();
        while let Some(message) = self.get(queue).await {
            message.delivery.acker.ack(BasicAckOptions::default()).await.expect("acknowledged");
            taken.push(raw(&message));
        }
        taken
    }

    async fn get(&self, queue: &str) -> Option<BasicGetMessage> {
        self.channel.basic_get(queue.into(), BasicGetOptions::default()).await.expect("the queue is there")
    }
}

fn raw(message: &BasicGetMessage) -> Raw {
    let headers = message.delivery.properties.headers().clone().unwrap_or_default();
    let headers = headers.inner().iter().filter_map(|(name, value)| match value {
        AMQPValue::LongString(value) => Some((name.to_string(), Bytes::copy_from_slice(value.as_bytes()))),
        _ => None,
    });
    Raw { headers: headers.collect(), payload: Bytes::copy_from_slice(&message.delivery.data) }
}
