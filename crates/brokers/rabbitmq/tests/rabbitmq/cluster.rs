//! A cluster of three: one node may fail. With two nodes down, nothing is confirmed and nothing is lost.

use std::time::{Duration, Instant};

use relevo_broker_rabbitmq::{Config, Publisher};
use relevo_conformance::broker::harness::{publication_to, publish, publish_all};
use relevo_core::Class;
use relevo_testkit::rabbitmq::Cluster;

use crate::faults::{assert_all_stored, send_all};
use crate::harness::AmqpClient;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_publishes_with_two_nodes_and_reports_an_outage_with_one() {
    let cluster = Cluster::of_three().await;
    let urls = cluster.amqp_urls();
    let [first, second, _third] = cluster.nodes();
    AmqpClient::connect(&urls[2]).await.quorum_queue("orders", &[]).await;
    let config = Config {
        urls: urls.to_vec(),
        heartbeat: Duration::from_secs(1),
        connect_timeout: Duration::from_secs(2),
        confirm_timeout: Duration::from_secs(2),
        ..Config::new("")
    };
    let broker = Publisher::open(config).await.expect("a valid configuration");
    publish_all(&broker, &[publication_to("orders", 1_000_000, "probe")]).await;
    AmqpClient::connect(&urls[2]).await.take_all("orders").await;

    // The node of the connection is killed while the batch is sent: the others continue.
    tokio::join!(send_all(&broker, 0, 30), first.kill9());
    assert_all_stored(&AmqpClient::connect(&urls[2]).await, 0, 30).await;

    // With two of three nodes down nothing is confirmed, and the failure becomes an outage.
    publish_all(&broker, &[publication_to("orders", 0, "k-0")]).await;
    second.kill9().await;
    let since = Instant::now();
    loop {
        let outcome = publish(&broker, &[publication_to("orders", 1, "k-1")]).await[0];
        assert!(matches!(outcome, Some(Class::Outage | Class::Unknown)), "{outcome:?}");
        if outcome == Some(Class::Outage) {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(30), "no outage was reported");
    }

    // Messages sent in the meantime are confirmed when one of the nodes is back.
    tokio::join!(send_all(&broker, 0, 30), async {
        second.start_again().await;
        first.start_again().await;
    });
    assert_all_stored(&AmqpClient::connect(&urls[2]).await, 0, 30).await;
}
