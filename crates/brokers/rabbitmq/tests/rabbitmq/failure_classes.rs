//! Provokes every failure class of RabbitMQ. `Transient` is not among them: RabbitMQ refuses a message for its content
//! (`Poison`), for its destination (`Blocked`, `Throttled`), or not at all.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use relevo_broker_rabbitmq::{Config, Publisher};
use relevo_conformance::broker::harness::{numbers, publication_to, publish, publish_all, with_message};
use relevo_core::broker::OutcomeReceiver;
use relevo_core::{Broker as _, Class, Publication};
use relevo_testkit::proxy::{CutProxy, Direction};
use relevo_testkit::rabbitmq::{Server, Vhost};

use crate::harness::AmqpClient;

/// A virtual host with the queue `orders`, and a proxy in front of it.
struct ProxiedServer {
    vhost: Vhost,
    client: AmqpClient,
    proxy: CutProxy,
}

impl ProxiedServer {
    async fn new() -> Self {
        let vhost = Server::shared().vhost().await;
        let client = AmqpClient::connect(&vhost.amqp_url()).await;
        client.quorum_queue("orders", &[]).await;
        let (_, server) = vhost.amqp_url().rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("a user");
        let address: SocketAddr = server.split('/').next().and_then(|host| host.parse().ok()).expect("an address");
        Self { proxy: CutProxy::start(address).await, vhost, client }
    }

    async fn broker(&self, confirm_deadline: Duration) -> Publisher {
        let url = format!("amqp://guest:guest@{}/{}", self.proxy.addr(), self.vhost.name());
        Publisher::open(Config { confirm_timeout: confirm_deadline, ..Config::new(url) })
            .await
            .expect("a valid configuration")
    }
}

const DEADLINE: Duration = Duration::from_secs(4);

/// Publishes until the message has this outcome.
async fn publish_until(broker: &Publisher, message: &Publication, expected: Option<Class>) {
    publish_all_until(broker, std::slice::from_ref(message), expected).await;
}

/// Publishes a batch until every message has this outcome.
async fn publish_all_until(broker: &Publisher, batch: &[Publication], expected: Option<Class>) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let outcomes = publish(broker, batch).await;
        if outcomes.iter().all(|outcome| *outcome == expected) {
            return;
        }
        assert!(Instant::now() < deadline, "{outcomes:?} instead of {expected:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn an_unreachable_broker_is_an_outage_and_recovers() {
    let line = ProxiedServer::new().await;
    line.proxy.block().await;
    let broker = line.broker(DEADLINE).await;
    let began = Instant::now();
    assert_eq!(publish(&broker, &[publication_to("orders", 1, "k")]).await, [Some(Class::Outage)]);
    assert!(began.elapsed() < 2 * DEADLINE, "{:?}", began.elapsed());
    let began = Instant::now();
    assert_eq!(publish(&broker, &[publication_to("orders", 2, "k")]).await, [Some(Class::Outage)]);
    assert!(began.elapsed() < DEADLINE, "a known outage is reported at once: {:?}", began.elapsed());
    line.proxy.unblock();
    publish_until(&broker, &publication_to("orders", 3, "k"), None).await;
    assert_eq!(numbers(&line.client.stored("orders").await), [3], "what was an outage was not sent");
}

#[tokio::test]
async fn a_lost_confirm_is_unknown_and_the_message_is_stored() {
    let line = ProxiedServer::new().await;
    let broker = line.broker(DEADLINE).await;
    publish_all(&broker, &[publication_to("orders", 1, "k")]).await;
    line.proxy.stall(Direction::ToClient);
    let (second, reports) = ([publication_to("orders", 2, "k")], OutcomeReceiver::default());
    let confirms = reports.sender(1);
    let cut = async {
        line.proxy.until_held(Direction::ToClient).await;
        line.proxy.cut().await;
        line.proxy.flow(Direction::ToClient);
    };
    tokio::join!(broker.publish(&second, &confirms), cut);
    let outcomes = reports.take();
    let (_, _, Err(failure)) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(failure.class(), Class::Unknown);
    assert_eq!(numbers(&line.client.stored("orders").await), [1, 2]);
    publish_until(&broker, &publication_to("orders", 3, "k"), None).await;
}

