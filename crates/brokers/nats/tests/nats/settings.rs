//! Compares each setting with a different value on a real server.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, FromConsumer, IntoConsumerConfig, pull, push};
use async_nats::jetstream::stream::{self, DiscardPolicy, PersistenceMode, RetentionPolicy, StorageType};
use relevo_broker_nats::{Config, Group, Membership, Stream, Topology, declare};
use relevo_core::Class;
use relevo_core::administer::{Administer as _, State};
use relevo_core::operate::Severity::{Danger, Warning};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Cluster, Private, Settings};

use crate::stage::Stage;

const BUCKET: &str = "KV_relevo-lanes";

fn topology(name: &str) -> Topology {
    let group = Group::new(format!("g{name}"), name, [format!("{name}.orders")]);
    Topology { streams: vec![Stream::new(name, [format!("{name}.>")])], groups: vec![group] }
}

/// The differences of a topology item; empty if it matches.
async fn planned(stage: &Stage, piece: &str) -> Vec<String> {
    let plan = stage.admin(topology(&stage.name)).plan().await.expect("a plan");
    match plan.into_iter().find(|found| found.name == piece).expect("the piece").state {
        State::Differs(differences) => differences.iter().map(ToString::to_string).collect(),
        State::Same => Vec::new(),
        other => panic!("{piece} is {other:?}"),
    }
}

/// The stream configuration on the server.
async fn found(stage: &Stage, stream: &str) -> stream::Config {
    stage.jetstream.get_stream(stream).await.expect("the stream").cached_info().config.clone()
}

/// Recreates a stream with other settings.
async fn remake(stage: &Stage, config: stream::Config) {
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
async fn remake_so(stage: &Stage, good: &stream::Config, change: fn(&mut stream::Config)) {
    let mut config = good.clone();
    change(&mut config);
    remake(stage, stream::Config { sealed: false, ..config.clone() }).await;
    if config.sealed {
        stage.jetstream.update_stream(config).await.expect("sealed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_setting_of_a_stream_that_differs_is_told() {
    let stage = Stage::shared(NatsVersion::V2_15).await;
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
        remake_so(&stage, &good, change).await;
        let told = planned(&stage, &piece).await;
        let mends_window = |one: &&String| !(wanted.contains("max_age") && one.contains("duplicate_window"));
        let told: Vec<_> = told.iter().filter(mends_window).collect();
        assert!(matches!(told[..], [one] if one.starts_with(wanted)), "{wanted}: {told:?}");
    }
    let mirror = Some(stream::Source { name: format!("origin-{name}"), ..stream::Source::default() });
    remake(&stage, stream::Config { mirror, subjects: Vec::new(), ..stage.safe() }).await;
    let wanted = format!("`mirror` is origin-{name}, wanted none");
    let told = planned(&stage, &piece).await;
    assert!(told.contains(&wanted), "{told:?}");
    remake(&stage, good).await;
    assert_eq!(planned(&stage, &piece).await, [""; 0]);
}

type ConsumerCase = (&'static str, fn(&mut pull::Config));

#[tokio::test(flavor = "multi_thread")]
async fn each_setting_of_a_durable_consumer_that_differs_is_told_and_refused() {
    let stage = Stage::shared(NatsVersion::V2_15).await;
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
        differs(&stage, group, config, setting).await;
        refused(&stage, group, setting).await;
    }
    let pushed = push::Config {
        durable_name: good.durable_name.clone(),
        deliver_subject: format!("{}-pushed", stage.name),
        ack_wait: good.ack_wait,
        max_ack_pending: good.max_ack_pending,
        filter_subject: good.filter_subject.clone(),
        ..push::Config::default()
    };
    differs(&stage, group, pushed, "deliver_subject").await;
    refused(&stage, group, "deliver_subject").await;
    // Fewer replicas than its stream is unsafe, but works.
    differs(&stage, group, pull::Config { num_replicas: 1, ..good }, "num_replicas").await;
    declare(&stage.config(), group).await.expect("nothing that a consumer needs");
}

/// Recreates the durable consumer of the group, and asserts that only this setting is reported.
async fn differs<C: IntoConsumerConfig + FromConsumer>(stage: &Stage, group: &Group, config: C, setting: &str) {
    let stream = stage.jetstream.get_stream(&stage.name).await.expect("the stream");
    stream.delete_consumer(&group.name).await.expect("deleted");
    stream.create_consumer(config).await.expect("made again");
    let told = planned(stage, &format!("consumer `{}` of stream `{}`", group.name, stage.name)).await;
    assert!(matches!(&told[..], [one] if one.starts_with(&format!("`{setting}` is "))), "{setting}: {told:?}");
}

async fn refused(stage: &Stage, group: &Group, setting: &str) {
    let opened = relevo_broker_nats::consumer(&stage.config(), group, Membership::default()).await.map(drop);
    for refused in [opened, declare(&stage.config(), group).await] {
        let error = refused.expect_err(setting);
        assert_eq!(error.class(), Class::Blocked, "{setting}");
        assert!(error.to_string().contains(&format!("{setting} is ")), "{setting}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_setting_of_the_bucket_that_differs_is_told() {
    for version in NatsVersion::ALL {
        let server = Private::start(version, Settings::new()).await;
        let stage = Stage::at(&server.url()).await;
        let piece = "bucket `relevo-lanes`";
        stage.admin(topology(&stage.name)).apply().await.expect("made");
        assert_eq!(planned(&stage, piece).await, [""; 0]);
        let good = found(&stage, BUCKET).await;
        let own: [StreamCase; 2] = [
            ("`subjects` is ", |config| config.subjects = vec!["$KV.relevo-lanes.*".to_owned()]),
            ("`max_msgs_per_subject` is 5, wanted 1", |config| config.max_messages_per_subject = 5),
        ];
        for (wanted, change) in STREAM_CASES.into_iter().chain(own) {
            remake_so(&stage, &good, change).await;
            let told = planned(&stage, piece).await;
            assert!(matches!(&told[..], [one] if one.starts_with(wanted)), "{wanted}: {told:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_forgets_or_fills_is_found_and_good_when_it_is_mended() {
    let server = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let stage = Stage::at(&server.url()).await;
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
        remake_so(&stage, &good, change).await;
        examined().await.has(severity, subject, BUCKET);
        remake(&stage, good.clone()).await;
        examined().await.good(subject, BUCKET);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_differ_are_told_and_a_bucket_with_one_is_found() {
    let cluster = Cluster::of_three().await;
    let stage = Stage::at(&cluster.urls()[0]).await;
    let mut topology = topology(&stage.name);
    stage.admin(topology.clone()).apply().await.expect("made");
    let config = Config { topology: topology.clone(), ..stage.config() };
    stage.examine_with(config.clone(), &[]).await.has(Danger, "stream-replicas", BUCKET);
    let bucket = found(&stage, BUCKET).await;
    remake(&stage, stream::Config { num_replicas: 3, ..bucket }).await;
    stage.examine_with(config, &[]).await.good("stream-replicas", BUCKET);
    topology.streams[0].replicas = 3;
    let plan = stage.admin(topology).plan().await.expect("a plan");
    let State::Differs(differences) = &plan[0].state else { panic!("{plan:#?}") };
    assert_eq!(differences.iter().map(ToString::to_string).collect::<Vec<_>>(), ["`num_replicas` is 1, wanted 3"]);
}
