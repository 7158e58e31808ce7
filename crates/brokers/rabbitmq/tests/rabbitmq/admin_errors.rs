//! Checks of servers with a different setup: the management API with TLS, and a cluster.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use relevo_broker_rabbitmq::{Admin, Config, GroupConsumer, Identity, Membership, Queue, QueueKind, Tls, Topology};
use relevo_conformance::broker::harness::assert_idle;
use relevo_core::broker::admin::{BrokerAdmin as _, ExamineContext, TopologyStatus};
use relevo_core::finding::Severity::{Danger, Note, Warning};
use relevo_core::{Class, Failure};
use relevo_testkit::certs::Certs;
use relevo_testkit::rabbitmq::{Cluster, Private, Settings};
use serde_json::json;

use crate::topology_harness::{Findings, TopologyHarness};

async fn examine(config: Config) -> Result<Findings, Failure> {
    let admin = Admin::new(config).expect("a configuration that can be");
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
    private.ctl(&["add_user", "looker", "p@ss:word"]).await;
    private.ctl(&["set_permissions", "looker", ".*", ".*", ".*"]).await;

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
    let looker = Config { user: Some("looker".into()), password: Some("p@ss:word".into()), ..good.clone() };
    let refused = examine(looker.clone()).await.expect_err("a user without a tag");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.error_chain());
    private.ctl(&["set_user_tags", "looker", "management"]).await;
    examine(looker.clone()).await.expect("findings").assert_has(Note, "management", "monitoring");
    private.ctl(&["set_user_tags", "looker", "monitoring"]).await;
    let in_url = format!("https://looker:p%40ss%3Aword@localhost:{port}");
    let looker = Config { management_urls: vec![in_url], ..good };
    examine(looker.clone()).await.expect("findings").assert_has(Note, "management", "administrator");
    private.ctl(&["set_user_tags", "looker", "administrator"]).await;
    examine(looker).await.expect("findings").assert_all_passed();
}

/// The URL of the stage's virtual host on another node.
fn at_node(node: &Private, stage: &TopologyHarness) -> String {
    let url = stage.vhost.amqp_url();
    let (before, vhost) = url.rsplit_once('/').expect("a virtual host");
    let (host, _) = before.rsplit_once(':').expect("a port");
    format!("{host}:{}/{vhost}", node.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_in_a_cluster_is_a_danger() {
    let cluster = Cluster::of_three_with(Settings::new().management()).await;
    let stage = TopologyHarness::new_at(cluster.nodes()[0].vhost().await).await;
    let quorum = |size: u8| json!({ "x-queue-type": "quorum", "x-quorum-initial-group-size": size });
    for (name, size) in [("one", 1), ("two", 2), ("three", 3)] {
        stage.queue(name, quorum(size)).await;
    }
    stage.queue("classic", json!({})).await;
    let old =
        Queue { kind: QueueKind::Classic, retry_delays: Vec::new(), dead_letter_queue: None, ..Queue::new("old") };
    let on_three = Config { urls: vec![at_node(&cluster.nodes()[2], &stage)], ..stage.config() };
    let topology = Topology { queues: vec![old.clone()], ..Topology::default() };
    Admin::new(Config { topology, ..on_three }).expect("a configuration").apply().await.expect("made");
    let findings = stage.examine(&["one", "two", "three", "classic"]).await;
    findings.assert_has(Danger, "queue-replicas", "one");
    findings.assert_has(Warning, "queue-replicas", "two");
    findings.assert_passed("queue-replicas", "three");
    findings.assert_has(Danger, "queue-replicas", "classic");
    cluster.nodes()[2].kill9().await;
    // The other nodes need some time to notice.
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut findings = stage.examine(&["three"]).await;
    while !findings.0.iter().any(|finding| finding.subject == "cluster-node") && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
        findings = stage.examine(&["three"]).await;
    }
    findings.assert_has(Warning, "cluster-node", "three@localhost");
    a_queue_whose_node_is_down_is_retried(&stage, old).await;
}

/// The server returns 404, as for a queue that does not exist. An operator would then be asked to create an existing
/// queue.
async fn a_queue_whose_node_is_down_is_retried(stage: &TopologyHarness, old: Queue) {
    let topology = Topology { queues: vec![old.clone()], ..Topology::default() };
    let plan = stage.admin(topology.clone()).plan().await.expect("a plan");
    assert!(plan.iter().all(|piece| piece.status == TopologyStatus::Unchanged), "{plan:#?}");
    let without = Config { management_urls: Vec::new(), topology, ..stage.config() };
    let admin = Admin::new(without).expect("a configuration");
    for asked in [admin.plan().await, admin.apply().await] {
        let away = asked.expect_err("nobody can look at it");
        assert_eq!(away.class(), Class::Outage, "{}", away.error_chain());
        assert!(away.error_chain().contains("three@localhost"), "{}", away.error_chain());
    }
    let consumer = GroupConsumer::open(&stage.config(), &old, Membership::default()).await.expect("a consumer");
    assert_idle(&consumer).await;
}
