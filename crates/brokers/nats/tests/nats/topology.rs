//! Topology from configuration: planned, created, compared, and never changed without a request.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream;
use relevo_broker_nats::{Admin, Auth, Config, Error, Group, Publisher, ReplayLog, Stream, Topology, declare_group};
use relevo_core::Class;
use relevo_core::broker::admin::{BrokerAdmin as _, TopologyItem, TopologyStatus};
use relevo_core::replay_source::{ReplayFilter, ReplayReadRequest, ReplaySource as _, ReplaySourceError};
use relevo_testkit::NatsVersion;

use crate::topology_harness::TopologyHarness;

fn topology(stage: &TopologyHarness) -> Topology {
    let name = &stage.name;
    let stream = Stream { max_bytes: Some(1 << 20), ..Stream::new(name, [format!("{name}.orders.*")]) };
    let group = Group { lanes: Some(2), ..Group::new(format!("g{name}"), name, [format!("{name}.orders")]) };
    Topology { streams: vec![stream], groups: vec![group] }
}

/// All tests share the bucket of lanes on a shared server, so it may or may not exist.
fn without_bucket(pieces: Vec<TopologyItem>) -> Vec<TopologyItem> {
    pieces.into_iter().filter(|piece| piece.name != "bucket `relevo-lanes`").collect()
}

fn states(pieces: &[TopologyItem]) -> Vec<&TopologyStatus> {
    let mut states: Vec<_> = pieces.iter().map(|piece| &piece.status).collect();
    states.dedup();
    states
}

fn differences_of<'a>(pieces: &'a [TopologyItem], name: &str) -> Vec<String> {
    let piece: &'a TopologyItem = pieces.iter().find(|piece| piece.name == name).unwrap_or_else(|| panic!("no {name}"));
    match &piece.status {
        TopologyStatus::Different(differences) => differences.iter().map(ToString::to_string).collect(),
        other => panic!("{name} does not differ: {other:?}"),
    }
}

