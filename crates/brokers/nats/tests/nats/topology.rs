//! Topology from configuration: planned, created, compared, and never changed without a request.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream;
use relevo_broker_nats::{Auth, Config, Error, Group, NatsAdmin, NatsBroker, NatsLog, Stream, Topology, declare};
use relevo_core::Class;
use relevo_core::administer::{Administer as _, Piece, State};
use relevo_core::inbox::source::{Ask, Filter, ReplaySource as _, SourceError};
use relevo_testkit::NatsVersion;

use crate::stage::Stage;

fn topology(stage: &Stage) -> Topology {
    let name = &stage.name;
    let stream = Stream { max_bytes: Some(1 << 20), ..Stream::new(name, [format!("{name}.orders.*")]) };
    let group = Group { lanes: Some(2), ..Group::new(format!("g{name}"), name, [format!("{name}.orders")]) };
    Topology { streams: vec![stream], groups: vec![group] }
}

/// All tests share the bucket of lanes on a shared server, so it may or may not exist.
fn own(pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.into_iter().filter(|piece| piece.name != "bucket `relevo-lanes`").collect()
}

fn states(pieces: &[Piece]) -> Vec<&State> {
    let mut states: Vec<_> = pieces.iter().map(|piece| &piece.state).collect();
    states.dedup();
    states
}

fn told<'a>(pieces: &'a [Piece], name: &str) -> Vec<String> {
    let piece: &'a Piece = pieces.iter().find(|piece| piece.name == name).unwrap_or_else(|| panic!("no {name}"));
    match &piece.state {
        State::Differs(differences) => differences.iter().map(ToString::to_string).collect(),
        other => panic!("{name} does not differ: {other:?}"),
    }
}

