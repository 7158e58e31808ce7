//! Every setting that breaks a guarantee: created on a real server, detected, fixed, and reported as good.

use std::net::TcpListener;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{self, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use relevo_broker_nats::{Admin, Auth, Config, Group, Stream, Topology};
use relevo_core::Class;
use relevo_core::broker::admin::{BrokerAdmin as _, ExamineContext};
use relevo_core::finding::Severity::{self, Danger, Note, Warning};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};

use crate::topology_harness::TopologyHarness;

/// Creates a stream with this setting, asserts the finding, fixes the stream, and asserts that it is good.
async fn has_finding(severity: Severity, subject: &str, change: impl Fn(&mut stream::Config)) {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let mut config = harness.safe_stream();
    change(&mut config);
    harness.create_stream(config).await;
    harness.examine().await.assert_has(severity, subject, &harness.name);
    harness.create_stream(harness.safe_stream()).await;
    harness.examine().await.assert_passed(subject, &harness.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_storage_is_a_danger() {
    has_finding(Danger, "stream-storage", |stream| stream.storage = StorageType::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_acknowledgements_or_with_early_ones_is_a_danger() {
    has_finding(Danger, "stream-no-ack", |stream| stream.no_ack = true).await;
    has_finding(Danger, "stream-persist", |stream| stream.persist_mode = Some(PersistenceMode::Async)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_that_drops_messages_is_a_danger() {
    let old = |stream: &mut stream::Config| stream.discard = DiscardPolicy::Old;
    has_finding(Danger, "discard-old", |stream| {
        old(stream);
        stream.max_bytes = 1_000_000;
    })
    .await;
    has_finding(Danger, "discard-old", |stream| {
        old(stream);
        stream.max_messages = 10;
    })
    .await;
    // A limit per subject drops messages even if a full stream refuses new ones.
    has_finding(Danger, "discard-old", |stream| stream.max_messages_per_subject = 1).await;
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    harness
        .create_stream(stream::Config {
            max_messages: 10,
            max_messages_per_subject: 1,
            discard_new_per_subject: true,
            ..harness.safe_stream()
        })
        .await;
    harness.examine().await.assert_passed("discard-old", &harness.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_maximum_age_is_reported() {
    has_finding(Warning, "max-age", |stream| stream.max_age = Duration::from_hours(1)).await;
    has_finding(Note, "max-age", |stream| stream.max_age = Duration::from_hours(72)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_window_shorter_than_the_horizon_is_a_warning() {
    has_finding(Warning, "duplicate-window", |stream| stream.duplicate_window = Duration::from_mins(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_by_interest_without_consumers_is_a_danger() {
    has_finding(Danger, "stream-retention", |stream| stream.retention = RetentionPolicy::Interest).await;
    has_finding(Note, "stream-retention", |stream| stream.retention = RetentionPolicy::WorkQueue).await;
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    harness.create_stream(stream::Config { retention: RetentionPolicy::Interest, ..harness.safe_stream() }).await;
    consumer(&harness, pull::Config::default()).await;
    harness.examine().await.assert_has(Note, "stream-retention", &harness.name);
}

async fn consumer(harness: &TopologyHarness, config: pull::Config) {
    let stream = harness.jetstream.get_stream(&harness.name).await.expect("the stream");
    let config = pull::Config { durable_name: Some("reader".to_owned()), ..config };
    stream.create_consumer(config).await.expect("a consumer");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_may_lose_messages_is_a_warning() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    harness.create_stream(harness.safe_stream()).await;
    consumer(&harness, pull::Config { ack_policy: AckPolicy::None, max_deliver: 3, ..Default::default() }).await;
    let findings = harness.examine().await;
    findings.assert_has(Warning, "consumer-ack", "reader");
    findings.assert_has(Warning, "delivery-limit-drops", "reader");
    harness.create_stream(harness.safe_stream()).await;
    consumer(&harness, pull::Config { ack_policy: AckPolicy::Explicit, ..Default::default() }).await;
    let findings = harness.examine().await;
    findings.assert_passed("consumer-ack", "reader");
    findings.assert_passed("delivery-limit-drops", "reader");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_no_stream_stores_is_a_danger() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let (subject, name) = (harness.subject(), harness.name.clone());
    harness.examine().await.assert_has(Danger, "route-unbound", &subject);
    let narrow = |subjects: &[String]| stream::Config { subjects: subjects.to_vec(), ..harness.safe_stream() };
    harness.create_stream(narrow(&[format!("{name}.*.0")])).await;
    let lanes = Config { lanes: Some(2), ..harness.config() };
    let findings = harness.examine_with(lanes.clone(), &[&subject]).await;
    findings.assert_has(Danger, "route-unbound", &subject);
    findings.assert_has(Danger, "route-unbound", &format!("{subject}.1"));
    harness.create_stream(narrow(&[format!("{name}.*.*")])).await;
    harness.examine_with(lanes, &[&subject]).await.assert_passed("route-unbound", &subject);
    let templated = format!("{name}.{{type}}");
    harness.examine_with(harness.config(), &[&templated]).await.assert_passed("route-unbound", &templated);
    // The configuration expects another stream.
    let elsewhere = Config { stream: Some("ELSEWHERE".to_owned()), ..harness.config() };
    harness.examine_with(elsewhere, &[&templated]).await.assert_has(Danger, "route-unbound", "ELSEWHERE");
    let right = Config { stream: Some(name), ..harness.config() };
    harness.examine_with(right, &[&templated]).await.assert_passed("route-unbound", &templated);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_server_and_the_settings_it_ignores_are_reported() {
    let harness = TopologyHarness::shared(NatsVersion::V2_9).await;
    let name = &harness.name;
    let stream = Stream::new(name, [format!("{name}.>")]);
    let group = Group::new(format!("g{name}"), name, [format!("{name}.a"), format!("{name}.b")]);
    let topology = Topology { streams: vec![stream], groups: vec![group.clone()] };
    harness.create_stream(harness.safe_stream()).await;
    let findings = harness.examine_with(Config { topology: topology.clone(), ..harness.config() }, &[]).await;
    findings.assert_has(Danger, "settings-ignored", &group.name);
    findings.assert_has(Note, "settings-ignored", name);
    // The interval is fixed in that version, and therefore known without a request.
    findings.assert_has(Warning, "sync-interval", name);
    let version: Vec<_> = findings.0.iter().filter(|finding| finding.subject == "server-version").collect();
    assert!(matches!(version[..], [found] if found.severity == Note && found.detail.contains("2.9")), "{version:?}");

    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let name = &harness.name;
    let stream = Stream::new(name, [format!("{name}.>")]);
    let group = Group::new(format!("g{name}"), name, [format!("{name}.a"), format!("{name}.b")]);
    let topology = Topology { streams: vec![stream], groups: vec![group.clone()] };
    harness.admin(topology.clone()).apply().await.expect("applied");
    let findings = harness.examine_with(Config { topology, ..harness.config() }, &[]).await;
    findings.assert_passed("settings-ignored", &group.name);
    findings.assert_passed("stream-storage", name);
    assert!(findings.0.iter().all(|finding| finding.severity <= Note), "{findings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_flush_interval_is_read_from_the_monitoring_port() {
    let private = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let harness = TopologyHarness::new_at(&private.url()).await;
    harness.create_stream(harness.safe_stream()).await;
    harness.examine().await.assert_has(Note, "sync-interval", &harness.name);
    let monitored = Config { monitoring_url: Some(private.monitor_url()), ..harness.config() };
    harness.examine_with(monitored, &[&harness.subject()]).await.assert_has(Warning, "sync-interval", &harness.name);
    let unreachable = Config { monitoring_url: Some("http://127.0.0.1:1".to_owned()), ..harness.config() };
    harness.examine_with(unreachable, &[&harness.subject()]).await.assert_has(Note, "sync-interval", &harness.name);

    let private = Private::start(NatsVersion::V2_15, Settings::new().jetstream("sync_interval: always")).await;
    let harness = TopologyHarness::new_at(&private.url()).await;
    harness.create_stream(harness.safe_stream()).await;
    let monitored = Config { monitoring_url: Some(private.monitor_url()), ..harness.config() };
    harness.examine_with(monitored, &[&harness.subject()]).await.assert_passed("sync-interval", &harness.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_in_a_cluster_is_a_danger() {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let ports = listeners.each_ref().map(|listener| listener.local_addr().expect("an address").port());
    drop(listeners);
    let routes = ports.map(|port| format!("\"nats://127.0.0.1:{port}\"")).join(", ");
    let settings = |port: u16| {
        let cluster = format!("cluster {{ name: relevo, listen: \"127.0.0.1:{port}\", routes: [ {routes} ] }}");
        Settings::new().config(&cluster)
    };
    let start = |port| Private::start(NatsVersion::V2_15, settings(port));
    let servers: [Private; 3] = tokio::join!(start(ports[0]), start(ports[1]), start(ports[2])).into();
    let harness = TopologyHarness::new_at(&servers[0].url()).await;
    for (replicas, severity) in [(1, Danger), (2, Warning)] {
        harness.create_stream(stream::Config { num_replicas: replicas, ..harness.safe_stream() }).await;
        harness.examine().await.assert_has(severity, "stream-replicas", &harness.name);
    }
    harness.create_stream(stream::Config { num_replicas: 3, ..harness.safe_stream() }).await;
    harness.examine().await.assert_passed("stream-replicas", &harness.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_can_fill_up_permanently_is_a_warning() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let full = stream::Config { max_messages: 1_000, ..harness.safe_stream() };
    harness.create_stream(full.clone()).await;
    harness.examine().await.assert_has(Warning, "stream-fills", &harness.name);
    harness.create_stream(stream::Config { max_age: Duration::from_hours(48), ..full.clone() }).await;
    harness.examine().await.assert_passed("stream-fills", &harness.name);
    harness.create_stream(stream::Config { retention: RetentionPolicy::WorkQueue, ..full }).await;
    harness.examine().await.assert_passed("stream-fills", &harness.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn interest_in_only_some_subjects_is_a_danger() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let lanes = || Config { lanes: Some(2), ..harness.config() };
    for (filter, severity) in [("orders.0", Danger), ("orders.*", Note)] {
        harness.create_stream(stream::Config { retention: RetentionPolicy::Interest, ..harness.safe_stream() }).await;
        let filter_subject = format!("{}.{filter}", harness.name);
        consumer(&harness, pull::Config { filter_subject, ..Default::default() }).await;
        let findings = harness.examine_with(lanes(), &[&harness.subject()]).await;
        findings.assert_has(severity, "stream-retention", &harness.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_with_a_different_lane_count_than_its_publishers_is_a_danger() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    harness.create_stream(harness.safe_stream()).await;
    for (published, read, is_good) in [(4, 4, true), (4, 2, false)] {
        let group =
            Group { lanes: Some(read), ..Group::new(format!("g{}", harness.name), &harness.name, [harness.subject()]) };
        let topology = Topology { streams: Vec::new(), groups: vec![group.clone()] };
        let config = Config { lanes: Some(published), topology, ..harness.config() };
        let findings = harness.examine_with(config, &[&harness.subject()]).await;
        if is_good {
            findings.assert_passed("lanes-differ", &group.name);
        } else {
            findings.assert_has(Danger, "lanes-differ", &group.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catch_all_group_without_lanes_over_laned_subjects_is_a_danger() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    harness.create_stream(harness.safe_stream()).await;
    let group = Group::new(format!("g{}", harness.name), &harness.name, [""; 0]);
    let topology = Topology { streams: Vec::new(), groups: vec![group.clone()] };
    let config = Config { topology, ..harness.config() };
    harness.examine_with(config.clone(), &[&harness.subject()]).await.assert_passed("lanes-differ", &group.name);
    let with_lanes = Config { lanes: Some(4), ..config };
    harness.examine_with(with_lanes, &[&harness.subject()]).await.assert_has(Danger, "lanes-differ", &group.name);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_jetstream_or_permissions_is_explained() {
    let users = "accounts { A { users: [ { user: \"a\", password: \"p\" } ] }, B { jetstream: enabled, users: \
         [ { user: \"b\", password: \"p\", permissions: { publish: { deny: [ \"$JS.API.STREAM.LIST\" ] } } } ] } }";
    let private = Private::start(NatsVersion::V2_15, Settings::new().config(users)).await;
    let auth = |user: &str| Auth::UserPassword { user: user.to_owned(), password: "p".to_owned() };
    let confirm_timeout = Duration::from_secs(3);
    let config = |user| Config { auth: auth(user), confirm_timeout, ..Config::new(private.url()) };
    let expectations = ExamineContext { addresses: Vec::new(), resend_window: Duration::from_mins(5) };
    let without = Admin::new(config("a")).expect("a valid configuration").examine(&expectations).await;
    let failure = without.expect_err("there is no JetStream");
    assert_eq!(failure.class(), Class::Blocked, "{}", failure.error_chain());
    assert!(failure.error_chain().contains("JetStream is not enabled"), "{}", failure.error_chain());
    let denied = Admin::new(config("b")).expect("a valid configuration").examine(&expectations).await;
    let findings = denied.expect("findings");
    assert!(matches!(&findings[..], [one] if one.severity == Note && one.subject == "not-examined"), "{findings:?}");
}
