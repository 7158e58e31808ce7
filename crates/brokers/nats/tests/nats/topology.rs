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

fn topology(harness: &TopologyHarness) -> Topology {
    let name = &harness.name;
    let stream = Stream { max_bytes: Some(1 << 20), ..Stream::new(name, [format!("{name}.orders.*")]) };
    let group = Group { lanes: Some(2), ..Group::new(format!("g{name}"), name, [format!("{name}.orders")]) };
    Topology { streams: vec![stream], groups: vec![group] }
}

/// All tests share the bucket of lanes on a shared server, so it may or may not exist.
fn without_bucket(items: Vec<TopologyItem>) -> Vec<TopologyItem> {
    items.into_iter().filter(|item| item.name != "bucket `relevo-lanes`").collect()
}

fn states(items: &[TopologyItem]) -> Vec<&TopologyStatus> {
    let mut states: Vec<_> = items.iter().map(|item| &item.status).collect();
    states.dedup();
    states
}

fn differences_of<'a>(items: &'a [TopologyItem], name: &str) -> Vec<String> {
    let item: &'a TopologyItem = items.iter().find(|item| item.name == name).unwrap_or_else(|| panic!("no {name}"));
    match &item.status {
        TopologyStatus::Different(differences) => differences.iter().map(ToString::to_string).collect(),
        other => panic!("{name} does not differ: {other:?}"),
    }
}

