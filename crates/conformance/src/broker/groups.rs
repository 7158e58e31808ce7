//! Consumer groups: the distribution of messages, also when consumers join and leave.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::{BrokerConsumer as _, Delivery, Publication};

use super::harness::{
    ADDRESS, ConsumerHarness, acknowledge, assert_idle, key, number, publication, publication_to, publish_all, receive,
    stale, tags, within_timeout,
};

fn publications(count: u32, keys: u32) -> Vec<Publication> {
    (1..=count).map(|number| publication(number, &format!("k-{}", number % keys))).collect()
}

fn sorted(deliveries: &[Delivery]) -> Vec<i64> {
    let mut numbers: Vec<i64> = deliveries.iter().map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// Groups are independent of each other.
pub async fn each_group_gets_every_message(harness: &mut impl ConsumerHarness) {
    for group in ["billing", "audit"] {
        harness.group(group, ADDRESS).await;
    }
    publish_all(&harness.broker().await, &publications(50, 7)).await;
    for group in ["billing", "audit"] {
        let consumer = harness.consumer(group, 100).await;
        let deliveries = receive(&consumer, 50).await;
        acknowledge(&consumer, &deliveries).await;
        assert_eq!(sorted(&deliveries), (1..=50).collect::<Vec<_>>(), "{group}");
    }
}

/// Messages to other addresses do not reach the group.
pub async fn a_group_receives_only_its_addresses(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let batch = [
        publication_to("other", 1, "a"),
        publication_to(ADDRESS, 2, "a"),
        publication_to("orders-not", 3, "a"),
        publication_to(ADDRESS, 4, "b"),
    ];
    publish_all(&harness.broker().await, &batch).await;
    let consumer = harness.consumer("billing", 100).await;
    assert_eq!(sorted(&receive(&consumer, 2).await), [2, 4]);
    assert_idle(&consumer).await;
}

/// Each message is delivered to one member, and all messages of a key to the same member.
pub async fn members_of_a_group_share_its_lanes(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let (first, second) = (harness.consumer("billing", 100).await, harness.consumer("billing", 100).await);
    let (first_keys, second_keys) = assert_shared(harness, &first, &second).await;
    assert!(!first_keys.is_empty() && !second_keys.is_empty(), "one consumer received everything");
    assert!(first_keys.is_disjoint(&second_keys), "both received messages of one key");
}

/// It does not have to wait until the other member ends.
pub async fn a_member_that_joins_later_gets_its_share(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let first = harness.consumer("billing", 100).await;
    publish_all(&harness.broker().await, &[publication(1_000, "first")]).await;
    acknowledge(&first, &receive(&first, 1).await).await;
    let second = harness.consumer("billing", 100).await;
    let (_, second_keys) = assert_shared(harness, &first, &second).await;
    assert!(!second_keys.is_empty(), "the later consumer received nothing");
}

/// Publishes messages of forty keys twice, so that lanes can move in between. Returns the keys that each consumer
/// received the second time.
async fn assert_shared<H: ConsumerHarness>(
    harness: &H,
    first: &H::Consumer,
    second: &H::Consumer,
) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut keys = (BTreeSet::new(), BTreeSet::new());
    for round in 0..2 {
        keys = (BTreeSet::new(), BTreeSet::new());
        let batch: Vec<Publication> = (0..40).map(|key| publication(round * 100 + key, &format!("k-{key}"))).collect();
        publish_all(&harness.broker().await, &batch).await;
        let mut left = 40;
        while left > 0 {
            tokio::select! {
                some = within_timeout(first.receive(40)) => {
                    let some = some.expect("deliveries");
                    left -= some.len();
                    keys.0.extend(some.iter().map(key));
                    acknowledge(first, &some).await;
                }
                some = within_timeout(second.receive(40)) => {
                    let some = some.expect("deliveries");
                    left -= some.len();
                    keys.1.extend(some.iter().map(key));
                    acknowledge(second, &some).await;
                }
            }
        }
    }
    keys
}

