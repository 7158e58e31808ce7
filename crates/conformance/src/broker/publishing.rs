//! The meaning of a publish confirmation.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::{Broker, Class, Publication, RawMessage};

use super::harness::{
    ADDRESS, BrokerHarness, MESSAGE_BYTES_MAX, decode, numbers, publication, publication_to, publish, publish_all,
    with_message, within_timeout,
};

/// A confirmed message is stored durably, if the broker promises that.
pub async fn a_confirmed_message_survives_a_crash(harness: &mut impl BrokerHarness) {
    let batch: Vec<Publication> = (1..=100).map(|number| publication(number, &format!("k-{}", number % 7))).collect();
    publish_all(&harness.broker().await, &batch).await;
    harness.kill_and_restart().await;
    let expected: Vec<i64> = if harness.guarantees().survives_crash { (1..=100).collect() } else { Vec::new() };
    assert_eq!(numbers(&harness.stored(ADDRESS).await), expected);
    // The broker accepts more messages after the crash.
    publish_all(&harness.broker().await, &[publication(101, "k-1")]).await;
    assert_eq!(numbers(&harness.stored(ADDRESS).await).last(), Some(&101));
}

/// Exactly one outcome per message, for any size of a batch.
pub async fn each_message_has_one_outcome(harness: &mut impl BrokerHarness) {
    let broker = harness.broker().await;
    let mut first = 1;
    for size in [1, 2, 15, 16, 17, 127, 128, 129, 1_000] {
        let batch: Vec<Publication> = (first..first + size).map(|number| publication(number, "k")).collect();
        publish_all(&broker, &batch).await;
        first += size;
    }
    assert_eq!(numbers(&harness.stored(ADDRESS).await), (1..i64::from(first)).collect::<Vec<_>>());
}

