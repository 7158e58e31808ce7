//! The RabbitMQ harness for the consumer suite: a group of four lanes with retry queues.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, ExchangeKind};
use relevo_broker_rabbitmq::{
    Config, ConsumerOptions, GroupConsumer, Publisher, Queue, lane_queue_name, lane_routing_key,
};
use relevo_conformance::broker::harness::{BrokerHarness, ConsumerHarness, Guarantees, stale_of, within_timeout};
use relevo_core::message::Headers;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Failure, Lane, RawMessage,
};
use relevo_testkit::proxy::CutProxy;
use relevo_testkit::rabbitmq::{Private, Server, Vhost};

use crate::harness::AmqpClient;

pub(crate) const EXCHANGE: &str = "shop";
pub(crate) const LANES: u16 = 4;
/// The queue for messages that no group receives.
const UNMATCHED_QUEUE: &str = "rest";

/// This case kills its server, so it has a private one, which takes seconds to start.
const CRASHING: &str = "an_unacknowledged_message_is_redelivered_after_a_crash";

/// A virtual host for one test.
pub(crate) struct Groups {
    pub(crate) vhost: Vhost,
    pub(crate) private: Option<Private>,
    /// The delays of the retry queues.
    pub(crate) retry_delays: Vec<Duration>,
}

pub(crate) async fn start() -> Groups {
    // The thread of a test has the name of the test.
    let crashes = std::thread::current().name().is_some_and(|name| name.contains(CRASHING));
    if crashes { Groups::private(Private::start().await).await } else { Groups::shared().await }
}

impl Groups {
    /// On the server that all tests share.
    pub(crate) async fn shared() -> Self {
        Self::new(Server::shared().vhost().await, None).await
    }

    /// On a private server, which the test may damage.
    pub(crate) async fn private(server: Private) -> Self {
        Self::new(server.vhost().await, Some(server)).await
    }