async fn missing_items_are_created_once(version: NatsVersion) {
    let harness = TopologyHarness::shared(version).await;
    let admin = harness.admin(topology(&harness));
    let plan = without_bucket(admin.plan().await.expect("a plan"));
    assert_eq!(states(&plan), [&TopologyStatus::Missing], "{plan:#?}");
    let names: Vec<_> = plan.iter().map(|item| item.name.clone()).collect();
    let name = &harness.name;
    let wanted = [
        format!("stream `{name}`"),
        format!("consumer `g{name}-0` of stream `{name}`"),
        format!("consumer `g{name}-1` of stream `{name}`"),
    ];
    assert_eq!(names, wanted);
    let applied = without_bucket(admin.apply().await.expect("applied"));
    assert_eq!(states(&applied), [&TopologyStatus::Created], "{applied:#?}");
    for items in [admin.plan().await.expect("a plan"), admin.apply().await.expect("nothing to create")] {
        assert_eq!(states(&items), [&TopologyStatus::Unchanged], "{items:#?}");
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
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let name = harness.name.clone();
    harness
        .create_stream(stream::Config {
            storage: stream::StorageType::Memory,
            discard: stream::DiscardPolicy::Old,
            duplicate_window: Duration::from_mins(2),
            ..harness.safe_stream()
        })
        .await;
    let admin = harness.admin(topology(&harness));
    for items in [admin.plan().await.expect("a plan"), admin.apply().await.expect("a reported difference")] {
        let wanted = [
            format!("`subjects` is {name}.>, wanted {name}.orders.*"),
            "`storage` is Memory, wanted File".to_owned(),
            "`max_bytes` is none, wanted 1048576".to_owned(),
            "`discard` is Old, wanted New".to_owned(),
            "`duplicate_window` is 120s, wanted 600s".to_owned(),
            "`allow_atomic_publish` is false, wanted true".to_owned(),
        ];
        assert_eq!(differences_of(&items, &format!("stream `{name}`")), wanted);
        // One item differs, so nothing is created.
        let lane = format!("consumer `g{name}-0` of stream `{name}`");
        let lane = items.iter().find(|item| item.name == lane).expect("an item");
        assert_eq!(lane.status, TopologyStatus::Missing);
    }
    harness.delete().await;
    let applied = without_bucket(admin.apply().await.expect("applied"));
    assert_eq!(states(&applied), [&TopologyStatus::Created], "{applied:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_different_consumer_is_reported() {
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    let name = harness.name.clone();
    harness.admin(topology(&harness)).apply().await.expect("applied");
    let stream = harness.jetstream.get_stream(&name).await.expect("the stream");
    let durable = format!("g{name}-1");
    stream.delete_consumer(&durable).await.expect("deleted");
    let config = pull::Config {
        durable_name: Some(durable.clone()),
        ack_policy: AckPolicy::None,
        max_deliver: 3,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.expect("a consumer");
    let plan = harness.admin(topology(&harness)).plan().await.expect("a plan");
    let differences = differences_of(&plan, &format!("consumer `{durable}` of stream `{name}`"));
    assert_eq!(differences[0], format!("`subjects` is all, wanted {name}.orders.1"));
    assert_eq!(differences[1], "`ack_policy` is None, wanted Explicit");
    assert!(differences.contains(&"`max_deliver` is 3, wanted -1".to_owned()), "{differences:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_of_another_stream_are_reported_with_its_name() {
    for version in NatsVersion::ALL {
        let harness = TopologyHarness::shared(version).await;
        let other = format!("other-{}", harness.name);
        harness.create_stream(stream::Config { name: other.clone(), ..harness.safe_stream() }).await;
        let admin = harness.admin(topology(&harness));
        let name = &harness.name;
        for items in [admin.plan().await.expect("a plan"), admin.apply().await.expect("a reported difference")] {
            let wanted = format!("`subjects` is stored by stream `{other}` as {name}.>, wanted {name}.orders.*");
            assert_eq!(differences_of(&items, &format!("stream `{name}`")), [wanted]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_applies_are_safe() {
    for version in NatsVersion::ALL {
        let harness = TopologyHarness::shared(version).await;
        let (one, other) = (harness.admin(topology(&harness)), harness.admin(topology(&harness)));
        let (one, other) = tokio::join!(one.apply(), other.apply());
        for items in [one.expect("applied"), other.expect("applied")] {
            let there =
                |item: &TopologyItem| matches!(item.status, TopologyStatus::Created | TopologyStatus::Unchanged);
            assert!(items.iter().all(there), "{items:#?}");
        }
        let plan = harness.admin(topology(&harness)).plan().await.expect("a plan");
        assert_eq!(states(&plan), [&TopologyStatus::Unchanged], "{plan:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_an_old_server_would_ignore_are_rejected() {
    let harness = TopologyHarness::shared(NatsVersion::V2_9).await;
    let mut topology = topology(&harness);
    let name = &harness.name;
    topology.streams[0].subjects = vec![format!("{name}.>")];
    topology.groups[0].subjects = vec![format!("{name}.a"), format!("{name}.b")];
    let refused = harness.admin(topology.clone()).apply().await.expect_err("2.9 supports one subject per consumer");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.error_chain());
    assert!(refused.error_chain().contains("subjects"), "{}", refused.error_chain());
    let plan = harness.admin(topology).plan().await.expect("a plan");
    let left = plan.iter().find(|item| item.name.starts_with("consumer")).expect("an item");
    assert_eq!(left.status, TopologyStatus::Missing, "no incomplete consumer remains");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_topology_is_rejected_before_connecting() {
    let streams = vec![Stream::new("a.b", ["x"])];
    let config = Config { topology: Topology { streams, groups: Vec::new() }, ..Config::new("nats://127.0.0.1:1") };
    assert!(matches!(Admin::new(config), Err(Error::Config(_))));
    let unreachable = Admin::new(Config::new("nats://127.0.0.1:1")).expect("a configuration");
    assert_eq!(unreachable.plan().await.expect_err("no server listens").class(), Class::Outage);
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
    let harness = TopologyHarness::shared(NatsVersion::V2_15).await;
    harness.create_stream(stream::Config { max_consumers: 1, ..harness.safe_stream() }).await;
    let group = Group {
        lanes: Some(2),
        ..Group::new(format!("g{}", harness.name), &harness.name, [format!("{}.a", harness.name)])
    };
    let refused = declare_group(&harness.config(), &group).await.expect_err("the stream allows one consumer");
    assert_eq!(refused.class(), Class::Blocked, "{refused}");
    let log = ReplayLog::open(&harness.config(), &group).await.expect("a stream");
    let refused = log.read(&ReplayFilter::default(), ReplayReadRequest { after: 0, limit: 1, bytes: 1 }).await;
    assert!(matches!(refused, Err(ReplaySourceError::Failed(_))), "{refused:?}");
    // A single server cannot keep three replicas.
    let twin = format!("{}-twin", harness.name);
    let streams = vec![Stream { replicas: 3, ..Stream::new(&twin, [format!("{twin}.>")]) }];
    let refused =
        harness.admin(Topology { streams, groups: Vec::new() }).apply().await.expect_err("there is no cluster");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.error_chain());
}
