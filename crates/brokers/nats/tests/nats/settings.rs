//! Compares each setting with a different value on a real server.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, FromConsumer, IntoConsumerConfig, pull, push};
use async_nats::jetstream::stream::{self, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use relevo_broker_nats::{Config, ConsumerOptions, Group, Stream, Topology, declare_group};
use relevo_core::Class;
use relevo_core::broker::admin::{BrokerAdmin as _, TopologyStatus};
use relevo_core::finding::Severity::{Danger, Warning};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Cluster, Private, Settings};

use crate::topology_harness::TopologyHarness;

const BUCKET: &str = "KV_relevo-lanes";

fn topology(name: &str) -> Topology {
    let group = Group::new(format!("g{name}"), name, [format!("{name}.orders")]);
    Topology { streams: vec![Stream::new(name, [format!("{name}.>")])], groups: vec![group] }
}

/// The differences of a topology item; empty if it matches.
async fn differences_of(harness: &TopologyHarness, item: &str) -> Vec<String> {
    let plan = harness.admin(topology(&harness.name)).plan().await.expect("a plan");
    match plan.into_iter().find(|found| found.name == item).expect("the item").status {
        TopologyStatus::Different(differences) => differences.iter().map(ToString::to_string).collect(),
        TopologyStatus::Unchanged => Vec::new(),
        other => panic!("{item} is {other:?}"),
    }
}

/// The stream configuration on the server.
async fn found(harness: &TopologyHarness, stream: &str) -> stream::Config {
    harness.jetstream.get_stream(stream).await.expect("the stream").cached_info().config.clone()
}

/// Recreates a stream with other settings.
async fn recreate_stream(harness: &TopologyHarness, config: stream::Config) {
    harness.jetstream.delete_stream(&config.name).await.expect("deleted");
    harness.jetstream.create_stream(config).await.expect("recreated");
}

