//! Tests of the testkit's RabbitMQ servers.

use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use relevo_testkit::ClientCertificate;
use relevo_testkit::certs::{Certs, Fault, Holder, Pair};
use relevo_testkit::rabbitmq::{Cluster, Private, Server, Settings};

const QUEUE: &str = "numbers";
const DEADLINE: Duration = Duration::from_mins(1);

async fn connect(url: &str) -> lapin::Result<Connection> {
    Connection::connect(url, ConnectionProperties::default()).await
}

async fn channel(url: &str) -> Channel {
    let connection = connect(url).await.expect("the server accepts clients");
    let channel = connection.create_channel().await.expect("a connection has channels");
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("the server confirms");
    channel
}

async fn declare(channel: &Channel) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(QUEUE.into(), options, arguments).await.expect("the queue is new");
}

async fn publish(channel: &Channel) -> Confirmation {
    let properties = BasicProperties::default().with_delivery_mode(2);
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let sent = channel.basic_publish("".into(), QUEUE.into(), options, b"x", properties).await;
    sent.expect("the message is sent").await.expect("the server responds")
}

async fn holds_one(channel: &Channel) -> bool {
    channel.basic_get(QUEUE.into(), BasicGetOptions::default()).await.expect("the queue exists").is_some()
}

#[tokio::test]
async fn virtual_hosts_are_different_and_deleted_when_dropped() {
    let server = Server::shared();
    let (first, second) = (server.vhost().await, server.vhost().await);
    let connection = connect(&first.amqp_url()).await.unwrap();
    declare(&connection.create_channel().await.unwrap()).await;
    assert!(channel(&second.amqp_url()).await.basic_get(QUEUE.into(), BasicGetOptions::default()).await.is_err());

    let url = first.amqp_url();
    drop(first);
    assert!(connect(&url).await.is_err());
    assert!(connect(&second.amqp_url()).await.is_ok());
}

#[tokio::test]
async fn a_private_server_restarts_pauses_and_raises_alarms() {
    let server = Private::start_with(Settings::new().user("me", "secret")).await;
    assert!(connect(&server.amqp_url().replace("guest:guest", "me:wrong")).await.is_err());
    assert!(connect(&server.amqp_url().replace("guest:guest", "me:secret")).await.is_ok());
    let vhost = server.vhost().await;
    let before = channel(&vhost.amqp_url()).await;
    declare(&before).await;
    assert!(publish(&before).await.is_ack());

    server.stop().await;
    assert!(connect(&vhost.amqp_url()).await.is_err());
    server.start_again().await;
    let aged = channel(&vhost.amqp_url()).await;
    assert!(publish(&aged).await.is_ack());
    server.kill9().await;
    assert!(connect(&vhost.amqp_url()).await.is_err());
    server.start_again().await;
    let after = channel(&vhost.amqp_url()).await;
    assert!(holds_one(&after).await && holds_one(&after).await);

    server.pause().await;
    let mut confirmed = Box::pin(publish(&after));
    // No event can show that nothing arrives. A slow machine can make this test pass wrongly, but not fail.
    tokio::time::timeout(Duration::from_millis(200), &mut confirmed).await.unwrap_err();
    server.resume().await;
    assert!(tokio::time::timeout(DEADLINE, confirmed).await.unwrap().is_ack());

    for memory in [true, false] {
        alarm(&server, memory, true).await;
        let blocked = channel(&vhost.amqp_url()).await;
        let mut confirmed = Box::pin(publish(&blocked));
        tokio::time::timeout(Duration::from_millis(200), &mut confirmed).await.unwrap_err();
        alarm(&server, memory, false).await;
        assert!(tokio::time::timeout(DEADLINE, confirmed).await.unwrap().is_ack());
    }

    let directory = server.directory();
    assert!(directory.exists());
    drop(server);
    assert!(!directory.exists());
    assert!(connect(&vhost.amqp_url()).await.is_err());
}

async fn alarm(server: &Private, memory: bool, on: bool) {
    if memory {
        server.memory_alarm(on).await;
    } else {
        server.disk_alarm(on).await;
    }
}

async fn connect_with_tls(url: &str, certs: &Certs, identity: Option<Pair>) -> lapin::Result<Connection> {
    let identity = identity
        .map(|pair| OwnedIdentity::PKCS8 { pem: pair.cert_pem().into_bytes(), key: pair.key_pem().into_bytes() });
    let ca = std::fs::read_to_string(certs.ca()).expect("the certificate of the authority exists");
    let config = OwnedTLSConfig { cert_chain: Some(ca), identity };
    let runtime = lapin::runtime::default_runtime()?;
    Connection::connect_with_config(url, ConnectionProperties::default(), config, runtime).await
}

#[tokio::test]
async fn a_server_with_tls_rejects_clients_without_a_valid_certificate() {
    let certs = Certs::new();
    let server = Private::start_with(Settings::new().tls(&certs, ClientCertificate::Required)).await;
    let url = server.amqps_url();

    assert!(connect_with_tls(&url, &certs, None).await.is_err());
    for fault in [Fault::Expired, Fault::Foreign] {
        let bad = certs.pair(Holder::Client, fault);
        assert!(connect_with_tls(&url, &certs, Some(bad)).await.is_err(), "{fault:?}");
    }
    assert!(connect_with_tls(&url, &certs, Some(certs.client())).await.is_ok());
}

#[tokio::test]
async fn a_cluster_of_three_survives_the_loss_of_one_node_and_of_all() {
    let cluster = Cluster::of_three().await;
    let [one, two, three] = cluster.nodes();
    let on_two = channel(&two.amqp_url()).await;
    declare(&on_two).await;
    assert!(publish(&on_two).await.is_ack());

    one.kill9().await;
    assert!(tokio::time::timeout(DEADLINE, publish(&on_two)).await.unwrap().is_ack());
    one.start_again().await;
    for node in [one, two, three] {
        node.kill9().await;
    }
    cluster.start_all_again().await;
    let on_one = channel(&one.amqp_url()).await;
    assert!(holds_one(&on_one).await && holds_one(&on_one).await);
}
