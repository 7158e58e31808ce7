//! Compares each setting with a different value on a real server.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, FromConsumer, IntoConsumerConfig, pull, push};
use async_nats::jetstream::stream::{self, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use relevo_broker_nats::{Config, Group, Membership, Stream, Topology, declare_group};
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
async fn differences_of(stage: &TopologyHarness, piece: &str) -> Vec<String> {
    let plan = stage.admin(topology(&stage.name)).plan().await.expect("a plan");
    match plan.into_iter().find(|found| found.name == piece).expect("the piece").status {
        TopologyStatus::Different(differences) => differences.iter().map(ToString::to_string).collect(),
        TopologyStatus::Unchanged => Vec::new(),
        other => panic!("{piece} is {other:?}"),
    }
}

/// The stream configuration on the server.
async fn found(stage: &TopologyHarness, stream: &str) -> stream::Config {
    stage.jetstream.get_stream(stream).await.expect("the stream").cached_info().config.clone()
}

/// Recreates a stream with other settings.
async fn recreate_stream(stage: &TopologyHarness, config: stream::Config) {
    stage.jetstream.delete_stream(&config.name).await.expect("deleted");
    stage.jetstream.create_stream(config).await.expect("made again");
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
async fn recreate_stream_with(stage: &TopologyHarness, good: &stream::Config, change: fn(&mut stream::Config)) {
    let mut config = good.clone();
    change(&mut config);
    recreate_stream(stage, stream::Config { sealed: false, ..config.clone() }).await;
    if config.sealed {
        stage.jetstream.update_stream(config).await.expect("sealed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_different_stream_setting_is_reported() {
    let stage = TopologyHarness::shared(NatsVersion::V2_15).await;
    let name = stage.name.clone();
    let piece = format!("stream `{name}`");
    stage.admin(topology(&name)).apply().await.expect("made");
    let good = found(&stage, &name).await;
    let own: [StreamCase; 4] = [
        ("`subjects` is ", |config| config.subjects.push(format!("{}-more", config.name))),
        ("`max_msgs_per_subject` is 7, wanted none", |config| config.max_messages_per_subject = 7),
        ("`duplicate_window` is 60s, wanted 600s", |config| config.duplicate_window = Duration::from_mins(1)),
        ("`allow_atomic_publish` is false, wanted true", |config| config.allow_atomic_publish = false),
    ];
    for (wanted, change) in STREAM_CASES.into_iter().chain(own) {
        recreate_stream_with(&stage, &good, change).await;
        let told = differences_of(&stage, &piece).await;
        let mends_window = |one: &&String| !(wanted.contains("max_age") && one.contains("duplicate_window"));
        let told: Vec<_> = told.iter().filter(mends_window).collect();
        assert!(matches!(told[..], [one] if one.starts_with(wanted)), "{wanted}: {told:?}");
    }
    let mirror = Some(stream::Source { name: format!("origin-{name}"), ..stream::Source::default() });
    recreate_stream(&stage, stream::Config { mirror, subjects: Vec::new(), ..stage.safe_stream() }).await;
    let wanted = format!("`mirror` is origin-{name}, wanted none");
    let told = differences_of(&stage, &piece).await;
    assert!(told.contains(&wanted), "{told:?}");
    recreate_stream(&stage, good).await;
    assert_eq!(differences_of(&stage, &piece).await, [""; 0]);
}

type ConsumerCase = (&'static str, fn(&mut pull::Config));

#[tokio::test(flavor = "multi_thread")]
async fn each_different_consumer_setting_is_reported_and_refused() {
    let stage = TopologyHarness::shared(NatsVersion::V2_15).await;
    let topology = topology(&stage.name);
    let group = &topology.groups[0];
    stage.admin(topology.clone()).apply().await.expect("made");
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
        assert_differs(&stage, group, config, setting).await;
        assert_refused(&stage, group, setting).await;
    }
    let pushed = push::Config {
        durable_name: good.durable_name.clone(),
        deliver_subject: format!("{}-pushed", stage.name),
        ack_wait: good.ack_wait,
        max_ack_pending: good.max_ack_pending,
        filter_subject: good.filter_subject.clone(),
        ..push::Config::default()
    };
    assert_differs(&stage, group, pushed, "deliver_subject").await;
    assert_refused(&stage, group, "deliver_subject").await;
    // Fewer replicas than its stream is unsafe, but works.
    assert_differs(&stage, group, pull::Config { num_replicas: 1, ..good }, "num_replicas").await;
    declare_group(&stage.config(), group).await.expect("nothing that a consumer needs");
}

/// Recreates the durable consumer of the group, and asserts that only this setting is reported.
async fn assert_differs<C: IntoConsumerConfig + FromConsumer>(
    stage: &TopologyHarness,
    group: &Group,
    config: C,
    setting: &str,
) {
    let stream = stage.jetstream.get_stream(&stage.name).await.expect("the stream");
    stream.delete_consumer(&group.name).await.expect("deleted");
    stream.create_consumer(config).await.expect("made again");
    let told = differences_of(stage, &format!("consumer `{}` of stream `{}`", group.name, stage.name)).await;
    assert!(matches!(&told[..], [one] if one.starts_with(&format!("`{setting}` is "))), "{setting}: {told:?}");
}

async fn assert_refused(stage: &TopologyHarness, group: &Group, setting: &str) {
    let opened = relevo_broker_nats::consumer(&stage.config(), group, Membership::default()).await.map(drop);
    for refused in [opened, declare_group(&stage.config(), group).await] {
        let error = refused.expect_err(setting);
        assert_eq!(error.class(), Class::Blocked, "{setting}");
        assert!(error.to_string().contains(&format!("`{setting}` is ")), "{setting}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_different_bucket_setting_is_reported() {
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new()).await;
        let stage = TopologyHarness::new_at(&server.url()).await;
        let piece = "bucket `relevo-lanes`";
        stage.admin(topology(&stage.name)).apply().await.expect("made");
        assert_eq!(differences_of(&stage, piece).await, [""; 0]);
        let good = found(&stage, BUCKET).await;
        let own: [StreamCase; 2] = [
            ("`subjects` is ", |config| config.subjects = vec!["$KV.relevo-lanes.*".to_owned()]),
            ("`max_msgs_per_subject` is 5, wanted 1", |config| config.max_messages_per_subject = 5),
        ];
        for (wanted, change) in STREAM_CASES.into_iter().chain(own) {
            recreate_stream_with(&stage, &good, change).await;
            let told = differences_of(&stage, piece).await;
            assert!(matches!(&told[..], [one] if one.starts_with(wanted)), "{wanted}: {told:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_with_limits_is_reported_until_it_is_fixed() {
    let server = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let stage = TopologyHarness::new_at(&server.url()).await;
    let topology = topology(&stage.name);
    stage.admin(topology.clone()).apply().await.expect("made");
    let good = found(&stage, BUCKET).await;
    let examined = || stage.examine_with(Config { topology: topology.clone(), ..stage.config() }, &[]);
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
        recreate_stream_with(&stage, &good, change).await;
        examined().await.assert_has(severity, subject, BUCKET);
        recreate_stream(&stage, good.clone()).await;
        examined().await.assert_passed(subject, BUCKET);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn different_replica_counts_and_an_unreplicated_bucket_are_reported() {
    let cluster = Cluster::of_three().await;
    let stage = TopologyHarness::new_at(&cluster.urls()[0]).await;
    let mut topology = topology(&stage.name);
    stage.admin(topology.clone()).apply().await.expect("made");
    let config = Config { topology: topology.clone(), ..stage.config() };
    stage.examine_with(config.clone(), &[]).await.assert_has(Danger, "stream-replicas", BUCKET);
    let bucket = found(&stage, BUCKET).await;
    recreate_stream(&stage, stream::Config { num_replicas: 3, ..bucket }).await;
    stage.examine_with(config, &[]).await.assert_passed("stream-replicas", BUCKET);
    topology.streams[0].replicas = 3;
    let plan = stage.admin(topology).plan().await.expect("a plan");
    let TopologyStatus::Different(differences) = &plan[0].status else { panic!("{plan:#?}") };
    assert_eq!(differences.iter().map(ToString::to_string).collect::<Vec<_>>(), ["`num_replicas` is 1, wanted 3"]);
}
