//! Sampled metrics.

use std::time::{Duration, Instant};

use relevo_broker_nats::{Admin, Config, Group, Monitor, Stream, Topology};
use relevo_core::broker::admin::BrokerAdmin as _;
use relevo_core::broker::sample::{BrokerMonitor as _, NodeCount};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Cluster, Server, unique};
use relevo_testkit::proxy::CutProxy;

const DEADLINE: Duration = Duration::from_secs(30);

fn topology(name: &str, replicas: usize) -> Topology {
    let stream = Stream { replicas, ..Stream::new(name, [format!("{name}.>")]) };
    let group = Group::new(format!("{name}-billing"), name, [format!("{name}.orders")]);
    Topology { streams: vec![stream], groups: vec![group] }
}

async fn monitor_with_topology(url: &str, topology: Topology) -> Monitor {
    let config = Config { topology, ..Config::new(url) };
    Admin::new(config.clone()).expect("a valid topology").apply().await.expect("applied");
    Monitor::new(config).expect("the same")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_alone_is_one_node() {
    for version in NatsVersion::ALL {
        let server = Server::shared(version);
        let name = unique("s");
        let monitor = monitor_with_topology(server.url(), topology(&name, 1)).await;
        let sample = monitor.sample().await.expect("a sample");
        assert!(sample.nodes.is_none_or(|nodes| nodes == NodeCount { running: 1, total: 1 }), "{sample:?}");
        assert_eq!(sample.dead_letter_queues, []);
    }
}

/// A monitor waits four seconds, and reports nothing from a broker that needs longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_costs_one_timeout_for_all_streams() {
    let upstream = Server::shared(NatsVersion::V2_15).url().trim_start_matches("nats://").parse().expect("an address");
    let proxy = CutProxy::start(upstream).await;
    let name = unique("s");
    let mut topology = topology(&name, 1);
    // Requested one after the other, these streams would take more than 15 seconds.
    topology
        .streams
        .extend((1..8).map(|number| Stream::new(format!("{name}-{number}"), [format!("{name}-{number}.>")])));
    let monitor = monitor_with_topology(&format!("nats://{}", proxy.addr()), topology).await;
    monitor.sample().await.expect("a sample");
    proxy.freeze();
    let begun = Instant::now();
    monitor.sample().await.expect("a missing response is no failure");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    proxy.thaw();
    monitor.sample().await.expect("a sample");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_node_is_missing_until_it_returns() {
    let cluster = Cluster::of_three().await;
    let monitor = monitor_with_topology(&cluster.urls()[0], topology(&unique("s"), 3)).await;
    let until = async |running| {
        let end = Instant::now() + DEADLINE;
        loop {
            // During an election the stream does not respond.
            let sample = monitor.sample().await;
            if sample.as_ref().is_ok_and(|it| it.nodes == Some(NodeCount { running, total: 3 })) {
                return;
            }
            assert!(Instant::now() < end, "expected {running} of 3 nodes: {sample:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    until(3).await;
    let [first, second, last] = cluster.nodes();
    last.kill9().await;
    until(2).await;
    // Without a majority no stream responds, and without a server there is no response at all. A sample must be
    // reported in both cases.
    second.kill9().await;
    until(1).await;
    first.kill9().await;
    until(0).await;
    tokio::join!(first.start_again(), second.start_again(), last.start_again());
    until(3).await;
}
