//! Atomic batches: when they are used, and the outcomes when one message cannot be stored.

use std::time::Duration;

use async_nats::jetstream::{self, stream};
use relevo_broker_nats::{AtomicBatches, Config, Publisher};
use relevo_conformance::broker::harness::{numbers, publication, publication_to, publish_all, with_message};
use relevo_core::{Class, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings};
use relevo_testkit::proxy::{CutProxy, Direction};

use crate::harness::{STREAM, catch_all_stream, client, create_stream, open, outcomes_of, stored};

async fn server(version: NatsVersion, config: stream::Config) -> Private {
    let server = Private::start(version, Settings::new()).await;
    create_stream(&server, config).await;
    server
}

async fn broker(url: impl Into<String>, atomic: AtomicBatches) -> Publisher {
    open(Config { stream: Some(STREAM.to_owned()), atomic_batches: atomic, ..Config::new(url) }).await
}

fn batch(numbers: std::ops::RangeInclusive<u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, &format!("k-{}", number % 7))).collect()
}

async fn stored_numbers(server: &Private) -> Vec<i64> {
    numbers(&stored(server, STREAM).await.into_iter().map(|(_, raw)| raw).collect::<Vec<_>>())
}

/// The number of stored messages that came in batches. The server stores the batch headers with them.
async fn count_batched(server: &Private) -> usize {
    let stream = jetstream::new(client(server).await).get_stream(STREAM).await.expect("a stream");
    let state = &stream.cached_info().state;
    let mut count = 0;
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.expect("a message");
        count += usize::from(message.headers.get("Nats-Batch-Id").is_some());
    }
    count
}

#[tokio::test]
async fn batches_are_sent_where_server_and_stream_can() {
    let server = server(NatsVersion::V2_15, catch_all_stream()).await;
    publish_all(&broker(server.url(), AtomicBatches::Always).await, &batch(1..=1_500)).await;
    assert_eq!(stored_numbers(&server).await, (1..=1_500).collect::<Vec<_>>());
    assert_eq!(count_batched(&server).await, 1_500);
}

#[tokio::test]
async fn no_batch_is_sent_to_an_old_server_or_a_stream_without_batches() {
    let takes_none = stream::Config { allow_atomic_publish: false, ..catch_all_stream() };
    for (version, config) in [(NatsVersion::V2_9, catch_all_stream()), (NatsVersion::V2_15, takes_none)] {
        let server = server(version, config).await;
        publish_all(&broker(server.url(), AtomicBatches::Always).await, &batch(1..=20)).await;
        assert_eq!(stored_numbers(&server).await, (1..=20).collect::<Vec<_>>());
        assert_eq!(count_batched(&server).await, 0);
    }
}

#[tokio::test]
async fn no_batch_is_sent_when_batches_are_off() {
    let server = server(NatsVersion::V2_15, catch_all_stream()).await;
    let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let broker = broker(format!("nats://{}", proxy.addr()), AtomicBatches::Off).await;
    proxy.delay(Duration::from_millis(150));
    publish_all(&broker, &batch(1..=200)).await;
    proxy.delay(Duration::ZERO);
    publish_all(&broker, &batch(201..=300)).await;
    assert_eq!(count_batched(&server).await, 0);
}

#[tokio::test]
async fn no_batch_is_sent_before_the_ack_rate_is_known() {
    let server = server(NatsVersion::V2_15, catch_all_stream()).await;
    let broker = broker(server.url(), AtomicBatches::Auto).await;
    // Never enough in flight to measure the rate of the server.
    for first in (1..2_000).step_by(20) {
        publish_all(&broker, &batch(first..=first + 19)).await;
    }
    assert_eq!(count_batched(&server).await, 0);
}

#[tokio::test]
async fn batches_are_used_automatically_when_acknowledgements_are_slow() {
    let server = server(NatsVersion::V2_15, catch_all_stream()).await;
    let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let broker = broker(format!("nats://{}", proxy.addr()), AtomicBatches::Auto).await;
    // As slow as a disk that is synced before each acknowledgement.
    proxy.delay(Duration::from_millis(150));
    publish_all(&broker, &batch(1..=200)).await;
    proxy.delay(Duration::ZERO);
    publish_all(&broker, &batch(201..=300)).await;
    assert_eq!(count_batched(&server).await, 100);
}