#[tokio::test]
async fn a_late_confirm_is_unknown() {
    let line = ProxiedServer::new().await;
    let deadline = Duration::from_secs(2);
    let broker = line.broker(deadline).await;
    // On a busy machine, even a successful confirm may be late.
    publish_until(&broker, &publication_to("orders", 1, "k"), None).await;
    line.proxy.stall(Direction::ToClient);
    let began = Instant::now();
    assert_eq!(publish(&broker, &[publication_to("orders", 2, "k")]).await, [Some(Class::Unknown)]);
    assert!(began.elapsed() < 10 * deadline, "{:?}", began.elapsed());
    // One message at a time tests whether confirms arrive again; the others were not sent.
    let batch = [publication_to("orders", 3, "a"), publication_to("orders", 4, "b")];
    assert_eq!(publish(&broker, &batch).await, [Some(Class::Unknown), Some(Class::Outage)]);
    line.proxy.flow(Direction::ToClient);
    publish_until(&broker, &publication_to("orders", 5, "k"), None).await;
    publish_all_until(&broker, &[publication_to("orders", 6, "a"), publication_to("orders", 7, "b")], None).await;
}

/// A cancelled call is removed: it neither fills the channel nor affects later messages.
#[tokio::test]
async fn abandoned_calls_leave_nothing_behind() {
    let line = ProxiedServer::new().await;
    let url = format!("amqp://guest:guest@{}/{}", line.proxy.addr(), line.vhost.name());
    let config = Config { in_flight_max: 100, ..Config::new(url) };
    let broker = Publisher::open(config).await.expect("a valid configuration");
    publish_all(&broker, &[publication_to("orders", 1, "k")]).await;
    line.proxy.stall(Direction::ToClient);
    for call in 0..10 {
        let reports = OutcomeReceiver::default();
        let batch: Vec<Publication> =
            (0..50).map(|number| publication_to("orders", 100 + call * 50 + number, "k")).collect();
        let confirms = reports.sender(1);
        let cancelled = tokio::time::timeout(Duration::from_millis(50), broker.publish(&batch, &confirms)).await;
        assert!(cancelled.is_err() && reports.take().is_empty());
    }
    line.proxy.flow(Direction::ToClient);
    publish_until(&broker, &publication_to("orders", 2, "k"), None).await;
    let stored = numbers(&line.client.stored("orders").await);
    assert!(stored.len() <= 102, "messages of a cancelled call were sent later: {}", stored.len());
    assert_eq!((stored.first(), stored.last()), (Some(&1), Some(&2)));
}

#[tokio::test]
async fn a_full_queue_is_throttled_until_it_has_space() {
    let line = ProxiedServer::new().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(2));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    line.client.channel.queue_declare("small".into(), durable, arguments).await.expect("a queue");
    let broker = line.broker(DEADLINE).await;
    let batch: Vec<Publication> = (1..=4).map(|number| publication_to("small", number, "k")).collect();
    let throttled = Some(Class::Throttled(Duration::from_secs(1)));
    assert_eq!(publish(&broker, &batch).await, [None, None, throttled, throttled]);
    assert_eq!(line.client.take_all("small").await.len(), 2);
    publish_until(&broker, &publication_to("small", 5, "k"), None).await;
}

#[tokio::test]
async fn a_message_that_can_never_be_sent_is_poison() {
    let line = ProxiedServer::new().await;
    let broker = line.broker(DEADLINE).await;
    let large =
        with_message(&publication_to("orders", 1, "k"), |message| message.payload = vec![0; (16 << 20) + 1].into());
    assert_eq!(publish(&broker, &[large, publication_to("orders", 2, "k")]).await, [Some(Class::Poison), None]);
}

#[tokio::test]
async fn an_unbound_address_is_blocked_and_reported_by_name() {
    let line = ProxiedServer::new().await;
    let broker = line.broker(DEADLINE).await;
    let reports = OutcomeReceiver::default();
    broker
        .publish(&[publication_to("amq.topic/orders.eu", 1, "k"), publication_to("orders", 2, "k")], &reports.sender(1))
        .await;
    let mut outcomes = reports.take();
    outcomes.sort_by_key(|(_, index, _)| *index);
    let (_, _, Err(failure)) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(failure.class(), Class::Blocked);
    let expected = "no queue is bound to exchange `amq.topic` for the routing key `orders.eu`";
    assert_eq!(failure.error_chain(), expected);
    assert!(outcomes[1].2.is_ok());
}
