//! Checks of servers with a different setup: the management API with TLS, and a cluster.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use relevo_broker_rabbitmq::{
    Admin, Config, ConsumerOptions, GroupConsumer, Identity, Queue, QueueKind, Tls, Topology,
};
use relevo_conformance::broker::harness::assert_idle;
use relevo_core::broker::admin::{BrokerAdmin as _, ExamineContext, TopologyStatus};
use relevo_core::finding::Severity::{Danger, Note, Warning};
use relevo_core::{Class, Failure};
use relevo_testkit::certs::Certs;
use relevo_testkit::rabbitmq::{Cluster, Private, Settings};
use serde_json::json;

use crate::topology_harness::{Findings, TopologyHarness};

async fn examine(config: Config) -> Result<Findings, Failure> {
    let admin = Admin::new(config).expect("a valid configuration");
    Ok(Findings(admin.examine(&ExamineContext::default()).await?))
}

fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).expect("a file")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_management_api_is_used_over_tls_with_a_login() {
    let certs = Certs::new();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port();
    let server = certs.server();
    let settings = Settings::new()
        .management()
        .config(&format!("management.ssl.port = {port}\nmanagement.ssl.ip = 127.0.0.1"))
        .config(&format!("management.ssl.cacertfile = {}", certs.ca().display()))
        .config(&format!("management.ssl.certfile = {}", server.cert.display()))
        .config(&format!("management.ssl.keyfile = {}", server.key.display()))
        .config("management.ssl.verify = verify_peer\nmanagement.ssl.fail_if_no_peer_cert = true");
    let private = Private::start_with(settings).await;
    private.ctl(&["add_user", "viewer", "p@ss:word"]).await;
    private.ctl(&["set_permissions", "viewer", ".*", ".*", ".*"]).await;

    let client = certs.client();
    let identity = Some(Identity { cert_chain: client.cert_pem(), key: client.key_pem() });
    let good = Config {
        tls: Tls { ca: Some(read(&certs.ca())), identity: identity.clone(), sasl_external: false },
        management_urls: vec![format!("https://localhost:{port}")],
        ..Config::new(private.amqp_url())
    };
    examine(good.clone()).await.expect("findings").assert_all_passed();

    for tls in [
        Tls { identity: None, ..good.tls.clone() },
        Tls { ca: Some(read(&certs.foreign_ca())), ..good.tls.clone() },
        Tls { ca: None, ..good.tls.clone() },
    ] {
        let refused = examine(Config { tls, ..good.clone() }).await.expect_err("a certificate is not accepted");
        assert_eq!(refused.class(), Class::Blocked, "{}", refused.error_chain());
    }

    // A user that may publish has no access to the API. A user with access needs further tags to see nodes and feature
    // flags.
    let viewer = Config { user: Some("viewer".into()), password: Some("p@ss:word".into()), ..good.clone() };
    let refused = examine(viewer.clone()).await.expect_err("a user without a tag");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.error_chain());
    private.ctl(&["set_user_tags", "viewer", "management"]).await;
    examine(viewer.clone()).await.expect("findings").assert_has(Note, "management", "monitoring");
    private.ctl(&["set_user_tags", "viewer", "monitoring"]).await;
    let in_url = format!("https://viewer:p%40ss%3Aword@localhost:{port}");
    let viewer = Config { management_urls: vec![in_url], ..good };
    examine(viewer.clone()).await.expect("findings").assert_has(Note, "management", "administrator");
    private.ctl(&["set_user_tags", "viewer", "administrator"]).await;
    examine(viewer).await.expect("findings").assert_all_passed();
}

/// The URL of the harness's virtual host on another node.
fn at_node(node: &Private, harness: &TopologyHarness) -> String {
    let url = harness.vhost.amqp_url();
    let (before, vhost) = url.rsplit_once('/').expect("a virtual host");
    let (host, _) = before.rsplit_once(':').expect("a port");
    format!("{host}:{}/{vhost}", node.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_in_a_cluster_is_a_danger() {
    let cluster = Cluster::of_three_with(Settings::new().management()).await;
    let harness = TopologyHarness::new_at(cluster.nodes()[0].vhost().await).await;
    let quorum = |size: u8| json!({ "x-queue-type": "quorum", "x-quorum-initial-group-size": size });
    for (name, size) in [("one", 1), ("two", 2), ("three", 3)] {
        harness.queue(name, quorum(size)).await;
    }
    harness.queue("classic", json!({})).await;
    let old =
        Queue { kind: QueueKind::Classic, retry_delays: Vec::new(), dead_letter_queue: None, ..Queue::new("old") };
    let on_three = Config { urls: vec![at_node(&cluster.nodes()[2], &harness)], ..harness.config() };
    let topology = Topology { queues: vec![old.clone()], ..Topology::default() };
    Admin::new(Config { topology, ..on_three }).expect("a configuration").apply().await.expect("created");
    let findings = harness.examine(&["one", "two", "three", "classic"]).await;
    findings.assert_has(Danger, "queue-replicas", "one");
    findings.assert_has(Warning, "queue-replicas", "two");
    findings.assert_passed("queue-replicas", "three");
    findings.assert_has(Danger, "queue-replicas", "classic");
    cluster.nodes()[2].kill9().await;
    // The other nodes need some time to detect it.
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut findings = harness.examine(&["three"]).await;
    while !findings.0.iter().any(|finding| finding.subject == "cluster-node") && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
        findings = harness.examine(&["three"]).await;
    }
    findings.assert_has(Warning, "cluster-node", "three@localhost");
    a_queue_whose_node_is_down_is_retried(&harness, old).await;
}

/// The server returns 404, as for a queue that does not exist. An operator would then try to create an existing
/// queue.
async fn a_queue_whose_node_is_down_is_retried(harness: &TopologyHarness, old: Queue) {
    let topology = Topology { queues: vec![old.clone()], ..Topology::default() };
    let plan = harness.admin(topology.clone()).plan().await.expect("a plan");
    assert!(plan.iter().all(|item| item.status == TopologyStatus::Unchanged), "{plan:#?}");
    let without = Config { management_urls: Vec::new(), topology, ..harness.config() };
    let admin = Admin::new(without).expect("a configuration");
    for result in [admin.plan().await, admin.apply().await] {
        let down = result.expect_err("its node is down");
        assert_eq!(down.class(), Class::Outage, "{}", down.error_chain());
        assert!(down.error_chain().contains("three@localhost"), "{}", down.error_chain());
    }
    let consumer = GroupConsumer::open(&harness.config(), &old, ConsumerOptions::default()).await.expect("a consumer");
    assert_idle(&consumer).await;
}