#[tokio::test]
async fn a_batch_with_a_duplicate_is_sent_as_single_messages() {
    let server = server(NatsVersion::V2_15, catch_all_stream()).await;
    let broker = broker(server.url(), AtomicBatches::Always).await;
    publish_all(&broker, &batch(5..=6)).await;
    publish_all(&broker, &batch(1..=10)).await;
    assert_eq!(stored_numbers(&server).await, [5, 6, 1, 2, 3, 4, 7, 8, 9, 10]);
    // The same message twice in one batch.
    publish_all(&broker, &[publication(11, "a"), publication(12, "a"), publication(11, "a")]).await;
    assert_eq!(stored_numbers(&server).await[10..], [11, 12]);
}

#[tokio::test]
async fn a_message_that_cannot_be_stored_does_not_affect_the_others() {
    let server = server(NatsVersion::V2_15, stream::Config { max_message_size: 2_000, ..catch_all_stream() }).await;
    let broker = broker(server.url(), AtomicBatches::Always).await;
    let large = with_message(&publication(3, "c"), |message| message.payload = vec![b'x'; 3_000].into());
    let wrong = with_message(&publication(5, "e"), |message| {
        message.headers.insert("a b".to_owned(), "v".to_owned());
    });
    let one = |number| publication(number, "a");
    let outcomes =
        outcomes_of(&broker, &[one(1), publication_to("elsewhere", 2, "b"), large, one(4), wrong, one(6)]).await;
    let classes: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map(|(class, _)| *class)).collect();
    assert_eq!(
        classes,
        [None, Some(Class::Blocked), Some(Class::Poison), None, Some(Class::Poison), None],
        "{outcomes:?}"
    );
    assert_eq!(stored_numbers(&server).await, [1, 4, 6]);
}

#[tokio::test]
async fn a_full_stream_stores_the_messages_that_fit() {
    let discard = stream::DiscardPolicy::New;
    let server = server(NatsVersion::V2_15, stream::Config { max_messages: 3, discard, ..catch_all_stream() }).await;
    let outcomes = outcomes_of(&broker(server.url(), AtomicBatches::Always).await, &batch(1..=5)).await;
    let throttled = Some(Class::Throttled(Duration::from_secs(1)));
    let classes: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map(|(class, _)| *class)).collect();
    assert_eq!(classes, [None, None, None, throttled, throttled], "{outcomes:?}");
}

#[tokio::test]
async fn a_stream_that_stops_accepting_batches_gets_single_messages() {
    let server = server(NatsVersion::V2_15, catch_all_stream()).await;
    let broker = broker(server.url(), AtomicBatches::Always).await;
    publish_all(&broker, &batch(1..=10)).await;
    let context = jetstream::new(client(&server).await);
    context.update_stream(stream::Config { allow_atomic_publish: false, ..catch_all_stream() }).await.expect("updated");
    publish_all(&broker, &batch(11..=20)).await;
    assert_eq!(stored_numbers(&server).await, (1..=20).collect::<Vec<_>>());
    assert_eq!(count_batched(&server).await, 10);
}

#[tokio::test]
async fn an_uncertain_batch_is_unknown_and_creates_no_duplicate() {
    for direction in [Direction::ToServer, Direction::ToClient] {
        let server = server(NatsVersion::V2_15, catch_all_stream()).await;
        let proxy = CutProxy::start(([127, 0, 0, 1], server.port()).into()).await;
        let broker = broker(format!("nats://{}", proxy.addr()), AtomicBatches::Always).await;
        proxy.stall(direction);
        let batch = batch(1..=50);
        let (outcomes, ()) = tokio::join!(outcomes_of(&broker, &batch), async {
            proxy.until_held(direction).await;
            proxy.cut().await;
        });
        for outcome in outcomes {
            assert_eq!(outcome.map(|(class, _)| class), Some(Class::Unknown));
        }
        proxy.thaw();
        crate::harness::publish_until(&broker, &publication(51, "k"), None).await;
        publish_all(&broker, &batch).await;
        let mut numbers = stored_numbers(&server).await;
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=51).collect::<Vec<_>>());
    }
}
