//! From PostgreSQL to a real NATS JetStream.

use std::net::SocketAddr;
use std::time::Duration;

use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Cluster, Server, unique};
use relevo_testkit::proxy::CutProxy;

use crate::broker_messages::{assert_in_order, jetstream, stored_in};
use crate::command::relevo;
use crate::daemon::{Daemon, until};
use crate::test_outbox::TestOutbox;

/// The configuration of a broker at this address, with a stream of all subjects that begin with its name.
pub(crate) fn at(address: &str, stream: &str, more: &str) -> String {
    format!(
        "kind = \"nats\"\nurls = [\"nats://{address}\"]\nstream = \"{stream}\"\n{more}\n[BROKER.streams.one]\n\
         name = \"{stream}\"\nsubjects = [\"{stream}.>\"]\n"
    )
}

/// A route to subjects that begin with this word.
pub(crate) fn route(word: &str) -> String {
    format!(
        "[[outboxes.shop.destinations.main.routes]]\naddress = \"{word}.{{topic}}\"\nheaders = {{ x-event-id = \"{{id}}\" }}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn committed_messages_arrive_in_streams_that_are_created_at_startup() {
    for version in NatsVersion::ALL {
        let (shop, server, stream) = (TestOutbox::new().await, Server::shared(version), unique("shop"));
        let address = server.url().trim_start_matches("nats://").to_owned();
        let broker = at(&address, &stream, "topology_on_start = \"apply\"");
        let file = shop.with_destinations(&[("main", &broker)], &route(&stream));
        shop.emit_numbers("orders", 1..=100).await;
        let mut daemon = Daemon::start(&file, &[]);
        TestOutbox::taken(&daemon, "main", 100);
        shop.emit_numbers("orders.eu", 101..=200).await;
        TestOutbox::taken(&daemon, "main", 200);
        daemon.ready();
        daemon.stop();
        let stored = stored_in(server.url(), &stream).await;
        assert_in_order(&stored, 1..=200);
        for message in &stored {
            assert_eq!(message.headers["x-event-id"], message.headers["ce-id"], "{message:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_stream_prevents_the_start_until_it_is_created() {
    let (shop, server, stream) = (TestOutbox::new().await, Server::shared(NatsVersion::V2_15), unique("shop"));
    let address = server.url().trim_start_matches("nats://").to_owned();
    let file =
        shop.with_destinations(&[("main", &at(&address, &stream, "topology_on_start = \"check\""))], &route(&stream));
    let mut daemon = Daemon::start(&file, &[]);
    assert_eq!(daemon.end(), Some(2), "{}", daemon.log());
    until("the log has the hint", || daemon.log().contains("hint: `relevo topology apply` creates missing objects"));
    assert!(daemon.log().contains(&format!("stream `{stream}` is missing")), "{}", daemon.log());
    let (code, plan, stderr) = relevo(&file, &["topology", "plan"]);
    assert!(code == 3 && plan.contains(&format!("missing    stream `{stream}`")), "{plan}{stderr}");
    let (code, _, stderr) = relevo(&file, &["topology", "apply", "--yes"]);
    assert_eq!(code, 0, "{stderr}");
    let mut daemon = Daemon::start(&file, &[]);
    shop.emit_numbers("orders", 1..=10).await;
    TestOutbox::taken(&daemon, "main", 10);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_in_memory_prevents_the_start_unless_the_configuration_accepts_it() {
    let (shop, server, stream) = (TestOutbox::new().await, Server::shared(NatsVersion::V2_15), unique("shop"));
    let storage = async_nats::jetstream::stream::StorageType::Memory;
    let config = async_nats::jetstream::stream::Config {
        name: stream.clone(),
        subjects: vec![format!("{stream}.>")],
        storage,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    jetstream(server.url()).await.create_stream(config).await.expect("a new stream");
    let broker = |more: &str| format!("kind = \"nats\"\nurls = [\"{}\"]\n{more}\n", server.url());
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker(""))], &route(&stream)), &[]);
    assert_eq!(daemon.end(), Some(2), "{}", daemon.log());
    let line = daemon.line("broker setting breaks a delivery guarantee");
    assert_eq!(line["subject"], "stream-storage");
    until("the log has the setting", || daemon.log().contains("with `accept = [\"stream-storage\"]`"));
    let accepting = broker("accept = [\"stream-storage\"]");
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &accepting)], &route(&stream)), &[]);
    shop.emit_numbers("orders", 1..=10).await;
    TestOutbox::taken(&daemon, "main", 10);
    daemon.stop();
    assert_in_order(&stored_in(server.url(), &stream).await, 1..=10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_down_at_startup_is_checked_when_it_is_reachable() {
    let (shop, server, stream) = (TestOutbox::new().await, Server::shared(NatsVersion::V2_15), unique("shop"));
    let upstream: SocketAddr = server.url().trim_start_matches("nats://").parse().expect("an address");
    let proxy = CutProxy::start(upstream).await;
    proxy.block().await;
    let broker = at(&proxy.addr().to_string(), &stream, "topology_on_start = \"apply\"");
    shop.emit_numbers("orders", 1..=10).await;
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], &route(&stream)), &[]);
    daemon.line("broker unreachable, will retry");
    let (status, body) = daemon.get("/readyz");
    assert!(status == 503 && body.contains("waiting for the broker: "), "{status} {body}");
    assert_eq!((daemon.get("/livez").0, daemon.metric("outbox_broker_up{")), (200, Some(0)));
    until("the outage lasts a second", || daemon.metric("outbox_broker_down_seconds{") >= Some(1));
    assert!(jetstream(server.url()).await.get_stream(&stream).await.is_err(), "no stream is created yet");
    proxy.unblock();
    TestOutbox::taken(&daemon, "main", 10);
    daemon.ready();
    daemon.stop();
    assert_in_order(&stored_in(server.url(), &stream).await, 1..=10);
}

