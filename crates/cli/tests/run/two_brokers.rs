//! One outbox with two brokers, one of which stops for a while.

use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{self, Server, unique};
use relevo_testkit::rabbitmq::Private;

use crate::broker_messages::{assert_in_order, stored_in, take_from_queue};
use crate::command::relevo;
use crate::daemon::{Daemon, until};
use crate::test_outbox::TestOutbox;

const RABBIT: &str = "{service=\"relevo\",outbox=\"shop\",destination=\"rabbit\"";

#[tokio::test(flavor = "multi_thread")]
async fn one_broker_keeps_its_rate_and_the_stopped_one_catches_up_in_order() {
    let (shop, rabbit, nats) = (TestOutbox::new().await, Private::start().await, Server::shared(NatsVersion::V2_15));
    let stream = unique("shop");
    let queue =
        format!("kind = \"rabbitmq\"\nurls = [\"{}\"]\n[BROKER.queues.orders]\nretry_delays = []\n", rabbit.amqp_url());
    let subjects = format!(
        "kind = \"nats\"\nurls = [\"{}\"]\n[BROKER.streams.one]\nname = \"{stream}\"\nsubjects = [\"{stream}.>\"]\n",
        nats.url()
    );
    let routes = format!(
        "[[outboxes.shop.destinations.rabbit.routes]]\naddress = \"orders\"\n\
         [[outboxes.shop.destinations.stream.routes]]\naddress = \"{stream}.{{topic}}\"\n[relay]\noutage_backoff_max = \"500ms\"\n"
    );
    let file = shop.with_destinations(&[("rabbit", &queue), ("stream", &subjects)], &routes);
    let (code, made, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
    assert_eq!(code, 0, "{made}{stderr}");
    // A quorum queue that is killed within its first second or so comes back without what it confirmed, and confirms
    // nothing more (RabbitMQ 3.10). An orderly restart makes it old enough.
    rabbit.stop().await;
    rabbit.start_again().await;
    let mut daemon = Daemon::start(&file, &[]);
    shop.emit_numbers("orders", 1..=500).await;
    TestOutbox::taken(&daemon, "rabbit", 500);
    TestOutbox::taken(&daemon, "stream", 500);
    rabbit.kill9().await;
    for hundred in 5..15 {
        shop.emit_numbers("orders", hundred * 100 + 1..=(hundred + 1) * 100).await;
    }
    TestOutbox::taken(&daemon, "stream", 1500);
    let metric = |name: &str| daemon.metric(&format!("{name}{RABBIT}"));
    until("the broker is reported as down", || metric("outbox_broker_up") == Some(0));
    until("the outage lasts a second", || metric("outbox_broker_down_seconds") >= Some(1));
    assert_eq!(daemon.metric(&format!("outbox_broker_up{}", RABBIT.replace("rabbit", "stream"))), Some(1));
    let outages = daemon.metric(&format!("outbox_publish_failures_total{RABBIT},class=\"outage\"")).unwrap_or(0);
    assert!(outages > 0, "{outages}");
    let (status, body) = daemon.get("/readyz");
    assert!(status == 200 && body.contains(", the broker is unreachable"), "{status} {body}");
    rabbit.start_again().await;
    TestOutbox::taken(&daemon, "rabbit", 1500);
    assert_eq!((metric("outbox_broker_up"), metric("outbox_broker_down_seconds")), (Some(1), Some(0)));
    daemon.stop();
    assert_in_order(&stored_in(nats.url(), &stream).await, 1..=1500);
    assert_in_order(&take_from_queue(&rabbit.amqp_url(), "orders", 1500).await, 1..=1500);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_relay_detects_that_its_broker_stopped_and_returned() {
    let (shop, rabbit) = (TestOutbox::new().await, Private::start().await);
    let stream = nats::Private::start(NatsVersion::V2_15, nats::Settings::new()).await;
    let queue = format!(
        "kind = \"rabbitmq\"\nurls = [\"{}\"]\ntopology_on_start = \"apply\"\n[BROKER.queues.orders]\nretry_delays = []\n",
        rabbit.amqp_url()
    );
    let subjects = format!(
        "kind = \"nats\"\nurls = [\"{}\"]\ntopology_on_start = \"apply\"\n[BROKER.streams.one]\nname = \"shop\"\nsubjects = [\"shop.>\"]\n",
        stream.url()
    );
    let routes = "[[outboxes.shop.destinations.rabbit.routes]]\naddress = \"orders\"\n\
                  [[outboxes.shop.destinations.stream.routes]]\naddress = \"shop.{topic}\"\n";
    let mut daemon = Daemon::start(&shop.with_destinations(&[("rabbit", &queue), ("stream", &subjects)], routes), &[]);
    daemon.ready();
    let up = |destination: &str| daemon.metric(&format!("outbox_broker_up{}", RABBIT.replace("rabbit", destination)));
    until("both brokers are up", || up("rabbit") == Some(1) && up("stream") == Some(1));
    rabbit.stop().await;
    until("one broker is down", || up("rabbit") == Some(0));
    assert_eq!(up("stream"), Some(1));
    let down_seconds = format!("outbox_broker_down_seconds{RABBIT}");
    until("the outage lasts a second", || daemon.metric(&down_seconds) >= Some(1));
    stream.stop().await;
    until("the other broker is down too", || up("stream") == Some(0));
    assert!(daemon.get("/readyz").1.contains(", the broker is unreachable"), "{:?}", daemon.get("/readyz"));
    rabbit.start_again().await;
    stream.start_again().await;
    until("both brokers are up again", || up("rabbit") == Some(1) && up("stream") == Some(1));
    assert_eq!(daemon.metric(&down_seconds), Some(0));
    assert_eq!(
        daemon.metric(&format!("outbox_publish_attempts_total{RABBIT}")),
        Some(0),
        "no message was published for the check"
    );
    daemon.stop();
}
