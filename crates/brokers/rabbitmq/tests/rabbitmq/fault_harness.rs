//! The RabbitMQ harness for the fault suite: behind a proxy, with a private server where needed.

use std::time::Duration;

use async_trait::async_trait;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use relevo_broker_rabbitmq::{Config, Publisher};
use relevo_conformance::broker::faults::{Fault, FaultHarness};
use relevo_conformance::broker::harness::{ADDRESS, BrokerHarness, Guarantees, within_timeout};
use relevo_core::RawMessage;
use relevo_testkit::proxy::{CutProxy, Direction};
use relevo_testkit::rabbitmq::{Private, Server, Vhost};

use crate::harness::AmqpClient;

/// The length limit of the queue that a case fills: more than half of the messages.
const QUEUE_LENGTH_MAX: u32 = 1_600;

pub(crate) struct FaultyServer {
    vhost: Vhost,
    /// Only a case that damages the server itself has a private one.
    private: Option<Private>,
    proxy: CutProxy,
    /// Messages that were taken from the queue to make room.
    consumed: Vec<RawMessage>,
}

pub(crate) async fn start() -> FaultyServer {
    // The thread of a test has the name of the test. A server takes seconds to start.
    let named = |part| std::thread::current().name().is_some_and(|name| name.contains(part));
    let harms_server = ["a_server_that_is", "a_server_short_of"].into_iter().any(named);
    let private = if harms_server { Some(Private::start().await) } else { None };
    let (vhost, port) = match &private {
        Some(server) => (server.vhost().await, server.port()),
        None => (Server::shared().vhost().await, port_of(Server::shared().amqp_url())),
    };
    let full =
        [("x-max-length", AMQPValue::LongLongInt(QUEUE_LENGTH_MAX.into())), ("x-overflow", text("reject-publish"))];
    let arguments: &[_] = if named("full") { &full } else { &[] };
    AmqpClient::connect(&vhost.amqp_url()).await.quorum_queue(ADDRESS, arguments).await;
    if harms_server {
        // A quorum queue that is killed soon after its creation may be empty after a restart. Nothing reports when it
        // is safe.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let proxy = CutProxy::start(([127, 0, 0, 1], port).into()).await;
    FaultyServer { vhost, private, proxy, consumed: Vec::new() }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn port_of(url: &str) -> u16 {
    let after_host = url.rsplit(':').next().expect("a URL with a port");
    after_host.split('/').next().and_then(|port| port.parse().ok()).expect("a port")
}

impl FaultyServer {
    fn server(&self) -> &Private {
        self.private.as_ref().expect("a case that harms the server has one of its own")
    }

    /// Waits until the queue accepts no more messages.
    async fn wait_until_full(&self) {
        let client = AmqpClient::connect(&self.vhost.amqp_url()).await;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        loop {
            let queue = client.channel.queue_declare(ADDRESS.into(), passive, FieldTable::default()).await;
            if queue.expect("the queue exists").message_count() >= QUEUE_LENGTH_MAX {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[async_trait]
impl BrokerHarness for FaultyServer {
    type Broker = Publisher;

    async fn broker(&self) -> Publisher {
        Publisher::open(Config::new(self.vhost.amqp_url())).await.expect("a valid configuration")
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        let rest = AmqpClient::connect(&self.vhost.amqp_url()).await.stored(address).await;
        self.consumed.iter().cloned().chain(rest).collect()
    }

    async fn kill_and_restart(&mut self) {
        self.server().kill9().await;
        self.server().start_again().await;
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { survives_crash: true, deduplicates: false }
    }
}

#[async_trait]
impl FaultHarness for FaultyServer {
    async fn publisher_through_proxy(&self) -> Publisher {
        let url = format!("amqp://guest:guest@{}/{}", self.proxy.addr(), self.vhost.name());
        let second = Duration::from_secs(1);
        let config = Config { heartbeat: second, connect_timeout: second, confirm_timeout: second, ..Config::new(url) };
        Publisher::open(config).await.expect("a valid configuration")
    }

    async fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Suspended => self.server().pause().await,
            Fault::Killed => self.server().kill9().await,
            Fault::ConnectionsCut => self.proxy.cut().await,
            Fault::Unreachable => self.proxy.block().await,
            Fault::ResponsesLost => self.proxy.stall(Direction::ToClient),
            Fault::Slow => {
                self.proxy.delay(Duration::from_millis(20));
                self.proxy.throttle(50_000);
            }
            Fault::Full => within_timeout(self.wait_until_full()).await,
            Fault::MemoryAlarm => self.server().memory_alarm(true).await,
            Fault::DiskAlarm => self.server().disk_alarm(true).await,
        }
    }

    async fn clear(&mut self, fault: Fault) {
        match fault {
            Fault::Suspended => self.server().resume().await,
            Fault::Killed => self.server().start_again().await,
            Fault::ConnectionsCut => {}
            Fault::Unreachable => self.proxy.unblock(),
            Fault::ResponsesLost => {
                self.proxy.cut().await;
                self.proxy.flow(Direction::ToClient);
            }
            Fault::Slow => {
                self.proxy.delay(Duration::ZERO);
                self.proxy.unthrottle();
            }
            Fault::Full => self.consumed = AmqpClient::connect(&self.vhost.amqp_url()).await.take_all(ADDRESS).await,
            Fault::MemoryAlarm => self.server().memory_alarm(false).await,
            Fault::DiskAlarm => self.server().disk_alarm(false).await,
        }
    }
}