/// A stream on three servers stores nothing while only one of them runs, although that one accepts connections.
#[tokio::test(flavor = "multi_thread")]
async fn a_nats_cluster_without_its_majority_reports_its_nodes_and_loses_nothing() {
    let (shop, cluster) = (TestOutbox::new().await, Cluster::of_three().await);
    let (urls, stream) = (cluster.urls(), unique("shop"));
    // This timeout also applies to each request of the sampler. With this value, a stream that does not respond takes all
    // the time of the sampler.
    let broker = format!(
        "kind = \"nats\"\nurls = {urls:?}\nstream = \"{stream}\"\ntopology_on_start = \"apply\"\nconfirm_timeout = \"2500ms\"\n\
         [BROKER.streams.one]\nname = \"{stream}\"\nsubjects = [\"{stream}.>\"]\nreplicas = 3\n\
         [BROKER.groups.billing]\nstream = \"{stream}\"\n"
    );
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &broker)], &route(&stream)), &[]);
    shop.emit_numbers("orders", 1..=100).await;
    TestOutbox::taken(&daemon, "main", 100);
    let runs = |nodes| daemon.metric("outbox_broker_nodes_running{") == Some(nodes);
    until("three nodes run", || runs(3));

    let [first, second, last] = cluster.nodes();
    second.kill9().await;
    last.kill9().await;
    shop.emit_numbers("orders", 101..=200).await;
    until("the alert has its metric", || runs(1) && daemon.metric("outbox_broker_nodes{") == Some(3));
    until("the address is held", || daemon.metric("outbox_held_addresses{") == Some(1));
    first.kill9().await;
    until("no node runs", || runs(0) && daemon.metric("outbox_broker_nodes{") == Some(3));
    until("the broker is reported as down", || daemon.metric("outbox_broker_up{") == Some(0));

    tokio::join!(first.start_again(), second.start_again(), last.start_again());
    // The streams elect new leaders, and a held address may be probed only after half a minute.
    TestOutbox::taken_within(Duration::from_secs(90), &daemon, "main", 200);
    until("three nodes run again", || runs(3));
    until("the broker is reported as up", || daemon.metric("outbox_broker_up{") == Some(1));
    for never in ["outbox_retry_total{", "outbox_failed_permanent_total{"] {
        assert_eq!(daemon.metric(never), Some(0), "an outage counts no failure: {never}");
    }
    daemon.stop();
    assert_in_order(&stored_in(&urls[0], &stream).await, 1..=200);
}
