//! Sampled metrics without the management API.

use std::net::SocketAddr;

use lapin::BasicProperties;
use relevo_broker_rabbitmq::{Admin, Config, Queue, Topology};
use relevo_core::broker::admin::BrokerAdmin as _;
use relevo_core::broker::sample::{BrokerMonitor as _, BrokerSample};
use relevo_testkit::proxy::CutProxy;

use crate::harness::AmqpClient;
use crate::topology_harness::TopologyHarness;

fn topology() -> Topology {
    let plain = |name: &str| Queue { retry_delays: Vec::new(), ..Queue::new(name) };
    let none = Queue { dead_letter_queue: None, ..plain("heap") };
    let own = Queue { dead_letter_queue: Some("given-up".to_owned()), ..plain("shipping") };
    Topology { queues: vec![plain("archive"), plain("billing"), none, own], ..Topology::default() }
}

fn sample_with_dead_letters<const N: usize>(counted: [(&str, u64); N]) -> BrokerSample {
    let dead = counted.into_iter().map(|(queue, messages)| (queue.to_owned(), messages)).collect();
    BrokerSample { nodes: None, dead_letter_queues: dead }
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_counted_over_amqp_and_a_missing_queue_hides_no_other() {
    let stage = TopologyHarness::new().await;
    let url = stage.vhost.amqp_url();
    let authority = url.rsplit_once('@').expect("a URL with a login").1;
    let upstream: SocketAddr = authority.split('/').next().expect("a host").parse().expect("an address");
    let proxy = CutProxy::start(upstream).await;
    let through = url.replace(&upstream.to_string(), &proxy.addr().to_string());
    let admin = Admin::new(Config { topology: topology(), ..Config::new(through) }).expect("a configuration");
    assert_eq!(admin.sample().await.expect("an answer"), sample_with_dead_letters([]), "what is not there is not told");
    admin.apply().await.expect("made");
    let told = admin.sample().await.expect("an answer");
    assert_eq!(told, sample_with_dead_letters([("archive.dead", 0), ("billing.dead", 0), ("given-up", 0)]));

    let side = AmqpClient::connect(&url).await;
    for queue in ["billing.dead", "given-up", "given-up"] {
        side.publish("", queue, BasicProperties::default(), b"x").await;
    }
    stage.delete_queue("archive.dead").await;
    let expected = sample_with_dead_letters([("billing.dead", 1), ("given-up", 2)]);
    assert_eq!(admin.sample().await.expect("an answer"), expected);

    proxy.block().await;
    assert_eq!(admin.sample().await.expect("they were just counted"), expected);
    proxy.unblock();
    side.publish("", "billing.dead", BasicProperties::default(), b"x").await;
    let told = admin.sample().await.expect("it connects again");
    assert_eq!(told, sample_with_dead_letters([("billing.dead", 2), ("given-up", 2)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_broker_is_reported_and_one_without_dead_letter_queues_is_not_queried() {
    let nobody = |topology| Config { topology, ..Config::new("amqp://127.0.0.1:1") };
    let admin = Admin::new(nobody(topology())).expect("a configuration");
    assert!(admin.sample().await.is_err());
    let admin = Admin::new(nobody(Topology::default())).expect("a configuration");
    assert_eq!(admin.sample().await.expect("nothing is asked"), BrokerSample::default());
}
