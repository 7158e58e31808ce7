//! Acknowledgement of deliveries.

use relevo_core::AckOutcome::{Acknowledged, Stale};
use relevo_core::{BrokerConsumer as _, Delivery, DeliveryTag, Publication};

use super::harness::{
    ADDRESS, ConsumerHarness, acknowledge, assert_idle, number, publication, publish_all, receive, within_timeout,
};

fn of_key(key: &str, numbers: impl Iterator<Item = u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, key)).collect()
}

fn in_order(deliveries: &[Delivery]) -> Vec<i64> {
    deliveries.iter().map(number).collect()
}

/// Acknowledged messages are not delivered to the next consumer. If promised, they are not delivered after a broker
/// crash either.
pub async fn an_acknowledged_message_is_never_redelivered(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=10)).await;
    let consumer = harness.consumer("billing", 100).await;
    acknowledge(&consumer, &receive(&consumer, 10).await).await;
    harness.kill(consumer).await;
    let mut consumer = harness.consumer("billing", 100).await;
    assert_idle(&consumer).await;
    if harness.acks_survive_crash() {
        harness.kill(consumer).await;
        harness.kill_and_restart().await;
        consumer = harness.consumer("billing", 100).await;
        assert_idle(&consumer).await;
    }
    publish_all(&harness.broker().await, &of_key("a", 11..=11)).await;
    assert_eq!(in_order(&receive(&consumer, 1).await), [11]);
}

/// Every delivery after the first is marked as redelivered.
pub async fn an_unacknowledged_message_is_redelivered_after_a_crash(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=3)).await;
    for round in 1..=3 {
        let consumer = harness.consumer("billing", 100).await;
        let deliveries = receive(&consumer, 3).await;
        assert_eq!(in_order(&deliveries), [1, 2, 3]);
        assert!(deliveries.iter().all(|delivery| delivery.redelivered == (round > 1)), "{deliveries:?}");
        harness.kill(consumer).await;
        harness.kill_and_restart().await;
    }
}

/// Each acknowledgement applies to one delivery only.
pub async fn acknowledgements_need_no_order(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=6)).await;
    let consumer = harness.consumer("billing", 100).await;
    let deliveries = receive(&consumer, 6).await;
    for index in [4, 1, 2] {
        acknowledge(&consumer, &deliveries[index..=index]).await;
    }
    harness.kill(consumer).await;
    let consumer = harness.consumer("billing", 100).await;
    assert_eq!(in_order(&receive(&consumer, 3).await), [1, 4, 6]);
}

/// Outcomes are in the order of the call, and a stale delivery does not affect the others.
pub async fn each_acknowledgement_has_its_own_outcome(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &of_key("a", 1..=3)).await;
    let consumer = harness.consumer("billing", 100).await;
    let deliveries = receive(&consumer, 3).await;
    acknowledge(&consumer, &deliveries[..1]).await;
    let tags: Vec<DeliveryTag> = deliveries.iter().map(|delivery| delivery.tag).collect();
    let outcomes = within_timeout(consumer.acknowledge(&[tags[2], tags[0], tags[1]])).await;
    assert!(matches!(outcomes[..], [Acknowledged, Stale, Acknowledged]), "{outcomes:?}");
    assert_idle(&consumer).await;
    assert!(within_timeout(consumer.acknowledge(&[])).await.is_empty());
}
