//! Real faults of servers and connections. No confirmed message is lost, first occurrences are in order per key, and a
//! repeated publish creates no second message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream;
use relevo_broker_nats::{Config, Publisher};
use relevo_conformance::broker::harness::{decode, publication, publish_all};
use relevo_core::{Class, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Cluster, Private};
use relevo_testkit::proxy::{CutProxy, Direction};

use crate::harness::{
    STREAM, catch_all_stream, create_stream, open, outcome_of, outcomes_of, publish_until, server, stored,
};

/// The deadline for an acknowledgement that never arrives.
const SHORT_TIMEOUT: Duration = Duration::from_secs(2);
/// The deadline in tests that must not wait for one.
const LONG_TIMEOUT: Duration = Duration::from_secs(15);
/// An outcome within this time did not wait for the deadline.
const IMMEDIATELY_MAX: Duration = Duration::from_secs(10);

async fn with_proxy(version: NatsVersion) -> (Private, CutProxy, Publisher) {
    with_proxy_config(version, |_| {}).await
}

async fn with_proxy_config(version: NatsVersion, change: impl FnOnce(&mut Config)) -> (Private, CutProxy, Publisher) {
    let (server, _) = server(version).await;
    let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let mut config = Config::new(format!("nats://{}", proxy.addr()));
    change(&mut config);
    (server, proxy, open(config).await)
}

fn batch(numbers: std::ops::RangeInclusive<u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, &format!("k-{}", number % 97))).collect()
}

fn classes(outcomes: &[Option<(Class, String)>]) -> Vec<Option<Class>> {
    outcomes.iter().map(|outcome| outcome.as_ref().map(|(class, _)| *class)).collect()
}

/// Publishes until everything is confirmed, as the relay does: for each key, the first unconfirmed message.
async fn publish_until_confirmed(broker: &Publisher, all: &[Publication]) {
    let insisting = async {
        let mut left = all.to_vec();
        while !left.is_empty() {
            let mut keys = BTreeSet::new();
            let (first, rest): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|one| keys.insert(one.message.key.to_string()));
            let outcomes = outcomes_of(broker, &first).await;
            let failed: Vec<_> =
                first.into_iter().zip(outcomes).filter_map(|(one, outcome)| outcome.map(|_| one)).collect();
            if !failed.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            left = failed.into_iter().chain(rest).collect();
        }
    };
    tokio::time::timeout(Duration::from_mins(1), insisting).await.expect("everything is confirmed in the end");
}