async fn what_is_missing_is_made_once(version: NatsVersion) {
    let stage = Stage::shared(version).await;
    let admin = stage.admin(topology(&stage));
    let plan = own(admin.plan().await.expect("a plan"));
    assert_eq!(states(&plan), [&State::Missing], "{plan:#?}");
    let names: Vec<_> = plan.iter().map(|piece| piece.name.clone()).collect();
    let name = &stage.name;
    let wanted = [
        format!("stream `{name}`"),
        format!("consumer `g{name}-0` of stream `{name}`"),
        format!("consumer `g{name}-1` of stream `{name}`"),
    ];
    assert_eq!(names, wanted);
    let made = own(admin.apply().await.expect("made"));
    assert_eq!(states(&made), [&State::Made], "{made:#?}");
    for pieces in [admin.plan().await.expect("a plan"), admin.apply().await.expect("nothing to make")] {
        assert_eq!(states(&pieces), [&State::Same], "{pieces:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_made_once_on_2_15() {
    what_is_missing_is_made_once(NatsVersion::V2_15).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_made_once_on_2_9() {
    what_is_missing_is_made_once(NatsVersion::V2_9).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_differs_is_told_exactly_and_nothing_is_touched() {
    let stage = Stage::shared(NatsVersion::V2_15).await;
    let name = stage.name.clone();
    stage
        .stream(stream::Config {
            storage: stream::StorageType::Memory,
            discard: stream::DiscardPolicy::Old,
            duplicate_window: Duration::from_mins(2),
            ..stage.safe()
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
        assert_eq!(told(&pieces, &format!("stream `{name}`")), wanted);
        // One item differs, so nothing is created.
        let lane = format!("consumer `g{name}-0` of stream `{name}`");
        let lane = pieces.iter().find(|piece| piece.name == lane).expect("a piece");
        assert_eq!(lane.state, State::Missing);
    }
    stage.delete().await;
    let made = own(admin.apply().await.expect("made"));
    assert_eq!(states(&made), [&State::Made], "{made:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_differs_is_told() {
    let stage = Stage::shared(NatsVersion::V2_15).await;
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
    let differences = told(&plan, &format!("consumer `{durable}` of stream `{name}`"));
    assert_eq!(differences[0], format!("`subjects` is all, wanted {name}.orders.1"));
    assert_eq!(differences[1], "`ack_policy` is None, wanted Explicit");
    assert!(differences.contains(&"`max_deliver` is 3, wanted -1".to_owned()), "{differences:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_that_another_stream_has_are_told_with_its_name() {
    for version in NatsVersion::ALL {
        let stage = Stage::shared(version).await;
        let other = format!("other-{}", stage.name);
        stage.stream(stream::Config { name: other.clone(), ..stage.safe() }).await;
        let admin = stage.admin(topology(&stage));
        let name = &stage.name;
        for pieces in [admin.plan().await.expect("a plan"), admin.apply().await.expect("a refusal, told")] {
            let wanted = format!("`subjects` is stored by stream `{other}` as {name}.>, wanted {name}.orders.*");
            assert_eq!(told(&pieces, &format!("stream `{name}`")), [wanted]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_make_it_at_once_do_no_harm() {
    for version in NatsVersion::ALL {
        let stage = Stage::shared(version).await;
        let (one, other) = (stage.admin(topology(&stage)), stage.admin(topology(&stage)));
        let (one, other) = tokio::join!(one.apply(), other.apply());
        for pieces in [one.expect("made"), other.expect("made")] {
            let there = |piece: &Piece| matches!(piece.state, State::Made | State::Same);
            assert!(pieces.iter().all(there), "{pieces:#?}");
        }
        let plan = stage.admin(topology(&stage)).plan().await.expect("a plan");
        assert_eq!(states(&plan), [&State::Same], "{plan:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_old_server_would_ignore_is_refused() {
    let stage = Stage::shared(NatsVersion::V2_9).await;
    let mut topology = topology(&stage);
    let name = &stage.name;
    topology.streams[0].subjects = vec![format!("{name}.>")];
    topology.groups[0].subjects = vec![format!("{name}.a"), format!("{name}.b")];
    let refused = stage.admin(topology.clone()).apply().await.expect_err("2.9 knows one subject a consumer");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.describe());
    assert!(refused.describe().contains("subjects"), "{}", refused.describe());
    let plan = stage.admin(topology).plan().await.expect("a plan");
    let left = plan.iter().find(|piece| piece.name.starts_with("consumer")).expect("a piece");
    assert_eq!(left.state, State::Missing, "nothing half made is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_never_be_is_refused_before_the_server_is_asked() {
    let streams = vec![Stream::new("a.b", ["x"])];
    let config = Config { topology: Topology { streams, groups: Vec::new() }, ..Config::new("nats://127.0.0.1:1") };
    assert!(matches!(NatsAdmin::new(config), Err(Error::Config(_))));
    let away = NatsAdmin::new(Config::new("nats://127.0.0.1:1")).expect("a configuration");
    assert_eq!(away.plan().await.expect_err("nobody there").class(), Class::Outage);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_administrator_refuses_what_the_publisher_refuses() {
    let good = || Config::new("nats://127.0.0.1:1");
    let refused = [
        Config { in_flight_max: 0, ..good() },
        Config { lanes: Some(0), ..good() },
        Config { ack_deadline: Duration::ZERO, ..good() },
        Config { stream: Some("a.b".to_owned()), ..good() },
        Config { auth: Auth::NKey("no seed".to_owned()), ..good() },
        Config { urls: Vec::new(), ..good() },
    ];
    for config in refused {
        let published = NatsBroker::open(config.clone()).await.map(drop).expect_err("the publisher refuses it");
        let administered = NatsAdmin::new(config).map(drop).expect_err("so does the administrator");
        assert_eq!(published.to_string(), administered.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_call_of_the_api_is_blocked() {
    let stage = Stage::shared(NatsVersion::V2_15).await;
    stage.stream(stream::Config { max_consumers: 1, ..stage.safe() }).await;
    let group =
        Group { lanes: Some(2), ..Group::new(format!("g{}", stage.name), &stage.name, [format!("{}.a", stage.name)]) };
    let refused = declare(&stage.config(), &group).await.expect_err("the stream allows one consumer");
    assert_eq!(refused.class(), Class::Blocked, "{refused}");
    let log = NatsLog::open(&stage.config(), &group).await.expect("a stream");
    let refused = log.read(&Filter::default(), Ask { after: 0, limit: 1, bytes: 1 }).await;
    assert!(matches!(refused, Err(SourceError::Broken(_))), "{refused:?}");
    // A single server cannot keep three replicas.
    let twin = format!("{}-twin", stage.name);
    let streams = vec![Stream { replicas: 3, ..Stream::new(&twin, [format!("{twin}.>")]) }];
    let refused = stage.admin(Topology { streams, groups: Vec::new() }).apply().await.expect_err("there is no cluster");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.describe());
}
