//! Consumer guarantees beyond the suite, on a healthy server: members, order, limits and errors.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::QueueDeleteOptions;
use relevo_broker_rabbitmq::{Config, ConsumerOptions, GroupConsumer, Queue, lane_queue_name};
use relevo_conformance::broker::harness::{
    ADDRESS, BrokerHarness as _, assert_idle, key, number, publication, publish_all, receive, stale, tags,
    within_timeout,
};
use relevo_core::{BrokerConsumer, Class, Delivery, DeliveryTag, Publication};

use crate::consumer_harness::{EXCHANGE, Groups, LANES, WaitDeadline};

mod suite {
    relevo_conformance::consumer_suite!(crate::consumer_harness::start);
}

const QUEUE: &str = "billing";

async fn acknowledge(consumer: &impl BrokerConsumer, deliveries: &[Delivery]) -> Vec<DeliveryTag> {
    stale(consumer, &tags(deliveries)).await.expect("acknowledged")
}

/// A queue of lanes, bound to [`ADDRESS`].
async fn lanes() -> (Groups, Queue) {
    let groups = Groups::shared().await;
    let queue = groups.queue(QUEUE);
    groups.declare(&queue, ADDRESS).await;
    (groups, queue)
}

/// A queue without lanes, bound to [`ADDRESS`], with this many numbered messages.
async fn single_queue(ordered: bool, messages: u32) -> (Groups, Queue) {
    let groups = Groups::shared().await;
    let queue = Queue { lanes: None, single_active_consumer: ordered, ..groups.queue(QUEUE) };
    groups.declare(&queue, ADDRESS).await;
    let client = groups.client().await;
    for number in 1..=messages {
        client.publish(EXCHANGE, ADDRESS, BasicProperties::default(), number.to_string().as_bytes()).await;
    }
    (groups, queue)
}

fn payloads(deliveries: &[Delivery]) -> Vec<u32> {
    let number = |delivery: &Delivery| std::str::from_utf8(&delivery.raw.payload).expect("text").parse();
    deliveries.iter().map(|delivery| number(delivery).expect("a number")).collect()
}

/// A queue of an earlier version.
#[tokio::test]
async fn an_ordered_queue_without_a_single_active_consumer_is_refused() {
    let groups = Groups::shared().await;
    let unordered = Queue { lanes: None, single_active_consumer: false, ..groups.queue(QUEUE) };
    groups.declare(&unordered, ADDRESS).await;
    let ordered = Queue { single_active_consumer: true, ..unordered.clone() };
    let consumer =
        GroupConsumer::open(&groups.config(), &ordered, ConsumerOptions::default()).await.expect("a consumer");
    let refused = within_timeout(consumer.receive(1)).await.expect_err("the queue has several active consumers");
    assert_eq!(refused.class(), Class::Blocked);
    assert!(refused.error_chain().contains("single active consumer"), "{}", refused.error_chain());
    assert!(!consumer.is_connected());

    let client = groups.client().await;
    client.channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await.expect("deleted");
    groups.declare(&ordered, ADDRESS).await;
    client.publish(EXCHANGE, ADDRESS, BasicProperties::default(), b"x").await;
    let delivered = loop {
        match within_timeout(consumer.receive(1)).await {
            Ok(mut deliveries) => break deliveries.remove(0),
            Err(failure) => assert_eq!(failure.class(), Class::Blocked, "it was refused again before it was deleted"),
        }
    };
    assert_eq!(&*delivered.raw.payload, b"x");
}

/// The broker names only the first difference, which hides the missing single active consumer.
#[tokio::test]
async fn an_ordered_queue_with_other_settings_is_refused() {
    let groups = Groups::shared().await;
    let unordered =
        Queue { lanes: None, single_active_consumer: false, max_length: Some(1_000), ..groups.queue(QUEUE) };
    groups.declare(&unordered, ADDRESS).await;
    let ordered = Queue { single_active_consumer: true, max_length: None, ..unordered.clone() };
    let consumer =
        GroupConsumer::open(&groups.config(), &ordered, ConsumerOptions::default()).await.expect("a consumer");
    let refused = within_timeout(consumer.receive(1)).await.expect_err("the queue has several active consumers");
    assert_eq!(refused.class(), Class::Blocked);
    assert!(refused.error_chain().contains("x-max-length"), "{}", refused.error_chain());
}