type StreamCase = (&'static str, fn(&mut stream::Config));

/// Settings that streams and the bucket share, each with the difference that is reported for either.
const STREAM_CASES: [StreamCase; 9] = [
    ("`storage` is Memory, wanted File", |config| config.storage = StorageType::Memory),
    ("`retention` is WorkQueue, wanted Limits", |config| config.retention = RetentionPolicy::WorkQueue),
    ("`max_age` is 3600s, wanted none", |config| config.max_age = Duration::from_hours(1)),
    ("`max_bytes` is 1000000, wanted none", |config| config.max_bytes = 1_000_000),
    ("`max_msgs` is 500, wanted none", |config| config.max_messages = 500),
    ("`max_msg_size` is 2000, wanted none", |config| config.max_message_size = 2_000),
    ("`discard` is Old, wanted New", |config| config.discard = DiscardPolicy::Old),
    ("`no_ack` is true, wanted false", |config| config.no_ack = true),
    ("`sealed` is true, wanted false", |config| config.sealed = true),
];

/// Recreates a stream with one changed setting. An update after the creation seals it.
async fn recreate_stream_with(harness: &TopologyHarness, good: &stream::Config, change: fn(&mut stream::Config)) {
    let mut config = good.clone();
    change(&mut config);
    recreate_stream(harness, stream::Config { sealed: false, ..config.clone() }).await;
    if config.sealed {
        harness.jetstream.update_stream(config).await.expect("sealed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_different_stream_setting_is_reported() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let name = harness.name.clone();
    let item = format!("stream `{name}`");
    harness.admin(topology(&name)).apply().await.expect("applied");
    let good = found(&harness, &name).await;
    let own: [StreamCase; 4] = [
        ("`subjects` is ", |config| config.subjects.push(format!("{}-more", config.name))),
        ("`max_msgs_per_subject` is 7, wanted none", |config| config.max_messages_per_subject = 7),
        ("`duplicate_window` is 60s, wanted 600s", |config| config.duplicate_window = Duration::from_mins(1)),
        ("`allow_atomic_publish` is false, wanted true", |config| config.allow_atomic_publish = false),
    ];
    for (wanted, change) in STREAM_CASES.into_iter().chain(own) {
        recreate_stream_with(&harness, &good, change).await;
        let differences = differences_of(&harness, &item).await;
        let is_expected = |one: &&String| !(wanted.contains("max_age") && one.contains("duplicate_window"));
        let differences: Vec<_> = differences.iter().filter(is_expected).collect();
        assert!(matches!(differences[..], [one] if one.starts_with(wanted)), "{wanted}: {differences:?}");
    }
    let mirror = Some(stream::Source { name: format!("origin-{name}"), ..stream::Source::default() });
    recreate_stream(&harness, stream::Config { mirror, subjects: Vec::new(), ..harness.safe_stream() }).await;
    let wanted = format!("`mirror` is origin-{name}, wanted none");
    let differences = differences_of(&harness, &item).await;
    assert!(differences.contains(&wanted), "{differences:?}");
    recreate_stream(&harness, good).await;
    assert_eq!(differences_of(&harness, &item).await, [""; 0]);
}

type ConsumerCase = (&'static str, fn(&mut pull::Config));

#[tokio::test(flavor = "multi_thread")]
async fn each_different_consumer_setting_is_reported_and_refused() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let topology = topology(&harness.name);
    let group = &topology.groups[0];
    harness.admin(topology.clone()).apply().await.expect("applied");
    let good = pull::Config {
        durable_name: Some(group.name.clone()),
        ack_wait: Duration::from_secs(30),
        max_ack_pending: 1_000,
        filter_subject: group.subjects[0].clone(),
        ..pull::Config::default()
    };
    let cases: [ConsumerCase; 8] = [
        ("subjects", |config| config.filter_subject.push_str(".other")),
        ("ack_policy", |config| config.ack_policy = AckPolicy::All),
        ("ack_wait", |config| config.ack_wait = Duration::from_secs(31)),
        ("max_ack_pending", |config| config.max_ack_pending = 999),
        ("max_deliver", |config| config.max_deliver = 3),
        ("headers_only", |config| config.headers_only = true),
        ("inactive_threshold", |config| config.inactive_threshold = Duration::from_mins(9)),
        ("mem_storage", |config| config.memory_storage = true),
    ];
    for (setting, change) in cases {
        let mut config = good.clone();
        change(&mut config);
        assert_differs(&harness, group, config, setting).await;
        assert_refused(&harness, group, setting).await;
    }
    let pushed = push::Config {
        durable_name: good.durable_name.clone(),
        deliver_subject: format!("{}-pushed", harness.name),
        ack_wait: good.ack_wait,
        max_ack_pending: good.max_ack_pending,
        filter_subject: good.filter_subject.clone(),
        ..push::Config::default()
    };
    assert_differs(&harness, group, pushed, "deliver_subject").await;
    assert_refused(&harness, group, "deliver_subject").await;
    // Fewer replicas than its stream is unsafe, but works.
    assert_differs(&harness, group, pull::Config { num_replicas: 1, ..good }, "num_replicas").await;
    declare_group(&harness.config(), group).await.expect("consumers do not depend on it");
}

/// Recreates the durable consumer of the group, and asserts that only this setting is reported.
async fn assert_differs<C: IntoConsumerConfig + FromConsumer>(
    harness: &TopologyHarness,
    group: &Group,
    config: C,
    setting: &str,
) {
    let stream = harness.jetstream.get_stream(&harness.name).await.expect("the stream");
    stream.delete_consumer(&group.name).await.expect("deleted");
    stream.create_consumer(config).await.expect("recreated");
    let differences = differences_of(harness, &format!("consumer `{}` of stream `{}`", group.name, harness.name)).await;
    assert!(
        matches!(&differences[..], [one] if one.starts_with(&format!("`{setting}` is "))),
        "{setting}: {differences:?}"
    );
}

async fn assert_refused(harness: &TopologyHarness, group: &Group, setting: &str) {
    let opened = relevo_broker_nats::consumer(&harness.config(), group, ConsumerOptions::default()).await.map(drop);
    for refused in [opened, declare_group(&harness.config(), group).await] {
        let error = refused.expect_err(setting);
        assert_eq!(error.class(), Class::Blocked, "{setting}");
        assert!(error.to_string().contains(&format!("`{setting}` is ")), "{setting}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_different_bucket_setting_is_reported() {
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new()).await;
        let harness = TopologyHarness::new_at(&server.url()).await;
        let item = "bucket `relevo-lanes`";
        harness.admin(topology(&harness.name)).apply().await.expect("applied");
        assert_eq!(differences_of(&harness, item).await, [""; 0]);
        let good = found(&harness, BUCKET).await;
        let own: [StreamCase; 2] = [
            ("`subjects` is ", |config| config.subjects = vec!["$KV.relevo-lanes.*".to_owned()]),
            ("`max_msgs_per_subject` is 5, wanted 1", |config| config.max_messages_per_subject = 5),
        ];
        for (wanted, change) in STREAM_CASES.into_iter().chain(own) {
            recreate_stream_with(&harness, &good, change).await;
            let differences = differences_of(&harness, item).await;
            assert!(matches!(&differences[..], [one] if one.starts_with(wanted)), "{wanted}: {differences:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_limits_is_reported_until_it_is_fixed() {
    let server = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let harness = TopologyHarness::new_at(&server.url()).await;
    let topology = topology(&harness.name);
    harness.admin(topology.clone()).apply().await.expect("applied");
    let good = found(&harness, BUCKET).await;
    let examined = || harness.examine_with(Config { topology: topology.clone(), ..harness.config() }, &[]);
    let cases: [(_, _, fn(&mut stream::Config)); 7] = [
        (Danger, "stream-storage", |config| config.storage = StorageType::Memory),
        (Danger, "stream-no-ack", |config| config.no_ack = true),
        (Danger, "stream-persist", |config| config.persist_mode = Some(PersistenceMode::Async)),
        (Danger, "max-age", |config| config.max_age = Duration::from_hours(72)),
        (Danger, "discard-old", |config| {
            config.max_bytes = 1_000_000;
            config.discard = DiscardPolicy::Old;
        }),
        (Warning, "stream-fills", |config| config.max_bytes = 1_000_000),
        (Warning, "stream-fills", |config| config.max_messages = 500),
    ];
    for (severity, subject, change) in cases {
        recreate_stream_with(&harness, &good, change).await;
        examined().await.assert_has(severity, subject, BUCKET);
        recreate_stream(&harness, good.clone()).await;
        examined().await.assert_passed(subject, BUCKET);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn different_replica_counts_and_an_unreplicated_bucket_are_reported() {
    let cluster = Cluster::of_three().await;
    let harness = TopologyHarness::new_at(&cluster.urls()[0]).await;
    let mut topology = topology(&harness.name);
    harness.admin(topology.clone()).apply().await.expect("applied");
    let config = Config { topology: topology.clone(), ..harness.config() };
    harness.examine_with(config.clone(), &[]).await.assert_has(Danger, "stream-replicas", BUCKET);
    let bucket = found(&harness, BUCKET).await;
    recreate_stream(&harness, stream::Config { num_replicas: 3, ..bucket }).await;
    harness.examine_with(config, &[]).await.assert_passed("stream-replicas", BUCKET);
    topology.streams[0].replicas = 3;
    let plan = harness.admin(topology).plan().await.expect("a plan");
    let TopologyStatus::Different(differences) = &plan[0].status else { panic!("{plan:#?}") };
    assert_eq!(differences.iter().map(ToString::to_string).collect::<Vec<_>>(), ["`num_replicas` is 1, wanted 3"]);
}
