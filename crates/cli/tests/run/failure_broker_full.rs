//! Rows of the table in docs/reference/failures.md that are about a full broker.

use async_nats::jetstream::stream;
use lapin::types::AMQPValue;
use relevo_testkit::NatsVersion;
use relevo_testkit::nats;
use relevo_testkit::rabbitmq::{Private, Server};

use crate::broker_messages::{assert_in_order, declare_queue, jetstream, stored_in, take_from_queue};
use crate::daemon::{Daemon, until};
use crate::failure::metric;
use crate::nats::{at, route};
use crate::test_outbox::TestOutbox;

/// One address, whose queue the default exchange knows by name.
const ROUTE: &str = "[[outboxes.shop.destinations.main.routes]]\naddress = \"orders\"\n";
const THROTTLED: &str =
    "outbox_publish_failures_total{service=\"relevo\",outbox=\"shop\",destination=\"main\",class=\"throttled\"}";

/// Numbers of one key, so that they arrive in order.
async fn emit(shop: &TestOutbox, numbers: std::ops::RangeInclusive<i64>) {
    let (first, last) = numbers.into_inner();
    let sql = format!(
        "SELECT relevo.emit('orders', 'one', 'Happened', jsonb_build_object('n', n)) FROM generate_series({first}, {last}) n"
    );
    shop.run(&sql).await;
}

/// Ten of thirty are published, and the rest waits for an address that is held.
fn is_held(daemon: &Daemon) {
    until("the address is held", || metric(daemon, "outbox_held_addresses") == Some(1));
    until("the rest waits", || metric(daemon, "outbox_pending_total") == Some(20));
    assert!(daemon.metric(THROTTLED) >= Some(1), "{}", daemon.get("/metrics").1);
    assert_eq!(metric(daemon, "outbox_published_total"), Some(10));
    assert_eq!((daemon.metric("outbox_broker_up{"), daemon.get("/readyz").0), (Some(1), 200), "it is no outage");
}

/// Everything is published, and no attempt is counted.
fn is_free(daemon: &Daemon) {
    TestOutbox::taken(daemon, "main", 30);
    for name in ["outbox_held_addresses", "outbox_pending_total"] {
        until(name, || metric(daemon, name) == Some(0));
    }
    for never in ["outbox_retry_total", "outbox_failed_permanent_total"] {
        assert_eq!(metric(daemon, never), Some(0), "{never}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_or_stream_is_held_and_goes_on_when_there_is_room() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let full = AMQPValue::LongString("reject-publish".into());
    declare_queue(&vhost.amqp_url(), "orders", &[("x-max-length", AMQPValue::LongInt(10)), ("x-overflow", full)]).await;
    let broker = format!("kind = \"rabbitmq\"\nurls = [\"{}\"]\n", vhost.amqp_url());
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], ROUTE), &[]);
    emit(&shop, 1..=30).await;
    is_held(&daemon);
    let taken = take_from_queue(&vhost.amqp_url(), "orders", 30).await;
    is_free(&daemon);
    daemon.stop();
    assert_in_order(&taken, 1..=30);

    let (shop, server, name) =
        (TestOutbox::new().await, nats::Server::shared(NatsVersion::V2_15), nats::unique("shop"));
    let address = server.url().trim_start_matches("nats://").to_owned();
    let broker = format!("{}max_messages = 10\n", at(&address, &name, "topology_on_start = \"apply\""));
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], &route(&name)), &[]);
    daemon.ready();
    emit(&shop, 1..=30).await;
    is_held(&daemon);
    let jetstream = jetstream(server.url()).await;
    let narrow = jetstream.get_stream(&name).await.expect("it was made").cached_info().config.clone();
    jetstream.update_stream(stream::Config { max_messages: -1, ..narrow }).await.expect("a wider stream");
    is_free(&daemon);
    daemon.stop();
    assert_in_order(&stored_in(server.url(), &name).await, 1..=30);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_with_a_full_disk_is_down_or_holds_its_addresses_and_loses_nothing() {
    // RabbitMQ blocks publishers.
    let (shop, server) = (TestOutbox::new().await, Private::start().await);
    let durable = [("x-queue-type", AMQPValue::LongString("quorum".into()))];
    declare_queue(&server.amqp_url(), "orders", &durable).await;
    let broker = format!("kind = \"rabbitmq\"\nurls = [\"{}\"]\nconfirm_timeout = \"1s\"\n", server.amqp_url());
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], ROUTE), &[]);
    emit(&shop, 1..=10).await;
    TestOutbox::taken(&daemon, "main", 10);
    server.disk_alarm(true).await;
    emit(&shop, 11..=30).await;
    until("the broker is reported as down", || daemon.metric("outbox_broker_up{") == Some(0));
    until("the rest waits", || metric(&daemon, "outbox_pending_total") == Some(20));
    server.disk_alarm(false).await;
    is_free(&daemon);
    until("the broker is reported as up", || daemon.metric("outbox_broker_up{") == Some(1));
    daemon.stop();
    assert_in_order(&take_from_queue(&server.amqp_url(), "orders", 30).await, 1..=30);

    // NATS rejects messages because its storage is full.
    let settings = nats::Settings::new().jetstream("max_file_store: 1048576");
    let (shop, server, name) =
        (TestOutbox::new().await, nats::Private::start(NatsVersion::V2_15, settings).await, nats::unique("shop"));
    let address = server.url().trim_start_matches("nats://").to_owned();
    let broker = at(&address, &name, "topology_on_start = \"apply\"");
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], &route(&name)), &[]);
    emit(&shop, 1..=10).await;
    TestOutbox::taken(&daemon, "main", 10);
    let jetstream = jetstream(&server.url()).await;
    let ballast = stream::Config { name: "ballast".to_owned(), ..stream::Config::default() };
    jetstream.create_stream(ballast).await.expect("a new stream");
    while jetstream.publish("ballast", vec![0; 100_000].into()).await.expect("sent").await.is_ok() {}
    while jetstream.publish("ballast", vec![0; 100].into()).await.expect("sent").await.is_ok() {}
    emit(&shop, 11..=30).await;
    is_held(&daemon);
    jetstream.delete_stream("ballast").await.expect("there is room again");
    is_free(&daemon);
    daemon.stop();
    assert_in_order(&stored_in(&server.url(), &name).await, 1..=30);
}