#[tokio::test]
async fn joining_and_leaving_members_keep_each_key_in_order_and_lose_nothing() {
    let (groups, queue) = lanes().await;
    let membership = || ConsumerOptions { prefetch: 20, lease: Duration::from_secs(1), ..ConsumerOptions::default() };
    let batch: Vec<Publication> =
        (1..=1_000).map(|number| publication(number, &format!("k-{}", number % 10))).collect();
    let mut seen: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let (mut first, mut done) = (BTreeSet::new(), BTreeSet::new());
    let mut members = vec![groups.member(&queue, membership()).await];
    let broker = groups.broker().await;
    let mut rest = batch.as_slice();
    let deadline = Instant::now() + Duration::from_mins(2);
    for round in 0_usize.. {
        assert!(Instant::now() < deadline, "only {} of 1000 were seen", first.len());
        let (now, later) = rest.split_at(rest.len().min(50));
        publish_all(&broker, now).await;
        rest = later;
        for member in &members {
            let Ok(some) = tokio::time::timeout(Duration::from_millis(50), member.receive(30)).await else { continue };
            let some = some.expect("deliveries");
            for delivery in &some {
                if first.insert(number(delivery)) {
                    seen.entry(key(delivery)).or_default().push(number(delivery));
                }
            }
            // Some deliveries are outstanding when the member ends; some are stale because the lane moved.
            let answered = &some[..some.len() - some.len() / 4];
            let lost = acknowledge(member, answered).await;
            done.extend(answered.iter().filter(|one| !lost.contains(&one.tag)).map(number));
        }
        if rest.is_empty() && first.len() == 1_000 {
            break;
        }
        match round % 5 {
            0 => members.push(groups.member(&queue, membership()).await),
            2 if members.len() > 1 => within_timeout(members.remove(0).close()).await.expect("closed"),
            4 if members.len() > 1 => groups.disconnect(&members.remove(0)).await,
            _ => {}
        }
    }
    for (key, numbers) in seen {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
    assert!(done.len() > 500, "only {} were settled on the way", done.len());
}

#[tokio::test]
async fn the_next_consumer_begins_with_the_oldest_message() {
    let (groups, queue) = single_queue(true, 30).await;
    let membership = || ConsumerOptions { prefetch: 10, ..ConsumerOptions::default() };
    for end in ["closed", "dropped", "dropped while another waits", "closed while another waits"] {
        let first = GroupConsumer::open(&groups.config(), &queue, membership()).await.expect("a consumer");
        assert_eq!(payloads(&receive(&first, 2).await), [1, 2], "before it is {end}");
        let second = GroupConsumer::open(&groups.config(), &queue, membership()).await.expect("a consumer");
        assert_idle(&second).await;
        if end.starts_with("closed") {
            within_timeout(first.close()).await.expect("closed");
        }
        drop(first);
        // After a cancelled subscription it would have received the eleventh message first.
        assert_eq!(payloads(&receive(&second, 10).await), (1..=10).collect::<Vec<_>>(), "after it was {end}");
        drop(second);
    }
}

#[tokio::test]
async fn without_order_and_lanes_the_broker_distributes_the_queue() {
    let (groups, queue) = single_queue(false, 0).await;
    let one = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let other = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let client = groups.client().await;
    for number in 1..=20_u32 {
        client.publish(EXCHANGE, ADDRESS, BasicProperties::default(), number.to_string().as_bytes()).await;
    }
    let (ones, others) = (payloads(&receive(&one, 10).await), payloads(&receive(&other, 10).await));
    let all: BTreeSet<u32> = ones.iter().chain(&others).copied().collect();
    assert_eq!(all.len(), 20, "{ones:?} {others:?}");
}

#[tokio::test]
async fn no_more_than_the_prefetch_leaves_the_broker() {
    let (groups, queue) = single_queue(true, 200).await;
    let membership = ConsumerOptions { prefetch: 7, ..ConsumerOptions::default() };
    let consumer = GroupConsumer::open(&groups.config(), &queue, membership).await.expect("a consumer");
    let client = groups.client().await;
    for settled in [0, 5, 10] {
        let mut deadline = WaitDeadline::new("the broker delivers the prefetch");
        while client.ready(QUEUE).await != 200 - settled - 7 {
            deadline.wait().await;
        }
        let held = receive(&consumer, 5).await;
        assert_eq!(client.ready(QUEUE).await, 200 - settled - 7);
        assert_eq!(acknowledge(&consumer, &held).await, []);
    }
}

#[tokio::test]
async fn a_missing_queue_is_reported_and_consumed_once_it_exists() {
    let groups = Groups::shared().await;
    let queue = groups.queue(QUEUE);
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let failure = within_timeout(consumer.receive(1)).await.expect_err("no queue");
    assert_eq!(failure.class(), Class::Blocked);
    assert!(
        failure.error_chain().contains(&lane_queue_name(QUEUE, 0)) || failure.error_chain().contains(QUEUE),
        "{failure}"
    );
    groups.declare(&queue, ADDRESS).await;
    publish_all(&groups.broker().await, &[publication(1, "a")]).await;
    let mut deadline = WaitDeadline::new("it subscribes");
    while within_timeout(consumer.receive(1)).await.is_err() {
        deadline.wait().await;
    }
}

#[tokio::test]
async fn a_deleted_queue_is_noticed_and_other_lanes_continue() {
    let (groups, queue) = lanes().await;
    let consumer = GroupConsumer::open(&groups.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let client = groups.client().await;
    let deleted = lane_queue_name(QUEUE, 1);
    client.channel.queue_delete(deleted.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    let failure = within_timeout(consumer.receive(1)).await.expect_err("a queue is deleted");
    assert_eq!(failure.class(), Class::Blocked);
    assert!(failure.error_chain().contains(&deleted), "{}", failure.error_chain());
    // Keys of the other lanes only: this lane's queue does not exist.
    let others = (0..40).map(|number| publication(number, &format!("k-{number}")));
    let others: Vec<Publication> = others.filter(|one| lane_of(&one.message.key) != 1).collect();
    publish_all(&groups.broker().await, &others).await;
    let mut seen = BTreeSet::new();
    while seen.len() < others.len() {
        // The error of the missing lane is returned after each attempt.
        if let Ok(some) = within_timeout(consumer.receive(100)).await {
            seen.extend(some.iter().map(number));
        }
    }
}

fn lane_of(key: &str) -> u16 {
    relevo_core::slot::slot_of(key) % LANES
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_an_unreachable_server_is_retried() {
    let (groups, queue) = lanes().await;
    let wrong = Config { password: Some("wrong".to_owned()), ..groups.config() };
    let refused = GroupConsumer::open(&wrong, &queue, ConsumerOptions::default()).await.expect("a consumer");
    let failure = within_timeout(refused.receive(1)).await.expect_err("refused");
    assert_eq!(failure.class(), Class::Blocked);
    assert!(
        failure.error_chain().contains("guest") && !failure.error_chain().contains("wrong@"),
        "{}",
        failure.error_chain()
    );
    let unreachable = Config { urls: vec!["amqp://guest:guest@127.0.0.1:1".to_owned()], ..groups.config() };
    let waiting = GroupConsumer::open(&unreachable, &queue, ConsumerOptions::default()).await.expect("a consumer");
    assert_idle(&waiting).await;
    within_timeout(waiting.close()).await.expect("closed");
}

#[tokio::test]
async fn a_connection_cut_during_acknowledgements_loses_nothing() {
    let (groups, queue) = lanes().await;
    let batch: Vec<Publication> = (1..=200).map(|number| publication(number, &format!("k-{}", number % 9))).collect();
    publish_all(&groups.broker().await, &batch).await;
    let member = groups.member(&queue, ConsumerOptions { prefetch: 10, ..ConsumerOptions::default() }).await;
    let (mut acknowledged, mut uncertain) = (BTreeSet::new(), BTreeSet::new());
    for round in 0.. {
        if acknowledged.union(&uncertain).count() == 200 {
            break;
        }
        let some = within_timeout(member.receive(10)).await.expect("deliveries");
        let again: Vec<i64> = some.iter().map(number).filter(|number| acknowledged.contains(number)).collect();
        assert!(again.is_empty(), "acknowledged, and delivered again: {again:?}");
        let tags: Vec<_> = some.iter().map(|one| one.tag).collect();
        let cut = async {
            if round % 3 == 0 {
                member.proxy.cut().await;
            }
        };
        let (settled, ()) = tokio::join!(stale(&member, &tags), cut);
        match settled {
            Ok(lost) => acknowledged.extend(some.iter().filter(|one| !lost.contains(&one.tag)).map(number)),
            Err(failure) => {
                assert_eq!(failure.class(), Class::Unknown, "{failure}");
                uncertain.extend(some.iter().map(number));
                // A new channel follows soon. Old tags are stale, even if the new channel uses the same numbers.
                let mut deadline = WaitDeadline::new("the cut is detected");
                while stale(&member, &tags).await.is_err() {
                    deadline.wait().await;
                }
                assert_eq!(stale(&member, &tags).await.expect("a response").len(), tags.len());
            }
        }
    }
    assert!(!uncertain.is_empty(), "no cut hit an acknowledgement");
}