/// Asserts that every message is stored once, and each key in order.
async fn assert_complete(server: &Private, count: usize) {
    let mut keys: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (_, raw) in stored(server, STREAM).await {
        let received = decode(&raw);
        keys.entry(received.message.key.to_string()).or_default().push(received.seq.expect("a number"));
    }
    assert_eq!(keys.values().map(Vec::len).sum::<usize>(), count);
    for (key, numbers) in keys {
        assert!(numbers.is_sorted_by(|a, b| a < b), "{key}: {numbers:?}");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_an_outage_at_once_and_recovers() {
    for version in NatsVersion::ALL {
        let (server, _) = server(version).await;
        let broker = open(Config { confirm_timeout: LONG_TIMEOUT, ..Config::new(server.url()) }).await;
        publish_all(&broker, &batch(1..=100)).await;
        server.kill9().await;
        publish_until(&broker, &publication(101, "k"), Some(Class::Outage)).await;
        let began = Instant::now();
        let outcomes = outcomes_of(&broker, &batch(101..=300)).await;
        assert!(classes(&outcomes).iter().all(|class| *class == Some(Class::Outage)), "{outcomes:?}");
        assert!(began.elapsed() < IMMEDIATELY_MAX);
        server.start_again().await;
        publish_until_confirmed(&broker, &batch(101..=300)).await;
        assert_complete(&server, 300).await;
    }
}

#[tokio::test]
async fn a_broker_can_be_opened_before_its_server() {
    let (server, _) = server(NatsVersion::V2_15).await;
    server.stop().await;
    let broker = open(Config::new(server.url())).await;
    let (class, text) = outcome_of(&broker, &publication(1, "a")).await.expect("no server");
    assert_eq!(class, Class::Outage, "{text}");
    server.start_again().await;
    publish_until(&broker, &publication(1, "a"), None).await;
}

#[tokio::test]
async fn the_next_configured_server_is_tried() {
    let (server, _) = server(NatsVersion::V2_15).await;
    // No process listens on this system port.
    let urls = vec!["nats://127.0.0.1:1".to_owned(), server.url()];
    let broker = open(Config { urls, ..Config::new("") }).await;
    publish_until(&broker, &publication(1, "a"), None).await;
}

#[tokio::test]
async fn pending_messages_are_unknown_at_once_when_the_connection_is_cut() {
    for version in NatsVersion::ALL {
        let (server, proxy, broker) = with_proxy_config(version, |config| config.confirm_timeout = LONG_TIMEOUT).await;
        proxy.stall(Direction::ToServer);
        let began = Instant::now();
        let batch = batch(1..=50);
        let (outcomes, ()) = tokio::join!(outcomes_of(&broker, &batch), async {
            proxy.until_held(Direction::ToServer).await;
            proxy.cut().await;
        });
        assert!(began.elapsed() < IMMEDIATELY_MAX, "{:?}", began.elapsed());
        assert!(classes(&outcomes).iter().all(|class| *class == Some(Class::Unknown)), "{outcomes:?}");
        proxy.thaw();
        publish_until_confirmed(&broker, &batch).await;
        assert_complete(&server, 50).await;
    }
}

#[tokio::test]
async fn a_lost_acknowledgement_creates_no_duplicate() {
    for version in NatsVersion::ALL {
        let (server, proxy, broker) = with_proxy(version).await;
        proxy.stall(Direction::ToClient);
        let batch = batch(1..=50);
        let (outcomes, ()) = tokio::join!(outcomes_of(&broker, &batch), async {
            proxy.until_held(Direction::ToClient).await;
            proxy.cut().await;
        });
        assert!(classes(&outcomes).iter().all(|class| *class == Some(Class::Unknown)), "{outcomes:?}");
        proxy.thaw();
        publish_until_confirmed(&broker, &batch).await;
        assert_complete(&server, 50).await;
    }
}

#[tokio::test]
async fn a_connection_cut_within_a_batch_loses_and_duplicates_nothing() {
    for bytes in [1_000, 10_000, 30_001, 77_777] {
        let (server, proxy, broker) = with_proxy(NatsVersion::V2_15).await;
        proxy.cut_after(Direction::ToServer, bytes);
        publish_until_confirmed(&broker, &batch(1..=500)).await;
        assert_complete(&server, 500).await;
    }
}

#[tokio::test]
async fn a_suspended_server_is_unknown_after_the_timeout_and_recovers() {
    for version in NatsVersion::ALL {
        let (server, patient) = server(version).await;
        let broker = open(Config { confirm_timeout: SHORT_TIMEOUT, ..Config::new(server.url()) }).await;
        publish_all(&patient, &batch(1..=10)).await;
        // Publish once more, so that the connection knows its server before it is suspended.
        publish_until(&broker, &batch(1..=1)[0], None).await;
        server.pause().await;
        let outcomes = outcomes_of(&broker, &batch(11..=30)).await;
        assert!(classes(&outcomes).iter().all(|class| *class == Some(Class::Unknown)), "{outcomes:?}");
        server.resume().await;
        publish_until_confirmed(&broker, &batch(11..=30)).await;
        assert_complete(&server, 30).await;
    }
}

#[tokio::test]
async fn a_silent_connection_is_noticed_when_idle() {
    let (server, proxy, _) = with_proxy(NatsVersion::V2_15).await;
    let ping_interval = Duration::from_millis(100);
    let broker = open(Config { ping_interval, ..Config::new(format!("nats://{}", proxy.addr())) }).await;
    // A suspended machine does not respond either.
    publish_until(&broker, &batch(1..=1)[0], None).await;
    proxy.freeze();
    publish_until(&broker, &publication(2, "k"), Some(Class::Outage)).await;
    proxy.thaw();
    publish_until(&broker, &publication(2, "k"), None).await;
    assert_complete(&server, 2).await;
}

#[tokio::test]
async fn a_server_killed_within_a_batch_loses_and_duplicates_nothing() {
    for version in NatsVersion::ALL {
        let (server, broker) = server(version).await;
        let batch = batch(1..=3_000);
        tokio::join!(publish_until_confirmed(&broker, &batch), async {
            server.kill9().await;
            server.start_again().await;
        });
        assert_complete(&server, 3_000).await;
    }
}

#[tokio::test]
async fn a_message_sent_after_its_timeout_creates_no_duplicate() {
    // More than the client library can buffer, so that some messages are not written when the connection is lost.
    let (server, proxy, broker) = with_proxy(NatsVersion::V2_15).await;
    proxy.stall(Direction::ToServer);
    let batch = batch(1..=4_000);
    let (outcomes, ()) = tokio::join!(outcomes_of(&broker, &batch), async {
        proxy.until_held(Direction::ToServer).await;
        proxy.cut().await;
    });
    for class in classes(&outcomes) {
        assert!(matches!(class, Some(Class::Unknown | Class::Outage)), "{class:?}");
    }
    proxy.thaw();
    publish_until_confirmed(&broker, &batch).await;
    assert_complete(&server, 4_000).await;
}

#[tokio::test]
async fn a_cluster_continues_when_the_connected_node_dies() {
    let cluster = Cluster::of_three().await;
    let [first, second, _] = cluster.nodes();
    create_stream(first, stream::Config { num_replicas: 3, ..catch_all_stream() }).await;
    // The broker learns the other servers from the first one.
    let broker = open(Config::new(first.url())).await;
    publish_all(&broker, &batch(1..=100)).await;
    let batch = batch(101..=2_000);
    tokio::join!(publish_until_confirmed(&broker, &batch), first.kill9());
    // Only reading needs all three servers.
    first.start_again().await;
    cluster.healthy().await;
    assert_complete(second, 2_000).await;
}

#[tokio::test]
async fn a_cluster_without_a_majority_stores_nothing_and_loses_nothing() {
    let cluster = Cluster::of_three().await;
    let [first, second, third] = cluster.nodes();
    create_stream(first, stream::Config { num_replicas: 3, ..catch_all_stream() }).await;
    let broker = open(Config { confirm_timeout: SHORT_TIMEOUT, ..Config::new(first.url()) }).await;
    publish_all(&open(Config::new(first.url())).await, &batch(1..=100)).await;
    publish_until(&broker, &batch(1..=1)[0], None).await;
    second.kill9().await;
    third.kill9().await;
    let outcomes = outcomes_of(&broker, &batch(101..=200)).await;
    assert!(outcomes.iter().all(Option::is_some), "{outcomes:?}");
    second.start_again().await;
    third.start_again().await;
    cluster.healthy().await;
    publish_until_confirmed(&broker, &batch(101..=200)).await;
    assert_complete(first, 200).await;
}