    async fn new(vhost: Vhost, private: Option<Private>) -> Self {
        // A restart of the server and checks on a busy machine take time; no delay may end in the meantime.
        let longest = if private.is_some() { Duration::from_secs(40) } else { Duration::from_secs(6) };
        let groups = Self { vhost, private, retry_delays: vec![Duration::from_millis(100), longest] };
        let client = groups.client().await;
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let declared =
            client.channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, options, FieldTable::default());
        declared.await.expect("an exchange");
        client.quorum_queue(UNMATCHED_QUEUE, &[]).await;
        client.bind(UNMATCHED_QUEUE, "#").await;
        groups
    }

    pub(crate) async fn client(&self) -> AmqpClient {
        AmqpClient::connect(&self.vhost.amqp_url()).await
    }

    pub(crate) fn config(&self) -> Config {
        config_at(self.vhost.amqp_url())
    }

    pub(crate) fn queue(&self, name: &str) -> Queue {
        Queue { lanes: Some(LANES), retry_delays: self.retry_delays.clone(), ..Queue::new(name) }
    }

    /// Creates a queue with its retry and dead-letter queues, bound to an address.
    pub(crate) async fn declare(&self, queue: &Queue, address: &str) {
        let client = self.client().await;
        for declared in queue.declarations() {
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            let mut table = FieldTable::default();
            for (name, value) in &declared.arguments {
                table.insert(name.as_str().into(), amqp_value(value));
            }
            client.channel.queue_declare(declared.name.as_str().into(), options, table).await.expect("a queue");
        }
        match queue.lanes {
            None => client.bind(&queue.name, address).await,
            Some(lanes) => {
                for lane in 0..lanes {
                    client.bind(&lane_queue_name(&queue.name, lane), &lane_routing_key(address, lane)).await;
                }
            }
        }
        if self.private.is_some() {
            // A quorum queue that is killed soon after its creation may be empty after a restart. Nothing reports when
            // it is safe.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    }

    /// A consumer with its own proxy.
    pub(crate) async fn member(&self, queue: &Queue, membership: ConsumerOptions) -> Member {
        self.member_with(queue, membership, |_| {}).await
    }

    /// The same with other settings.
    pub(crate) async fn member_with(
        &self,
        queue: &Queue,
        membership: ConsumerOptions,
        change: impl FnOnce(&mut Config),
    ) -> Member {
        let url = self.vhost.amqp_url();
        let authority = url.rsplit_once('@').expect("a URL with a login").1;
        let upstream: SocketAddr = authority.split('/').next().expect("a host").parse().expect("an address");
        let proxy = CutProxy::start(upstream).await;
        let mut config = config_at(url.replace(&upstream.to_string(), &proxy.addr().to_string()));
        change(&mut config);
        let consumer = GroupConsumer::open(&config, queue, membership).await.expect("a consumer");
        Member { consumer, proxy, queue: first_queue(queue), disconnected: AtomicBool::new(false) }
    }

    /// Disconnects a member. Returns when both the broker and the member know it.
    pub(crate) async fn disconnect(&self, member: &Member) {
        if member.disconnected.swap(true, Ordering::Relaxed) {
            return;
        }
        let client = self.client().await;
        let before = client.consumers(&member.queue).await;
        member.proxy.block().await;
        let mut deadline = WaitDeadline::new("broker and consumer know it");
        while client.consumers(&member.queue).await >= before || member.consumer.is_connected() {
            deadline.wait().await;
        }
    }
}

fn config_at(url: String) -> Config {
    Config { exchange: EXCHANGE.to_owned(), lanes: Some(LANES), ..Config::new(url) }
}

fn first_queue(queue: &Queue) -> String {
    if queue.lanes.is_some() { lane_queue_name(&queue.name, 0) } else { queue.name.clone() }
}

/// Polls with a deadline.
pub(crate) struct WaitDeadline {
    condition: &'static str,
    deadline: Instant,
}

impl WaitDeadline {
    pub(crate) fn new(condition: &'static str) -> Self {
        Self { condition, deadline: Instant::now() + Duration::from_secs(30) }
    }

    pub(crate) async fn wait(&mut self) {
        assert!(Instant::now() < self.deadline, "timed out: {}", self.condition);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn amqp_value(value: &serde_json::Value) -> AMQPValue {
    match value {
        serde_json::Value::Bool(value) => AMQPValue::Boolean(*value),
        serde_json::Value::Number(number) => AMQPValue::LongLongInt(number.as_i64().expect("a whole number")),
        serde_json::Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        other => panic!("not a queue argument: {other}"),
    }
}

impl AmqpClient {
    pub(crate) async fn bind(&self, queue: &str, key: &str) {
        let options = QueueBindOptions::default();
        let bound = self.channel.queue_bind(queue.into(), EXCHANGE.into(), key.into(), options, FieldTable::default());
        bound.await.expect("a binding");
    }

    /// The number of consumers of a queue.
    pub(crate) async fn consumers(&self, queue: &str) -> u32 {
        self.declare_passive(queue).await.consumer_count()
    }

    /// The number of ready messages in a queue.
    pub(crate) async fn ready(&self, queue: &str) -> u32 {
        self.declare_passive(queue).await.message_count()
    }

    async fn declare_passive(&self, queue: &str) -> lapin::Queue {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(queue.into(), options, FieldTable::default()).await.expect("the queue exists")
    }

    /// Publishes a message and waits for its confirm.
    pub(crate) async fn publish(&self, exchange: &str, key: &str, properties: BasicProperties, payload: &[u8]) {
        self.channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = self.channel.basic_publish(exchange.into(), key.into(), options, payload, properties).await;
        let confirmed = sent.expect("sent").await.expect("a response");
        assert!(matches!(confirmed, lapin::Confirmation::Ack(None)), "{confirmed:?}");
    }
}

/// A consumer and its proxy.
pub(crate) struct Member {
    pub(crate) consumer: GroupConsumer,
    pub(crate) proxy: CutProxy,
    queue: String,
    disconnected: AtomicBool,
}

#[async_trait]
impl BrokerConsumer for Member {
    fn capabilities(&self) -> ConsumerCapabilities {
        self.consumer.capabilities()
    }

    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        self.consumer.delayed_retry()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        self.consumer.receive(limit).await
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        self.consumer.acknowledge(tags).await
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.consumer.pause(lane).await
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.consumer.resume(lane).await
    }

    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        self.consumer.lag().await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.consumer.close().await
    }
}

#[async_trait]
impl BrokerHarness for Groups {
    type Broker = Publisher;

    async fn broker(&self) -> Publisher {
        Publisher::open(self.config()).await.expect("a valid configuration")
    }

    async fn stored(&self, address: &str) -> Vec<RawMessage> {
        let mut stored = self.client().await.stored(UNMATCHED_QUEUE).await;
        stored.retain(|raw| raw.decode().is_ok_and(|received| &*received.message.topic == address));
        stored
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

#[async_trait]
impl ConsumerHarness for Groups {
    type Consumer = Member;

    async fn group(&self, name: &str, address: &str) {
        self.declare(&self.queue(name), address).await;
    }

    async fn consumer(&self, group: &str, prefetch: usize) -> Member {
        self.member(&self.queue(group), ConsumerOptions { prefetch, ..ConsumerOptions::default() }).await
    }

    async fn kill(&self, consumer: Member) {
        self.disconnect(&consumer).await;
    }

    /// The consumer loses its connection and cannot reconnect. The caller that handles its deliveries does not know it.
    async fn suspend_past_lease(&self, consumer: &Member) {
        self.disconnect(consumer).await;
    }

    async fn publish_raw(&self, address: &str, headers: &Headers, payload: Bytes) {
        let mut table = FieldTable::default();
        for (name, value) in headers {
            table.insert(name.as_str().into(), AMQPValue::LongString(value.as_str().into()));
        }
        let properties = BasicProperties::default().with_headers(table);
        self.client().await.publish(EXCHANGE, &lane_routing_key(address, 0), properties, &payload).await;
    }

    /// RabbitMQ does not report when an acknowledgement is on disk. A broker that was killed just after it had
    /// processed an acknowledgement has redelivered the message.
    fn acks_survive_crash(&self) -> bool {
        false
    }
}

/// Requests retries. Returns the stale tags, or the first failure.
pub(crate) async fn retry(
    consumer: &impl BrokerConsumer,
    tags: &[DeliveryTag],
    after: Duration,
) -> Result<Vec<DeliveryTag>, Failure> {
    let retries: Vec<(DeliveryTag, Duration)> = tags.iter().map(|tag| (*tag, after)).collect();
    let broker = consumer.delayed_retry().expect("RabbitMQ has delayed retries");
    stale_of(tags.iter().copied(), within_timeout(broker.retry_later(&retries)).await)
}