/// Consumers join, close and crash. First deliveries of each key still arrive in the order of publishing.
pub async fn a_key_is_delivered_in_order_across_members(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let broker = harness.broker().await;
    let mut numbers: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    let mut total = BTreeSet::new();
    let mut note = |deliveries: &[Delivery]| {
        for delivery in deliveries {
            if total.insert(number(delivery)) {
                numbers.entry(key(delivery)).or_default().push(number(delivery));
            }
        }
        total.len()
    };
    for round in 0..6_u32 {
        let batch: Vec<Publication> =
            (0..30).map(|index| publication(round * 30 + index, &format!("k-{}", index % 5))).collect();
        publish_all(&broker, &batch).await;
        let consumer = harness.consumer("billing", 50).await;
        let some = receive(&consumer, 20).await;
        note(&some);
        acknowledge(&consumer, &some[..10]).await;
        if round % 2 == 0 {
            harness.kill(consumer).await;
        } else {
            within_timeout(consumer.close()).await.expect("closed");
        }
    }
    let last = harness.consumer("billing", 50).await;
    loop {
        let some = within_timeout(last.receive(50)).await.expect("deliveries");
        acknowledge(&last, &some).await;
        if note(&some) == 180 {
            break;
        }
    }
    for (key, numbers) in numbers {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

/// After a crash, unacknowledged messages are delivered again, marked as redelivered.
pub async fn a_delivery_of_a_dead_consumer_is_redelivered(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &publications(20, 5)).await;
    let first = harness.consumer("billing", 100).await;
    let deliveries = receive(&first, 20).await;
    assert!(deliveries.iter().all(|delivery| !delivery.redelivered));
    acknowledge(&first, &deliveries[..8]).await;
    let expected = sorted(&deliveries[8..]);
    harness.kill(first).await;
    let second = harness.consumer("billing", 100).await;
    let redelivered = receive(&second, 12).await;
    assert_eq!(sorted(&redelivered), expected);
    assert!(redelivered.iter().all(|delivery| delivery.redelivered), "a repeat looks like a first delivery");
}

/// Its acknowledgements have no effect and are reported as stale.
pub async fn a_consumer_that_lost_its_lanes_acknowledges_nothing(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &publications(10, 5)).await;
    let old = harness.consumer("billing", 100).await;
    let deliveries = receive(&old, 10).await;
    harness.suspend_past_lease(&old).await;
    let new = harness.consumer("billing", 100).await;
    let redelivered = receive(&new, 10).await;
    let lost = stale(&old, &tags(&deliveries)).await.expect("outcomes");
    assert_eq!(lost, deliveries.iter().map(|delivery| delivery.tag).collect::<Vec<_>>());
    harness.kill(old).await;
    harness.kill(new).await;
    let third = harness.consumer("billing", 100).await;
    let still = receive(&third, 10).await;
    assert_eq!(sorted(&still), sorted(&redelivered));
}

/// The next consumer does not have to wait for a lease to expire.
pub async fn closing_a_consumer_releases_its_lanes_at_once(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &publications(20, 5)).await;
    let first = harness.consumer("billing", 100).await;
    let deliveries = receive(&first, 20).await;
    acknowledge(&first, &deliveries[..5]).await;
    let second = harness.consumer("billing", 100).await;
    // It is already waiting when the first consumer closes.
    let (redelivered, closed) = tokio::join!(receive(&second, 15), first.close());
    closed.expect("closed");
    assert_eq!(sorted(&redelivered), sorted(&deliveries[5..]));
}

/// A waiting `receive` returns an empty result, and later acknowledgements are stale.
pub async fn a_closed_consumer_receives_nothing(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let consumer = harness.consumer("billing", 100).await;
    publish_all(&harness.broker().await, &[publication(1, "a")]).await;
    let deliveries = receive(&consumer, 1).await;
    let (received, closed) = tokio::join!(within_timeout(consumer.receive(10)), consumer.close());
    closed.expect("closed");
    assert!(received.expect("receive returns").is_empty());
    assert_eq!(stale(&consumer, &tags(&deliveries)).await.expect("outcomes"), [deliveries[0].tag]);
    within_timeout(consumer.close()).await.expect("closing twice succeeds");
    let second = harness.consumer("billing", 100).await;
    assert_eq!(sorted(&receive(&second, 1).await), [1]);
}
