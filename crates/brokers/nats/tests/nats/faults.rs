//! Real faults of servers and connections. No confirmed message is lost, first occurrences are in order per key, and a
//! repeated publish creates no second message.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::jetstream::stream;
use relevo_broker_nats::{Config, NatsBroker};
use relevo_conformance::broker::harness::{decoded, publication, publish_all};
use relevo_core::{Class, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Cluster, Private};
use relevo_testkit::proxy::{CutProxy, Direction};

use crate::harness::{STREAM, everything, make_stream, open, server, stored, told, told_of, until};

/// The deadline for an acknowledgement that never arrives.
const SHORT: Duration = Duration::from_secs(2);
/// The deadline in tests that must not wait for one.
const LONG: Duration = Duration::from_secs(15);
/// An outcome within this time did not wait for the deadline.
const AT_ONCE: Duration = Duration::from_secs(10);

async fn through_a_proxy(version: NatsVersion) -> (Private, CutProxy, NatsBroker) {
    through_a_proxy_with(version, |_| {}).await
}

async fn through_a_proxy_with(
    version: NatsVersion,
    change: impl FnOnce(&mut Config),
) -> (Private, CutProxy, NatsBroker) {
    let (server, _) = server(version).await;
    let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let mut config = Config::new(format!("nats://{}", proxy.addr()));
    change(&mut config);
    (server, proxy, open(config).await)
}

fn batch(numbers: std::ops::RangeInclusive<u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, &format!("k-{}", number % 97))).collect()
}

fn classes(told: &[Option<(Class, String)>]) -> Vec<Option<Class>> {
    told.iter().map(|told| told.as_ref().map(|(class, _)| *class)).collect()
}

/// Publishes until everything is confirmed, as the relay does: for each key, the first unconfirmed message.
async fn insist(broker: &NatsBroker, all: &[Publication]) {
    let insisting = async {
        let mut left = all.to_vec();
        while !left.is_empty() {
            let mut keys = BTreeSet::new();
            let (first, rest): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|one| keys.insert(one.message.key.to_string()));
            let told = told(broker, &first).await;
            let failed: Vec<_> = first.into_iter().zip(told).filter_map(|(one, told)| told.map(|_| one)).collect();
            if !failed.is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            left = failed.into_iter().chain(rest).collect();
        }
    };
    tokio::time::timeout(Duration::from_mins(1), insisting).await.expect("everything is confirmed in the end");
}