/// The order holds within a batch and across batches.
pub async fn messages_of_a_key_keep_their_order(harness: &mut impl BrokerHarness) {
    let broker = harness.broker().await;
    for batch in 0..5 {
        let messages = (batch * 60..(batch + 1) * 60).map(|number| publication(number, &format!("k-{}", number % 3)));
        publish_all(&broker, &messages.collect::<Vec<_>>()).await;
    }
    let stored = harness.stored(ADDRESS).await;
    assert_eq!(stored.len(), 300);
    for (key, numbers) in by_key(&stored) {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

/// Delivery is at least once; a repeated message is identical.
pub async fn a_repeat_has_the_same_id_and_bytes(harness: &mut impl BrokerHarness) {
    let batch = [publication(1, "a"), publication(2, "b")];
    publish_all(&harness.broker().await, &batch).await;
    // Another relay publishes them again with its own lease.
    let repeated: Vec<Publication> =
        batch.iter().map(|publication| Publication { epoch: 8, ..publication.clone() }).collect();
    publish_all(&harness.broker().await, &repeated).await;
    let stored = harness.stored(ADDRESS).await;
    assert_eq!(stored.len(), if harness.guarantees().deduplicates { 2 } else { 4 });
    for raw in &stored {
        let received = decode(raw);
        let sent =
            batch.iter().find(|publication| publication.message.id == received.message.id).expect("one of the two");
        assert_eq!((&received.message, received.seq), (&*sent.message, Some(sent.seq)));
    }
}

/// One outbox may publish to two addresses.
pub async fn the_same_message_at_two_addresses_is_no_duplicate(harness: &mut impl BrokerHarness) {
    let first = publication(1, "a");
    let second = Publication { address: "archive".into(), ..first.clone() };
    publish_all(&harness.broker().await, &[first, second]).await;
    assert_eq!(numbers(&harness.stored(ADDRESS).await), [1]);
    assert_eq!(numbers(&harness.stored("archive").await), [1]);
}

/// A message that can never be published does not affect the others in its batch.
pub async fn an_oversized_message_is_poison_and_others_are_published(harness: &mut impl BrokerHarness) {
    let broker = harness.broker().await;
    let batch = [publication(1, "a"), oversized(2, "b"), publication(3, "c")];
    assert_eq!(publish(&broker, &batch).await, [None, Some(Class::Poison), None]);
    assert_eq!(numbers(&harness.stored(ADDRESS).await), [1, 3]);
}

/// The behaviour matches the capability `ordered_in_flight` that the broker reports.
pub async fn a_message_after_a_rejected_one_of_its_key_is_fenced_or_published(harness: &mut impl BrokerHarness) {
    let broker = harness.broker().await;
    let fences = broker.capabilities().ordered_in_flight;
    let batch = [oversized(1, "a"), publication(2, "a"), publication(3, "b")];
    let follower = if fences { Some(Class::Unknown) } else { None };
    assert_eq!(publish(&broker, &batch).await, [Some(Class::Poison), follower, None]);
    let expected: &[i64] = if fences { &[3] } else { &[2, 3] };
    assert_eq!(numbers(&harness.stored(ADDRESS).await), expected);
}

/// The broker accepts messages up to its configured limit.
pub async fn a_message_of_the_maximum_size_is_published(harness: &mut impl BrokerHarness) {
    let broker = harness.broker().await;
    // Headers may count towards the limit.
    let bytes = MESSAGE_BYTES_MAX - 4_096;
    let large = with_message(&publication(1, "a"), |message| message.payload = vec![b'x'; bytes].into());
    publish_all(&broker, &[large]).await;
    assert_eq!(harness.stored(ADDRESS).await[0].payload.len(), bytes);
}

/// A call may be cancelled at any point. Each message is then complete or absent, and publishing the batch again
/// completes it.
pub async fn a_cancelled_call_truncates_no_message(harness: &mut impl BrokerHarness) {
    let broker = harness.broker().await;
    let batch: Vec<Publication> = (1..=50).map(|number| publication(number, &format!("k-{}", number % 3))).collect();
    for polls in 0..12 {
        let reports = OutcomeReceiver::default();
        let confirms = reports.sender(1);
        let mut call = pin!(broker.publish(&batch, &confirms));
        let mut polled = 0;
        within_timeout(std::future::poll_fn(|context| {
            polled += 1;
            if polled > polls || call.as_mut().poll(context).is_ready() { Poll::Ready(()) } else { Poll::Pending }
        }))
        .await;
    }
    publish_all(&broker, &batch).await;
    let stored = harness.stored(ADDRESS).await;
    let sent: BTreeMap<_, _> = batch.iter().map(|publication| (publication.message.id, publication)).collect();
    for raw in &stored {
        let received = decode(raw);
        assert_eq!(received.message, *sent[&received.message.id].message);
    }
    for (key, numbers) in by_key(&stored) {
        let mut ids = BTreeSet::new();
        let first: Vec<i64> = numbers.into_iter().filter(|number| ids.insert(*number)).collect();
        assert!(first.is_sorted(), "first copies of {key}: {first:?}");
        assert!(first.len() >= 16, "{key}: {first:?}");
    }
}

/// Two publishers neither block each other nor mix up their outcomes.
pub async fn two_publishers_lose_nothing(harness: &mut impl BrokerHarness) {
    let (first_broker, second_broker) = (harness.broker().await, harness.broker().await);
    let send = async |broker: &dyn Broker, key: &str, first: u32| {
        for start in (first..first + 200).step_by(20) {
            let batch: Vec<Publication> = (start..start + 20).map(|number| publication(number, key)).collect();
            let reports = OutcomeReceiver::default();
            within_timeout(broker.publish(&batch, &reports.sender(1))).await;
            assert_eq!(reports.take().iter().filter(|(_, _, outcome)| outcome.is_ok()).count(), 20);
        }
    };
    tokio::join!(send(&first_broker, "a", 0), send(&second_broker, "b", 1_000));
    let stored = by_key(&harness.stored(ADDRESS).await);
    assert_eq!(stored["a"], (0..200).collect::<Vec<_>>());
    assert_eq!(stored["b"], (1_000..1_200).collect::<Vec<_>>());
}

/// The call returns immediately, without an outcome.
pub async fn an_empty_batch_publishes_nothing(harness: &mut impl BrokerHarness) {
    assert_eq!(publish(&harness.broker().await, &[]).await, []);
    assert_eq!(harness.stored(ADDRESS).await, []);
}

fn oversized(number: u32, key: &str) -> Publication {
    let bytes = Bytes::from(vec![b'x'; MESSAGE_BYTES_MAX + 1]);
    with_message(&publication_to(ADDRESS, number, key), |message| message.payload = bytes)
}

fn by_key(stored: &[RawMessage]) -> BTreeMap<String, Vec<i64>> {
    let mut keys: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for received in stored.iter().map(decode) {
        keys.entry(received.message.key.to_string()).or_default().push(received.seq.expect("a sequence number"));
    }
    keys
}