async fn missing_items_are_created_once(version: NatsVersion) {
    let stage = TopologyHarness::shared(version).await;
    let admin = stage.admin(topology(&stage));
    let plan = without_bucket(admin.plan().await.expect("a plan"));
    assert_eq!(states(&plan), [&TopologyStatus::Missing], "{plan:#?}");
    let names: Vec<_> = plan.iter().map(|piece| piece.name.clone()).collect();
    let name = &stage.name;
    let wanted = [
        format!("stream `{name}`"),
        format!("consumer `g{name}-0` of stream `{name}`"),
        format!("consumer `g{name}-1` of stream `{name}`"),
    ];
    assert_eq!(names, wanted);
    let made = without_bucket(admin.apply().await.expect("made"));
    assert_eq!(states(&made), [&TopologyStatus::Created], "{made:#?}");
    for pieces in [admin.plan().await.expect("a plan"), admin.apply().await.expect("nothing to make")] {
        assert_eq!(states(&pieces), [&TopologyStatus::Unchanged], "{pieces:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_items_are_created_once_on_2_15() {
    missing_items_are_created_once(NatsVersion::V2_15).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_items_are_created_once_on_2_9() {
    missing_items_are_created_once(NatsVersion::V2_9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_different_stream_is_reported_and_nothing_is_changed() {
    let stage = TopologyHarness::shared(NatsVersion::V2_15).await;
    let name = stage.name.clone();
    stage
        .create_stream(stream::Config {
            storage: stream::StorageType::Memory,
            discard: stream::DiscardPolicy::Old,
            duplicate_window: Duration::from_mins(2),
            ..stage.safe_stream()
        })
        .await;
    let admin = stage.admin(topology(&stage));
    for pieces in [admin.plan().await.expect("a plan"), admin.apply().await.expect("a refusal, told")] {
        let wanted = [
            format!("`subjects` is {name}.>, wanted {name}.orders.*"),
            "`storage` is Memory, wanted File".to_owned(),
            "`max_bytes` is none, wanted 1048576".to_owned(),
            "`discard` is Old, wanted New".to_owned(),
            "`duplicate_window` is 120s, wanted 600s".to_owned(),
            "`allow_atomic_publish` is false, wanted true".to_owned(),
        ];
        assert_eq!(differences_of(&pieces, &format!("stream `{name}`")), wanted);
        // One item differs, so nothing is created.
        let lane = format!("consumer `g{name}-0` of stream `{name}`");
        let lane = pieces.iter().find(|piece| piece.name == lane).expect("a piece");
        assert_eq!(lane.status, TopologyStatus::Missing);
    }
    stage.delete().await;
    let made = without_bucket(admin.apply().await.expect("made"));
    assert_eq!(states(&made), [&TopologyStatus::Created], "{made:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_different_consumer_is_reported() {
    let stage = TopologyHarness::shared(NatsVersion::V2_15).await;
    let name = stage.name.clone();
    stage.admin(topology(&stage)).apply().await.expect("made");
    let stream = stage.jetstream.get_stream(&name).await.expect("the stream");
    let durable = format!("g{name}-1");
    stream.delete_consumer(&durable).await.expect("deleted");
    let config = pull::Config {
        durable_name: Some(durable.clone()),
        ack_policy: AckPolicy::None,
        max_deliver: 3,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.expect("a consumer");
    let plan = stage.admin(topology(&stage)).plan().await.expect("a plan");
    let differences = differences_of(&plan, &format!("consumer `{durable}` of stream `{name}`"));
    assert_eq!(differences[0], format!("`subjects` is all, wanted {name}.orders.1"));
    assert_eq!(differences[1], "`ack_policy` is None, wanted Explicit");
    assert!(differences.contains(&"`max_deliver` is 3, wanted -1".to_owned()), "{differences:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_of_another_stream_are_reported_with_its_name() {
    for version in NatsVersion::ALL {
        let stage = TopologyHarness::shared(version).await;
        let other = format!("other-{}", stage.name);
        stage.create_stream(stream::Config { name: other.clone(), ..stage.safe_stream() }).await;
        let admin = stage.admin(topology(&stage));
        let name = &stage.name;
        for pieces in [admin.plan().await.expect("a plan"), admin.apply().await.expect("a refusal, told")] {
            let wanted = format!("`subjects` is stored by stream `{other}` as {name}.>, wanted {name}.orders.*");
            assert_eq!(differences_of(&pieces, &format!("stream `{name}`")), [wanted]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_applies_are_safe() {
    for version in NatsVersion::ALL {
        let stage = TopologyHarness::shared(version).await;
        let (one, other) = (stage.admin(topology(&stage)), stage.admin(topology(&stage)));
        let (one, other) = tokio::join!(one.apply(), other.apply());
        for pieces in [one.expect("made"), other.expect("made")] {
            let there =
                |piece: &TopologyItem| matches!(piece.status, TopologyStatus::Created | TopologyStatus::Unchanged);
            assert!(pieces.iter().all(there), "{pieces:#?}");
        }
        let plan = stage.admin(topology(&stage)).plan().await.expect("a plan");
        assert_eq!(states(&plan), [&TopologyStatus::Unchanged], "{plan:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_an_old_server_would_ignore_are_rejected() {
    let stage = TopologyHarness::shared(NatsVersion::V2_9).await;
    let mut topology = topology(&stage);
    let name = &stage.name;
    topology.streams[0].subjects = vec![format!("{name}.>")];
    topology.groups[0].subjects = vec![format!("{name}.a"), format!("{name}.b")];
    let refused = stage.admin(topology.clone()).apply().await.expect_err("2.9 knows one subject a consumer");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.error_chain());
    assert!(refused.error_chain().contains("subjects"), "{}", refused.error_chain());
    let plan = stage.admin(topology).plan().await.expect("a plan");
    let left = plan.iter().find(|piece| piece.name.starts_with("consumer")).expect("a piece");
    assert_eq!(left.status, TopologyStatus::Missing, "nothing half made is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_topology_is_rejected_before_connecting() {
    let streams = vec![Stream::new("a.b", ["x"])];
    let config = Config { topology: Topology { streams, groups: Vec::new() }, ..Config::new("nats://127.0.0.1:1") };
    assert!(matches!(Admin::new(config), Err(Error::Config(_))));
    let away = Admin::new(Config::new("nats://127.0.0.1:1")).expect("a configuration");
    assert_eq!(away.plan().await.expect_err("nobody there").class(), Class::Outage);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_administrator_refuses_what_the_publisher_refuses() {
    let good = || Config::new("nats://127.0.0.1:1");
    let refused = [
        Config { in_flight_max: 0, ..good() },
        Config { lanes: Some(0), ..good() },
        Config { confirm_timeout: Duration::ZERO, ..good() },
        Config { stream: Some("a.b".to_owned()), ..good() },
        Config { auth: Auth::NKey("no seed".to_owned()), ..good() },
        Config { urls: Vec::new(), ..good() },
    ];
    for config in refused {
        let published = Publisher::open(config.clone()).await.map(drop).expect_err("the publisher refuses it");
        let administered = Admin::new(config).map(drop).expect_err("so does the administrator");
        assert_eq!(published.to_string(), administered.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_of_the_api_is_blocked() {
    let stage = TopologyHarness::shared(NatsVersion::V2_15).await;
    stage.create_stream(stream::Config { max_consumers: 1, ..stage.safe_stream() }).await;
    let group =
        Group { lanes: Some(2), ..Group::new(format!("g{}", stage.name), &stage.name, [format!("{}.a", stage.name)]) };
    let refused = declare_group(&stage.config(), &group).await.expect_err("the stream allows one consumer");
    assert_eq!(refused.class(), Class::Blocked, "{refused}");
    let log = ReplayLog::open(&stage.config(), &group).await.expect("a stream");
    let refused = log.read(&ReplayFilter::default(), ReplayReadRequest { after: 0, limit: 1, bytes: 1 }).await;
    assert!(matches!(refused, Err(ReplaySourceError::Failed(_))), "{refused:?}");
    // A single server cannot keep three replicas.
    let twin = format!("{}-twin", stage.name);
    let streams = vec![Stream { replicas: 3, ..Stream::new(&twin, [format!("{twin}.>")]) }];
    let refused = stage.admin(Topology { streams, groups: Vec::new() }).apply().await.expect_err("there is no cluster");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.error_chain());
}