/// Asserts that every message is stored once, and each key in order.
async fn assert_whole(server: &Private, count: usize) {
    let mut keys: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (_, raw) in stored(server, STREAM).await {
        let received = decoded(&raw);
        keys.entry(received.message.key.to_string()).or_default().push(received.seq.expect("a number"));
    }
    assert_eq!(keys.values().map(Vec::len).sum::<usize>(), count);
    for (key, numbers) in keys {
        assert!(numbers.is_sorted_by(|a, b| a < b), "{key}: {numbers:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_an_outage_at_once_and_comes_back() {
    for version in NatsVersion::ALL {
        let (server, _) = server(version).await;
        let broker = open(Config { ack_deadline: LONG, ..Config::new(server.url()) }).await;
        publish_all(&broker, &batch(1..=100)).await;
        server.kill9().await;
        until(&broker, &publication(101, "k"), Some(Class::Outage)).await;
        let began = Instant::now();
        let told = told(&broker, &batch(101..=300)).await;
        assert!(classes(&told).iter().all(|class| *class == Some(Class::Outage)), "{told:?}");
        assert!(began.elapsed() < AT_ONCE);
        server.start_again().await;
        insist(&broker, &batch(101..=300)).await;
        assert_whole(&server, 300).await;
    }
}

#[tokio::test]
async fn a_broker_can_be_opened_before_its_server() {
    let (server, _) = server(NatsVersion::V2_15).await;
    server.stop().await;
    let broker = open(Config::new(server.url())).await;
    let (class, text) = told_of(&broker, &publication(1, "a")).await.expect("no server");
    assert_eq!(class, Class::Outage, "{text}");
    server.start_again().await;
    until(&broker, &publication(1, "a"), None).await;
}

#[tokio::test]
async fn another_server_of_the_list_is_tried() {
    let (server, _) = server(NatsVersion::V2_15).await;
    // No process listens on this system port.
    let urls = vec!["nats://127.0.0.1:1".to_owned(), server.url()];
    let broker = open(Config { urls, ..Config::new("") }).await;
    until(&broker, &publication(1, "a"), None).await;
}

#[tokio::test]
async fn what_waits_when_the_connection_is_cut_is_unknown_at_once() {
    for version in NatsVersion::ALL {
        let (server, proxy, broker) = through_a_proxy_with(version, |config| config.ack_deadline = LONG).await;
        proxy.stall(Direction::ToServer);
        let began = Instant::now();
        let batch = batch(1..=50);
        let (told, ()) = tokio::join!(told(&broker, &batch), async {
            proxy.until_held(Direction::ToServer).await;
            proxy.cut().await;
        });
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        assert!(classes(&told).iter().all(|class| *class == Some(Class::Unknown)), "{told:?}");
        proxy.thaw();
        insist(&broker, &batch).await;
        assert_whole(&server, 50).await;
    }
}

#[tokio::test]
async fn an_acknowledgement_that_is_lost_after_storing_makes_no_second_message() {
    for version in NatsVersion::ALL {
        let (server, proxy, broker) = through_a_proxy(version).await;
        proxy.stall(Direction::ToClient);
        let batch = batch(1..=50);
        let (told, ()) = tokio::join!(told(&broker, &batch), async {
            proxy.until_held(Direction::ToClient).await;
            proxy.cut().await;
        });
        assert!(classes(&told).iter().all(|class| *class == Some(Class::Unknown)), "{told:?}");
        proxy.thaw();
        insist(&broker, &batch).await;
        assert_whole(&server, 50).await;
    }
}

#[tokio::test]
async fn a_connection_cut_within_a_batch_loses_and_doubles_nothing() {
    for bytes in [1_000, 10_000, 30_001, 77_777] {
        let (server, proxy, broker) = through_a_proxy(NatsVersion::V2_15).await;
        proxy.cut_after(Direction::ToServer, bytes);
        insist(&broker, &batch(1..=500)).await;
        assert_whole(&server, 500).await;
    }
}

#[tokio::test]
async fn a_stopped_server_is_unknown_after_the_deadline_and_goes_on_when_it_goes_on() {
    for version in NatsVersion::ALL {
        let (server, patient) = server(version).await;
        let broker = open(Config { ack_deadline: SHORT, ..Config::new(server.url()) }).await;
        publish_all(&patient, &batch(1..=10)).await;
        // Publish once more, so that the connection knows its server before it is suspended.
        until(&broker, &batch(1..=1)[0], None).await;
        server.pause().await;
        let told = told(&broker, &batch(11..=30)).await;
        assert!(classes(&told).iter().all(|class| *class == Some(Class::Unknown)), "{told:?}");
        server.resume().await;
        insist(&broker, &batch(11..=30)).await;
        assert_whole(&server, 30).await;
    }
}

#[tokio::test]
async fn a_silent_connection_is_noticed_without_anything_to_send() {
    let (server, proxy, _) = through_a_proxy(NatsVersion::V2_15).await;
    let ping_every = Duration::from_millis(100);
    let broker = open(Config { ping_every, ..Config::new(format!("nats://{}", proxy.addr())) }).await;
    // A suspended machine does not respond either.
    until(&broker, &batch(1..=1)[0], None).await;
    proxy.freeze();
    until(&broker, &publication(2, "k"), Some(Class::Outage)).await;
    proxy.thaw();
    until(&broker, &publication(2, "k"), None).await;
    assert_whole(&server, 2).await;
}

#[tokio::test]
async fn a_server_killed_within_a_batch_loses_and_doubles_nothing() {
    for version in NatsVersion::ALL {
        let (server, broker) = server(version).await;
        let batch = batch(1..=3_000);
        tokio::join!(insist(&broker, &batch), async {
            server.kill9().await;
            server.start_again().await;
        });
        assert_whole(&server, 3_000).await;
    }
}

#[tokio::test]
async fn what_the_client_still_sends_after_it_was_given_up_makes_no_second_message() {
    // More than the client library can buffer, so that some messages are not written when the connection is lost.
    let (server, proxy, broker) = through_a_proxy(NatsVersion::V2_15).await;
    proxy.stall(Direction::ToServer);
    let batch = batch(1..=4_000);
    let (told, ()) = tokio::join!(told(&broker, &batch), async {
        proxy.until_held(Direction::ToServer).await;
        proxy.cut().await;
    });
    for class in classes(&told) {
        assert!(matches!(class, Some(Class::Unknown | Class::Outage)), "{class:?}");
    }
    proxy.thaw();
    insist(&broker, &batch).await;
    assert_whole(&server, 4_000).await;
}

#[tokio::test]
async fn a_cluster_goes_on_when_the_node_that_we_talk_to_dies() {
    let cluster = Cluster::of_three().await;
    let [first, second, _] = cluster.nodes();
    make_stream(first, stream::Config { num_replicas: 3, ..everything() }).await;
    // The broker learns the other servers from the first one.
    let broker = open(Config::new(first.url())).await;
    publish_all(&broker, &batch(1..=100)).await;
    let batch = batch(101..=2_000);
    tokio::join!(insist(&broker, &batch), first.kill9());
    // Only reading needs all three servers.
    first.start_again().await;
    cluster.healthy().await;
    assert_whole(second, 2_000).await;
}

#[tokio::test]
async fn a_cluster_without_a_majority_stores_nothing_and_loses_nothing() {
    let cluster = Cluster::of_three().await;
    let [first, second, third] = cluster.nodes();
    make_stream(first, stream::Config { num_replicas: 3, ..everything() }).await;
    let broker = open(Config { ack_deadline: SHORT, ..Config::new(first.url()) }).await;
    publish_all(&open(Config::new(first.url())).await, &batch(1..=100)).await;
    until(&broker, &batch(1..=1)[0], None).await;
    second.kill9().await;
    third.kill9().await;
    let told = told(&broker, &batch(101..=200)).await;
    assert!(told.iter().all(Option::is_some), "{told:?}");
    second.start_again().await;
    third.start_again().await;
    cluster.healthy().await;
    insist(&broker, &batch(101..=200)).await;
    assert_whole(first, 200).await;
}
