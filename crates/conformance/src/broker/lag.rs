//! The reported number of undelivered messages.

use std::collections::BTreeMap;
use std::time::Duration;

use relevo_core::{BrokerConsumer, Delivery, Lane};
use tokio::time::{Instant, sleep};

use super::harness::{
    ADDRESS, ConsumerHarness, TIMEOUT, acknowledge, publication, publication_to, publish_all, receive, within_timeout,
};

/// Every lane is reported, with a count of 0.
pub async fn a_new_group_has_no_lag(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let consumer = harness.consumer("billing", 100).await;
    let lag = wait_for_lag(&consumer, &BTreeMap::new()).await;
    assert!(!lag.is_empty() && lag.values().all(|waiting| *waiting == 0), "{lag:?}");
}

/// Messages count in the lane that delivers them later, whether or not they are already prefetched.
pub async fn an_unreceived_message_is_lag_of_its_lane(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let batch: Vec<_> = (1..=10).map(|number| publication(number, &format!("k-{}", number % 4))).collect();
    publish_all(&harness.broker().await, &batch).await;
    publish_all(&harness.broker().await, &[publication_to("other", 11, "k-1")]).await;
    // Fewer than the messages of a key, so that only some of them are prefetched.
    let consumer = harness.consumer("billing", 2).await;
    let before = wait_for_total_lag(&consumer, 10).await;
    let mut deliveries: Vec<Delivery> = Vec::new();
    while deliveries.len() < 10 {
        let some = receive(&consumer, 1).await;
        acknowledge(&consumer, &some).await;
        deliveries.extend(some);
    }
    let mut received = BTreeMap::new();
    for delivery in &deliveries {
        *received.entry(delivery.lane.clone()).or_insert(0) += 1;
    }
    let nonzero: BTreeMap<Lane, u64> = before.into_iter().filter(|(_, waiting)| *waiting > 0).collect();
    assert_eq!(nonzero, received);
    wait_for_lag(&consumer, &BTreeMap::new()).await;
}

/// Outstanding deliveries are not counted.
pub async fn an_outstanding_delivery_is_no_lag(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let batch: Vec<_> = (1..=10).map(|number| publication(number, &format!("k-{number}"))).collect();
    publish_all(&harness.broker().await, &batch).await;
    let consumer = harness.consumer("billing", 100).await;
    let some = receive(&consumer, 4).await;
    wait_for_total_lag(&consumer, 6).await;
    acknowledge(&consumer, &some).await;
    wait_for_total_lag(&consumer, 6).await;
    let rest = receive(&consumer, 6).await;
    wait_for_total_lag(&consumer, 0).await;
    within_timeout(consumer.close()).await.expect("closed");
    let next = harness.consumer("billing", 100).await;
    // Deliveries of the first consumer are redelivered, so they count again.
    wait_for_total_lag(&next, rest.len() as u64).await;
}

/// Waits until the reported lag of all lanes is `expected` in total, because messages can still be in transit.
async fn wait_for_total_lag(consumer: &impl BrokerConsumer, expected: u64) -> BTreeMap<Lane, u64> {
    wait_until_lag(consumer, |lag| lag.values().sum::<u64>() == expected).await
}

/// Waits until the nonzero lanes equal `expected`; returns the whole report.
async fn wait_for_lag(consumer: &impl BrokerConsumer, expected: &BTreeMap<Lane, u64>) -> BTreeMap<Lane, u64> {
    wait_until_lag(consumer, |lag| lag.iter().filter(|(_, waiting)| **waiting > 0).eq(expected)).await
}

async fn wait_until_lag(
    consumer: &impl BrokerConsumer,
    matches: impl Fn(&BTreeMap<Lane, u64>) -> bool,
) -> BTreeMap<Lane, u64> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let report = within_timeout(consumer.lag()).await.expect("the broker reports it");
        let lag: BTreeMap<Lane, u64> = report.iter().cloned().collect();
        assert_eq!(lag.len(), report.len(), "a lane was reported twice: {report:?}");
        if matches(&lag) {
            return lag;
        }
        assert!(Instant::now() < end, "still {report:?}");
        sleep(Duration::from_millis(20)).await;
    }
}
