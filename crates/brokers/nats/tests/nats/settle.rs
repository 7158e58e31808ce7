//! Concurrent acknowledgements, cancelled callers, and closing when the server does not respond.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use relevo_broker_nats::{Config, ConsumerOptions, Group, GroupConsumer, Publisher, consumer, declare_group};
use relevo_conformance::broker::harness::{
    BrokerHarness as _, ConsumerHarness as _, assert_idle, number, publication, publish_all, receive, stale, tags,
    within_timeout,
};
use relevo_core::{BrokerConsumer as _, Class, DeliveryTag, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::proxy::{CutProxy, Direction};
use tokio::time::Instant;

use crate::consumer_harness::{Lanes, STREAM, group, start};

fn batch(numbers: std::ops::Range<u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, &format!("k-{number}"))).collect()
}

/// A lease that is longer than a test, so that no heartbeat is sent.
fn long_lease() -> ConsumerOptions {
    ConsumerOptions { lease: Duration::from_mins(5), ..ConsumerOptions::default() }
}

/// A group of one lane with this many messages, and the configuration for its consumers.
async fn one_lane(lanes: &Lanes, messages: u32) -> (Config, Group) {
    let config = Config { lanes: Some(1), ..lanes.config() };
    let group = Group { lanes: Some(1), ..Group::new("billing", STREAM, ["orders"]) };
    declare_group(&config, &group).await.expect("a group");
    let broker = Publisher::open(config.clone()).await.expect("a broker");
    publish_all(&broker, &batch(0..messages)).await;
    (config, group)
}

/// The total number of writes to the bucket of lanes.
async fn writes(jetstream: &jetstream::Context) -> u64 {
    let bucket = jetstream.get_stream("KV_relevo-lanes").await.expect("the bucket");
    bucket.cached_info().state.last_sequence
}

async fn acknowledge_singly(consumer: &GroupConsumer, tags: &[DeliveryTag]) {
    let stale = join_all(tags.chunks(1).map(|tag| stale(consumer, tag))).await;
    assert!(stale.into_iter().all(|stale| stale.expect("acknowledged").is_empty()));
}

#[tokio::test]
async fn acknowledgements_of_a_lane_that_are_given_at_once_share_a_write() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        let (config, group) = one_lane(&lanes, 200).await;
        let one = consumer(&config, &group, long_lease()).await.expect("a consumer");
        let held = receive(&one, 200).await;
        let jetstream = lanes.jetstream().await;
        let before = writes(&jetstream).await;
        acknowledge_singly(&one, &tags(&held)).await;
        let acknowledging = writes(&jetstream).await - before;
        assert!(acknowledging <= 2, "{acknowledging} writes for 200 calls at once");
        within_timeout(one.close()).await.expect("closed");
        assert_idle(&consumer(&config, &group, long_lease()).await.expect("a consumer")).await;
    }
}

#[tokio::test]
async fn of_two_that_acknowledge_the_same_delivery_at_once_one_is_stale() {
    let lanes = start(NatsVersion::V2_15).await;
    let (config, group) = one_lane(&lanes, 2).await;
    let one = consumer(&config, &group, long_lease()).await.expect("a consumer");
    let held = tags(&receive(&one, 2).await);
    let (first, second) = tokio::join!(stale(&one, &held[..1]), stale(&one, &held));
    let mut lost = [first.expect("settled"), second.expect("settled")].concat();
    lost.sort_unstable();
    assert_eq!(lost, [held[0]]);
}

#[tokio::test]
async fn a_cancelled_call_does_not_cancel_others_in_its_write() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        let (config, group) = one_lane(&lanes, 4).await;
        let proxy = CutProxy::start(([127, 0, 0, 1], lanes.server.port()).into()).await;
        let proxied = Config { urls: vec![format!("nats://{}", proxy.addr())], ..config.clone() };
        let one = consumer(&proxied, &group, long_lease()).await.expect("a consumer");
        let held = tags(&receive(&one, 4).await);
        let jetstream = lanes.jetstream().await;
        let before = writes(&jetstream).await;
        proxy.stall(Direction::ToClient);
        let mut first = Box::pin(stale(&one, &held[..1]));
        let mut second = Box::pin(stale(&one, &held[1..2]));
        let mut third = Box::pin(stale(&one, &held[2..3]));
        // The server has recorded the first, and this process does not know it yet.
        tokio::select! {
            _ = &mut first => panic!("the response of the server is held back"),
            () = until_written(&jetstream, before) => {}
        }
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        drop(second);
        proxy.flow(Direction::ToClient);
        assert_eq!(within_timeout(third).await.expect("settled"), [], "on {version:?}");
        within_timeout(one.close()).await.expect("closed");
        let next = consumer(&config, &group, long_lease()).await.expect("a consumer");
        let again: Vec<_> = receive(&next, 2).await.iter().map(number).collect();
        assert_eq!(again, [1, 3], "the second was cancelled before its write began");
    }
}

async fn until_written(jetstream: &jetstream::Context, before: u64) {
    while writes(jetstream).await == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn closing_ends_within_its_timeout_when_the_server_hangs() {
    const DEADLINE: Duration = Duration::from_secs(8);
    join_all(NatsVersion::ALL.map(async |version| {
        let lanes = start(version).await;
        lanes.group("billing", "orders").await;
        publish_all(&lanes.broker().await, &batch(0..40)).await;
        // The ping interval is long, so that no ping detects the silence first.
        let config = Config { confirm_timeout: DEADLINE, ping_interval: Duration::from_mins(1), ..lanes.config() };
        let wanted = group("billing", "orders");
        let one = consumer(&config, &wanted, long_lease()).await.expect("a consumer");
        let held = receive(&one, 10).await;
        let (held_tags, acknowledged) = (tags(&held), held.iter().map(number).collect::<BTreeSet<_>>());
        lanes.server.pause().await;
        let closing = async {
            let began = Instant::now();
            (one.close().await, began.elapsed())
        };
        // The other calls are first, and lock everything that closing needs.
        let (settled, received, (closed, took)) = tokio::join!(stale(&one, &held_tags), one.receive(5), closing);
        assert!(took < DEADLINE + DEADLINE / 2, "it took {took:?}");
        assert_eq!(closed.expect_err("the server does not respond").class(), Class::Unknown);
        assert_eq!(settled.expect_err("the result is unknown").class(), Class::Unknown);
        assert!(received.expect("the end").is_empty());
        assert_eq!(stale(&one, &held_tags).await.expect("nothing is done any more"), held_tags);
        lanes.server.resume().await;
        // Lanes that could not be released then can be released now; no consumer waits for the lease of five minutes.
        within_timeout(async { while one.close().await.is_err() {} }).await;
        let next = consumer(&config, &wanted, long_lease()).await.expect("a consumer");
        let mut left: BTreeSet<i64> = (0..40).filter(|number| !acknowledged.contains(number)).collect();
        while !left.is_empty() {
            for delivery in within_timeout(next.receive(40)).await.expect("deliveries") {
                left.remove(&number(&delivery));
            }
        }
    }))
    .await;
}
