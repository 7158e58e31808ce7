//! A file that names the database and the broker is enough. `relevo init` writes one.

use std::process::{Command, Output};

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, ExchangeKind};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::unique;
use relevo_testkit::{nats, rabbitmq};

use crate::broker_messages::{assert_in_order, channel, stored_in, take_from_queue};
use crate::daemon::Daemon;
use crate::test_outbox::TestOutbox;

/// The whole file, with this broker.
fn file(shop: &TestOutbox, broker: &str) -> std::path::PathBuf {
    let text = format!(
        "[outboxes.shop]\ndatabase = \"{}\"\n\n[outboxes.shop.destinations.main]\nbroker = {broker}\n",
        shop.database.url()
    );
    shop.directory.write("relevo.toml", &text)
}

/// Tests run in parallel, so that each has its own admin port.
const PORT: (&str, &str) = ("RELEVO__ADMIN__LISTEN", "127.0.0.1:0");

async fn bind(channel: &Channel, exchange: &str, queue: &str) {
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), durable, FieldTable::default()).await.expect("a new queue");
    let options = QueueBindOptions::default();
    channel
        .queue_bind(queue.into(), exchange.into(), "#".into(), options, FieldTable::default())
        .await
        .expect("a binding");
}

async fn exchange_exists(url: &str, kind: ExchangeKind) -> bool {
    let (_connection, channel) = channel(url).await;
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    // The server compares the type with that of the existing exchange.
    channel.exchange_declare("shop".into(), kind, options, FieldTable::default()).await.is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_emitted_before_the_first_run_arrives_in_rabbitmq() {
    let (shop, vhost) = (TestOutbox::new().await, rabbitmq::Server::shared().vhost().await);
    let url = vhost.amqp_url();
    let (_connection, channel) = channel(&url).await;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    // A fanout exchange, which the user made: any existing exchange of this name is used.
    channel.exchange_declare("shop".into(), ExchangeKind::Fanout, durable, FieldTable::default()).await.expect("new");
    bind(&channel, "shop", "orders").await;
    shop.emit_numbers("orders.eu", 1..=10).await;
    let broker = format!("{{ kind = \"rabbitmq\", url = \"{url}\", exchange = \"shop\" }}");
    let mut daemon = Daemon::start(&file(&shop, &broker), &[PORT]);
    TestOutbox::taken(&daemon, "main", 10);
    daemon.stop();
    assert_in_order(&take_from_queue(&url, "orders", 10).await, 1..=10);
    assert!(exchange_exists(&url, ExchangeKind::Fanout).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_exchange_is_created_and_messages_wait_for_a_queue() {
    let (shop, vhost) = (TestOutbox::new().await, rabbitmq::Server::shared().vhost().await);
    let url = vhost.amqp_url();
    shop.emit_numbers("orders.eu", 1..=10).await;
    let broker = format!("{{ kind = \"rabbitmq\", url = \"{url}\", exchange = \"shop\" }}");
    let often = ("RELEVO__RELAY__ADVANCED__BLOCKED_PROBE_INTERVAL", "100ms");
    let mut daemon = Daemon::start(&file(&shop, &broker), &[PORT, often]);
    daemon.line("broker rejects every message to this address; its keys are parked until a probe succeeds");
    assert!(exchange_exists(&url, ExchangeKind::Topic).await);
    let (_connection, channel) = channel(&url).await;
    bind(&channel, "shop", "orders").await;
    TestOutbox::taken(&daemon, "main", 10);
    daemon.stop();
    assert_in_order(&take_from_queue(&url, "orders", 10).await, 1..=10);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_management_api_one_line_names_what_was_not_compared() {
    let (shop, vhost) = (TestOutbox::new().await, rabbitmq::Server::shared().vhost().await);
    let broker = format!(
        "{{ kind = \"rabbitmq\", url = \"{}\", exchange = \"shop\", queues.orders.bind = [\"shop/#\"], \
         queues.bills.bind = [\"shop/#\"] }}",
        vhost.amqp_url()
    );
    let file = file(&shop, &broker);
    for _ in 0..2 {
        let mut daemon = Daemon::start(&file, &[PORT]);
        daemon.line("relay started");
        daemon.stop();
        let lines = daemon.log().lines().filter(|line| line.contains("could not be compared")).count();
        assert!(lines <= 1, "{}", daemon.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_emitted_before_the_first_run_arrives_in_a_nats_stream() {
    for version in NatsVersion::ALL {
        let (shop, server, stream) = (TestOutbox::new().await, nats::Server::shared(version), unique("SHOP"));
        shop.emit_numbers("orders.eu", 1..=10).await;
        let broker = format!("{{ kind = \"nats\", url = \"{}\", stream = \"{stream}\" }}", server.url());
        let mut daemon = Daemon::start(&file(&shop, &broker), &[PORT]);
        TestOutbox::taken(&daemon, "main", 10);
        daemon.stop();
        assert_in_order(&stored_in(server.url(), &stream).await, 1..=10);
    }
}

/// Runs `relevo init` in the test's directory.
fn init(shop: &TestOutbox, kind: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_relevo"));
    command.args(["init", "--broker", kind, "--database", &shop.database.url()]).args(more);
    command.current_dir(shop.directory.path()).output().expect("it runs")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_that_init_writes_delivers_to_rabbitmq() {
    let (shop, vhost) = (TestOutbox::new().await, rabbitmq::Server::shared().vhost().await);
    assert!(init(&shop, "rabbitmq", &[]).status.success());
    let url = vhost.amqp_url();
    let (_connection, channel) = channel(&url).await;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel
        .exchange_declare("relevo".into(), ExchangeKind::Topic, durable, FieldTable::default())
        .await
        .expect("a new exchange");
    bind(&channel, "relevo", "orders").await;
    shop.emit_numbers("orders.eu", 1..=10).await;
    let url_of_the_test = ("RELEVO__OUTBOXES__MAIN__DESTINATIONS__MAIN__BROKER__URL", &*url);
    let mut daemon = Daemon::start(&shop.directory.path().join("relevo.toml"), &[PORT, url_of_the_test]);
    TestOutbox::delivered(&daemon, "main", 10);
    daemon.stop();
    assert_in_order(&take_from_queue(&url, "orders", 10).await, 1..=10);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_that_init_writes_delivers_to_the_embedded_broker() {
    let shop = TestOutbox::new().await;
    let printed = init(&shop, "embedded", &["--stdout"]);
    let text = String::from_utf8(printed.stdout).expect("it writes UTF-8");
    let broker = shop.directory.path().join("broker.db");
    let file = shop.directory.write("relevo.toml", &text.replace("relevo-broker.db", &broker.display().to_string()));
    shop.emit_numbers("orders.eu", 1..=10).await;
    let mut daemon = Daemon::start(&file, &[PORT]);
    TestOutbox::delivered(&daemon, "main", 10);
    daemon.stop();
}
