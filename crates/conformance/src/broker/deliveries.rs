//! The deliveries that a consumer receives, and their number.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;

use bytes::Bytes;
use relevo_core::message::Headers;
use relevo_core::{BrokerConsumer as _, Lane, Publication};
use tokio::sync::watch;

use super::harness::{
    ADDRESS, ConsumerHarness, IDLE_FOR, acknowledge, assert_idle, number, publication, publish_all, receive,
    within_timeout,
};

/// A waiting `receive` call returns when a message arrives.
pub async fn a_waiting_consumer_is_woken(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let consumer = harness.consumer("billing", 10).await;
    assert_idle(&consumer).await;
    // Another publisher, as from another process.
    let broker = harness.broker().await;
    let late = async {
        tokio::task::yield_now().await;
        publish_all(&broker, &[publication(1, "a")]).await;
    };
    let (received, ()) = tokio::join!(receive(&consumer, 1), late);
    assert_eq!(number(&received[0]), 1);
}

/// A delivery identifies its origin and shows whether it is a redelivery.
pub async fn a_delivery_has_its_address_lane_and_offset(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    publish_all(&harness.broker().await, &[publication(1, "a"), publication(2, "a")]).await;
    let consumer = harness.consumer("billing", 10).await;
    let deliveries = receive(&consumer, 2).await;
    assert!(deliveries.iter().all(|delivery| &*delivery.address == ADDRESS && !delivery.redelivered));
    assert_eq!(deliveries[0].lane, deliveries[1].lane, "one key, one lane");
    assert_ne!(deliveries[0].tag, deliveries[1].tag);
    let offsets: Vec<Option<u64>> = deliveries.iter().map(|delivery| delivery.offset).collect();
    within_timeout(consumer.close()).await.expect("closed");
    let redelivered = receive(&harness.consumer("billing", 10).await, 2).await;
    // If the broker has offsets, the redelivered message has the same one.
    assert_eq!(redelivered.iter().map(|delivery| delivery.offset).collect::<Vec<_>>(), offsets);
}

/// A consumer can only dead-letter messages that it receives.
pub async fn an_undecodable_message_arrives_with_its_bytes(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let payload = Bytes::from_static(&[0, 0xff, b'{', 0xfe]);
    let headers = Headers::from([("ce-id".to_owned(), "no id".to_owned()), ("x-a".to_owned(), "1".to_owned())]);
    harness.publish_raw(ADDRESS, &headers, payload.clone()).await;
    harness.publish_raw(ADDRESS, &Headers::new(), Bytes::new()).await;
    let consumer = harness.consumer("billing", 10).await;
    let deliveries = receive(&consumer, 2).await;
    assert!(deliveries.iter().all(|delivery| delivery.raw.decode().is_err()));
    let first = deliveries.iter().find(|delivery| !delivery.raw.payload.is_empty()).expect("one payload has bytes");
    assert_eq!(first.raw.payload, payload);
    for (name, value) in &headers {
        let actual = first.raw.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value);
        assert_eq!(actual.map(|value| &**value), Some(value.as_bytes()), "{name}");
    }
    acknowledge(&consumer, &deliveries).await;
}

/// The caller limits the number of deliveries per call.
pub async fn receive_returns_at_most_its_limit(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let batch: Vec<Publication> = (1..=30).map(|number| publication(number, &format!("k-{number}"))).collect();
    publish_all(&harness.broker().await, &batch).await;
    let consumer = harness.consumer("billing", 100).await;
    let mut numbers = BTreeSet::new();
    while numbers.len() < 30 {
        let some = within_timeout(consumer.receive(4)).await.expect("deliveries");
        assert!((1..=4).contains(&some.len()));
        numbers.extend(some.iter().map(number));
    }
}

