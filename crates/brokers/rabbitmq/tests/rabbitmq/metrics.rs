//! Sampled metrics, with and without the management API.

use std::net::SocketAddr;

use lapin::BasicProperties;
use relevo_broker_rabbitmq::{Admin, Config, Monitor, Queue, Topology};
use relevo_core::broker::admin::BrokerAdmin as _;
use relevo_core::broker::sample::{BrokerMonitor as _, BrokerSample};
use relevo_testkit::proxy::CutProxy;

use crate::harness::AmqpClient;
use crate::topology_harness::TopologyHarness;

fn topology() -> Topology {
    let plain = |name: &str| Queue { retry_delays: Vec::new(), ..Queue::new(name) };
    let none = Queue { dead_letter_queue: None, ..plain("unlimited") };
    let own = Queue { dead_letter_queue: Some("failed".to_owned()), ..plain("shipping") };
    Topology { queues: vec![plain("archive"), plain("billing"), none, own], ..Topology::default() }
}

fn sample_with_dead_letters<const N: usize>(counted: [(&str, u64); N]) -> BrokerSample {
    let dead = counted.into_iter().map(|(queue, messages)| (queue.to_owned(), messages)).collect();
    BrokerSample { nodes: None, dead_letter_queues: dead }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_counted_over_amqp_and_a_missing_queue_hides_no_other() {
    let harness = TopologyHarness::new().await;
    let url = harness.vhost.amqp_url();
    let authority = url.rsplit_once('@').expect("a URL with a login").1;
    let upstream: SocketAddr = authority.split('/').next().expect("a host").parse().expect("an address");
    let proxy = CutProxy::start(upstream).await;
    let proxied = url.replace(&upstream.to_string(), &proxy.addr().to_string());
    let config = Config { topology: topology(), ..Config::new(proxied) };
    let monitor = Monitor::new(config.clone()).expect("a configuration");
    assert_eq!(monitor.sample().await.expect("a sample"), sample_with_dead_letters([]), "no queue exists");
    Admin::new(config).expect("a configuration").apply().await.expect("created");
    let sample = monitor.sample().await.expect("a sample");
    assert_eq!(sample, sample_with_dead_letters([("archive.dead", 0), ("billing.dead", 0), ("failed", 0)]));

    let client = AmqpClient::connect(&url).await;
    for queue in ["billing.dead", "failed", "failed"] {
        client.publish("", queue, BasicProperties::default(), b"x").await;
    }
    harness.delete_queue("archive.dead").await;
    let expected = sample_with_dead_letters([("billing.dead", 1), ("failed", 2)]);
    assert_eq!(monitor.sample().await.expect("a sample"), expected);

    proxy.block().await;
    assert!(monitor.sample().await.is_err());
    proxy.unblock();
    client.publish("", "billing.dead", BasicProperties::default(), b"x").await;
    let sample = monitor.sample().await.expect("it reconnects");
    assert_eq!(sample, sample_with_dead_letters([("billing.dead", 2), ("failed", 2)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_broker_is_reported_and_one_without_dead_letter_queues_is_not_queried() {
    let unreachable = |topology| Config { topology, ..Config::new("amqp://127.0.0.1:1") };
    let monitor = Monitor::new(unreachable(topology())).expect("a configuration");
    assert!(monitor.sample().await.is_err());
    let monitor = Monitor::new(unreachable(Topology::default())).expect("a configuration");
    assert_eq!(monitor.sample().await.expect("no request is sent"), BrokerSample::default());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_management_api_is_used_when_the_first_is_down() {
    let harness = TopologyHarness::new().await;
    let mut config = harness.config();
    config.management_urls.insert(0, "http://127.0.0.1:1".to_owned());
    let monitor = Monitor::new(config).expect("a configuration");
    for _ in 0..2 {
        let nodes = monitor.sample().await.expect("a sample").nodes.expect("the user may see the nodes");
        assert_eq!((nodes.running, nodes.total), (1, 1));
    }
}
