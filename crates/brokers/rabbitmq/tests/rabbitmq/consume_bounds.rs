//! Limits of waiting: for a server that does not respond, and for outstanding deliveries.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use relevo_broker_rabbitmq::{Config, ConsumerOptions, Queue};
use relevo_conformance::broker::harness::{
    ADDRESS, BrokerHarness as _, assert_idle, number, publication, publish_all, receive, stale, tags, within_timeout,
};
use relevo_core::slot::slot_of;
use relevo_core::{BrokerConsumer as _, Class, Delivery, Lane, Publication};
use tokio::time::timeout;

use crate::consumer_harness::{Groups, LANES, Member, WaitDeadline, retry};

const QUEUE: &str = "billing";
const CONNECT: Duration = Duration::from_secs(1);
const CONFIRM: Duration = Duration::from_millis(500);
/// The extra time that a busy machine may need.
const SLACK: Duration = Duration::from_secs(2);

/// Four lanes with this many messages, each with its own key.
async fn lanes(messages: u32) -> (Groups, Queue) {
    let groups = Groups::shared().await;
    let queue = groups.queue(QUEUE);
    groups.declare(&queue, ADDRESS).await;
    let batch: Vec<Publication> = (1..=messages).map(|number| publication(number, &format!("k-{number}"))).collect();
    publish_all(&groups.broker().await, &batch).await;
    (groups, queue)
}

/// A consumer with short deadlines and a long heartbeat interval, so that no heartbeat closes its connections.
async fn long_timeout_member(groups: &Groups, queue: &Queue) -> Member {
    let change = |config: &mut Config| {
        config.heartbeat = Duration::from_mins(1);
        config.connect_timeout = CONNECT;
        config.confirm_timeout = CONFIRM;
    };
    groups.member_with(queue, ConsumerOptions::default(), change).await
}

#[tokio::test]
async fn calls_to_a_silent_server_fail_in_time_and_can_be_repeated() {
    let (groups, queue) = lanes(2).await;
    let member = long_timeout_member(&groups, &queue).await;
    let held = tags(&receive(&member, 2).await);
    member.proxy.freeze();
    let began = Instant::now();
    let failure = stale(&member, &held[..1]).await.expect_err("silence");
    assert!(matches!(failure.class(), Class::Unknown | Class::Outage), "{failure}");
    assert!(began.elapsed() < CONFIRM + SLACK, "{:?}", began.elapsed());
    let began = Instant::now();
    let failure = retry(&member, &held[1..], Duration::ZERO).await.expect_err("silence");
    assert!(matches!(failure.class(), Class::Unknown | Class::Outage), "{failure}");
    // First the copies, then the acknowledgements.
    assert!(began.elapsed() < CONNECT + CONFIRM + CONFIRM + SLACK, "{:?}", began.elapsed());
    member.proxy.thaw();
    let mut deadline = WaitDeadline::new("the server responds again");
    while stale(&member, &held[..1]).await.is_err() {
        deadline.wait().await;
    }
    while retry(&member, &held[1..], Duration::ZERO).await.is_err() {
        deadline.wait().await;
    }
    let again = receive(&member, 1).await.remove(0);
    assert!(again.redelivered && again.retry_count == 1, "{again:?}");
}

#[tokio::test]
async fn a_cancelled_retry_is_never_copied() {
    let (groups, queue) = one_lane(2).await;
    let member = groups.member(&queue, ConsumerOptions::default()).await;
    let held = receive(&member, 2).await;
    // Opens the connection for copies.
    assert_eq!(retry(&member, &[held[0].tag], Duration::ZERO).await.expect("moved to a retry queue"), []);
    let first = receive(&member, 1).await.remove(0);
    member.proxy.freeze();
    let before = retry(&member, std::slice::from_ref(&first.tag), Duration::ZERO);
    let cancelled = async {
        // Waits after the first call, which waits for the server.
        let call = retry(&member, std::slice::from_ref(&held[1].tag), Duration::ZERO);
        assert!(timeout(Duration::from_millis(300), call).await.is_err(), "the server is silent");
        member.proxy.thaw();
    };
    let (before, ()) = tokio::join!(before, cancelled);
    assert_eq!(before.expect("settled"), []);
    // A retry queue is first in, first out: a copy of the second would follow directly.
    let back = receive(&member, 1).await.remove(0);
    assert_eq!((number(&back), back.retry_count), (number(&first), 2));
    assert_idle(&member).await;
    assert_eq!(stale(&member, &[back.tag, held[1].tag]).await.expect("both are outstanding"), []);
    assert_idle(&member).await;
}