/// A lane at its prefetch limit delivers no more until a delivery is settled. Other lanes continue.
pub async fn the_prefetch_limits_a_lane(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let broker = harness.broker().await;
    let batch: Vec<Publication> = (1..=10).map(|number| publication(number, "a")).collect();
    publish_all(&broker, &batch).await;
    let consumer = harness.consumer("billing", 3).await;
    let deliveries = receive(&consumer, 3).await;
    assert_eq!(deliveries.iter().map(number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_idle(&consumer).await;
    assert_other_lanes_deliver(harness, &consumer, &deliveries[0].lane).await;
    acknowledge(&consumer, &deliveries[1..2]).await;
    assert_eq!(number(&receive(&consumer, 1).await[0]), 4);
}

/// A paused lane does not affect the others.
pub async fn a_paused_lane_does_not_stop_the_others(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let broker = harness.broker().await;
    publish_all(&broker, &[publication(1, "a")]).await;
    let consumer = harness.consumer("billing", 100).await;
    let deliveries = receive(&consumer, 1).await;
    within_timeout(consumer.pause(&deliveries[0].lane)).await.expect("paused");
    publish_all(&broker, &[publication(2, "a")]).await;
    assert_other_lanes_deliver(harness, &consumer, &deliveries[0].lane).await;
    // Outstanding deliveries can still be settled.
    acknowledge(&consumer, &deliveries[..1]).await;
    assert_idle(&consumer).await;
    within_timeout(consumer.resume(&deliveries[0].lane)).await.expect("resumed");
    let mut numbers = Vec::new();
    while !numbers.contains(&2) {
        numbers.extend(within_timeout(consumer.receive(100)).await.expect("deliveries").iter().map(number));
    }
}

/// A call may be cancelled at any point: deliveries that it did not return are delivered again.
pub async fn a_cancelled_receive_loses_nothing(harness: &mut impl ConsumerHarness) {
    harness.group("billing", ADDRESS).await;
    let batch: Vec<Publication> = (1..=60).map(|number| publication(number, &format!("k-{}", number % 9))).collect();
    publish_all(&harness.broker().await, &batch).await;
    let consumer = harness.consumer("billing", 100).await;
    let mut numbers = BTreeSet::new();
    // The limit is below the number of messages, so that each call can return some, however often it is polled.
    for polls in 0..24 {
        let mut call = pin!(consumer.receive(2));
        let mut polled = 0;
        let some = within_timeout(std::future::poll_fn(|context| {
            polled += 1;
            if polled > polls { Poll::Ready(None) } else { call.as_mut().poll(context).map(Some) }
        }))
        .await;
        if let Some(some) = some {
            numbers.extend(some.expect("deliveries").iter().map(number));
        }
    }
    while numbers.len() < 60 {
        numbers.extend(within_timeout(consumer.receive(100)).await.expect("deliveries").iter().map(number));
    }
}

/// Two concurrent `receive` calls on one consumer get every message once between them, and neither blocks the other.
pub async fn concurrent_receives_share_the_deliveries_of_a_consumer(harness: &mut impl ConsumerHarness) {
    const ALL: usize = 3_000;
    harness.group("billing", ADDRESS).await;
    let batch: Vec<Publication> =
        (1_u32..).take(ALL).map(|number| publication(number, &format!("k-{}", number % 50))).collect();
    let broker = harness.broker().await;
    let consumer = harness.consumer("billing", 100).await;
    let numbers = Mutex::new(Vec::new());
    let is_complete = || numbers.lock().expect("no thread panicked").len() >= ALL;
    let (complete, _) = watch::channel(false);
    let receiver = async || {
        let mut stopped = complete.subscribe();
        while !is_complete() {
            let some = tokio::select! {
                some = consumer.receive(100) => some.expect("deliveries"),
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            numbers.lock().expect("no thread panicked").extend(some.iter().map(number));
            acknowledge(&consumer, &some).await;
        }
        complete.send_replace(true);
    };
    // Small batches make each receiver check every lane, some of them while the other receiver's acknowledgements are
    // in progress.
    let publisher = async {
        for few in batch.chunks(15) {
            publish_all(&broker, few).await;
        }
    };
    within_timeout(async { tokio::join!(receiver(), receiver(), publisher) }).await;
    let mut numbers = numbers.into_inner().expect("no thread panicked");
    numbers.sort_unstable();
    assert_eq!(numbers, (1_i64..).take(ALL).collect::<Vec<_>>());
}

/// Publishes messages of many keys and receives until no more arrive. Some must arrive, but none through this lane.
async fn assert_other_lanes_deliver<H: ConsumerHarness>(harness: &H, consumer: &H::Consumer, lane: &Lane) {
    let batch: Vec<Publication> = (100..120).map(|number| publication(number, &format!("k-{number}"))).collect();
    publish_all(&harness.broker().await, &batch).await;
    let mut all = receive(consumer, 1).await;
    while let Ok(some) = tokio::time::timeout(IDLE_FOR, consumer.receive(100)).await {
        all.extend(some.expect("deliveries"));
    }
    assert!(all.iter().all(|delivery| delivery.lane != *lane), "{lane} delivered a message");
}