/// One lane, so that all copies go to one retry queue, in order.
async fn one_lane(messages: u32) -> (Groups, Queue) {
    let groups = Groups::shared().await;
    let queue = Queue { lanes: Some(1), retry_delays: vec![Duration::from_millis(100)], ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    // The harness publishes to four lanes; these keys belong to the first.
    let keys = (0..).map(|n| format!("k-{n}")).filter(|key| slot_of(key).is_multiple_of(LANES));
    let batch: Vec<Publication> = (1..=messages).zip(keys).map(|(number, key)| publication(number, &key)).collect();
    publish_all(&groups.broker().await, &batch).await;
    (groups, queue)
}

#[tokio::test]
async fn a_paused_lane_stays_paused_after_a_reconnect() {
    let (groups, queue) = one_lane(1).await;
    let member = groups.member(&queue, ConsumerOptions::default()).await;
    let held = receive(&member, 1).await.remove(0);
    assert_eq!(held.lane, Lane::new("0"));
    within_timeout(member.pause(&held.lane)).await.expect("paused");
    member.proxy.block().await;
    let mut deadline = WaitDeadline::new("the lost connection is detected");
    while member.consumer.is_connected() {
        deadline.wait().await;
    }
    member.proxy.unblock();
    let mut deadline = WaitDeadline::new("it connects again");
    while !member.consumer.is_connected() {
        deadline.wait().await;
    }
    assert_idle(&member).await;
    within_timeout(member.resume(&held.lane)).await.expect("resumed");
    assert!(receive(&member, 1).await[0].redelivered);
}

#[tokio::test]
async fn a_hand_over_waits_for_outstanding_deliveries_up_to_its_limit() {
    let (groups, queue) = lanes(40).await;
    let hand_over = Duration::from_secs(2);
    let membership = || ConsumerOptions { lease: hand_over, ..ConsumerOptions::default() };
    let first = groups.member(&queue, membership()).await;
    let held = receive(&first, 40).await;
    let began = Instant::now();
    let second = groups.member(&queue, membership()).await;
    assert_eq!(lanes_of(&held).len(), 4, "every lane is busy");
    let mut some = within_timeout(second.receive(100)).await.expect("deliveries");
    assert!(began.elapsed() >= hand_over, "handed over after {:?}", began.elapsed());
    // A lane that is being handed over may or may not confirm an acknowledgement, so both must have moved.
    while lanes_of(&some).len() < 2 {
        some.extend(within_timeout(second.receive(100)).await.expect("deliveries"));
    }
    assert!(some.iter().all(|one| one.redelivered), "another consumer had them");
    // The first consumer can no longer acknowledge deliveries of two lanes, but all of the others.
    let tags: Vec<_> = held.iter().map(|one| one.tag).collect();
    let lost = stale(&first, &tags).await.expect("a response");
    let (stale, acknowledged): (Vec<Delivery>, Vec<Delivery>) =
        held.into_iter().partition(|one| lost.contains(&one.tag));
    assert_eq!((lanes_of(&stale).len(), lanes_of(&acknowledged).len()), (2, 2));
    assert!(lanes_of(&some).is_subset(&lanes_of(&stale)), "an acknowledged message is not delivered again");
}

fn lanes_of(deliveries: &[Delivery]) -> BTreeSet<Lane> {
    deliveries.iter().map(|one| one.lane.clone()).collect()
}
