//! A log is read from beginning to end, with messages as consumers received them.

use bytes::Bytes;
use relevo_core::Draft;
use relevo_core::replay_source::{ReplayFilter, ReplayReadRequest, first_matching};

use super::harness::{Harness, drafts, ids, read_all};

/// Compares ids, keys, headers and bytes. If a broker delivers the messages, compares all fields of the delivery too.
pub async fn a_published_message_is_read_as_it_was_received(h: &mut impl Harness) {
    let mut sent = drafts(5);
    sent[1].headers.insert("correlation-id".to_owned(), "c-7 ñ \"%\"".to_owned());
    sent[2].key = "ñ k%".into();
    sent[3].payload = Bytes::from_static(&[0, 0xff, b'\n', 0]);
    sent[3].content_type = "application/octet-stream".into();
    let published = h.publish(sent.clone()).await;
    let read = read_all(&*h.source().await, &ReplayFilter::default(), 100).await;
    assert_eq!(ids(&read), published);
    for (entry, sent) in read.iter().zip(&sent) {
        let message = entry.raw.decode().expect("a message of Relevo").message;
        assert_eq!((&*message.topic, &*message.key, &*message.kind), (&*sent.topic, &*sent.key, &*sent.kind));
        assert_eq!((&message.payload, &*message.content_type), (&sent.payload, &*sent.content_type));
        assert_eq!(message.headers, sent.headers);
        assert_eq!(&*entry.address, &*sent.topic);
    }
    let Some(received) = h.received().await else { return };
    assert_eq!(received.len(), read.len());
    for (message, delivery) in read.iter().zip(&received) {
        assert_eq!(message.raw, delivery.raw);
        assert_eq!(
            (&message.address, &message.lane, message.offset),
            (&delivery.address, &delivery.lane, delivery.offset)
        );
    }
}

/// After a crash a reader continues behind the last message it knows; no message is skipped or repeated.
pub async fn reading_resumes_after_any_message(h: &mut impl Harness) {
    let published = h.publish(drafts(7)).await;
    let all = read_all(&*h.source().await, &ReplayFilter::default(), 100).await;
    assert_eq!(ids(&all), published);
    for limit in 1..4 {
        assert_eq!(read_all(&*h.source().await, &ReplayFilter::default(), limit).await, all, "pages of {limit}");
    }
    // One source is kept open, another is opened again at each position.
    let open = h.source().await;
    for (index, message) in all.iter().enumerate() {
        let request = ReplayReadRequest { after: message.number, limit: 100, bytes: 1 << 20 };
        for source in [&open, &h.source().await] {
            let rest = source.read(&ReplayFilter::default(), request).await.expect("the log can be read");
            assert_eq!(rest.messages, all[index + 1..]);
        }
    }
}

/// An empty log is not an error.
pub async fn an_empty_log_is_at_its_end(h: &mut impl Harness) {
    let source = h.source().await;
    assert_eq!(source.bounds().await.expect("the log can be read"), None);
    assert_eq!(source.count(&ReplayFilter::default()).await.expect("the log can be read"), 0);
    assert_eq!(read_all(&*source, &ReplayFilter::default(), 10).await, []);
}

/// The number of bytes limits memory too, but every read returns at least one message.
pub async fn large_payloads_limit_the_page(h: &mut impl Harness) {
    let large = |number: u8| {
        let payload = Bytes::from(vec![number; 10_000]);
        Draft { payload, ..Draft::json("orders.eu", "k", "Placed", "") }
    };
    let published = h.publish((0..5).map(large).collect()).await;
    let source = h.source().await;
    let (mut messages, mut after) = (Vec::new(), 0);
    while messages.len() < published.len() {
        let request = ReplayReadRequest { after, limit: 100, bytes: 15_000 };
        let read = source.read(&ReplayFilter::default(), request).await.expect("the log can be read");
        assert!((1..=2).contains(&read.messages.len()), "{}", read.messages.len());
        after = read.next;
        messages.extend(read.messages);
    }
    assert_eq!(ids(&messages), published);
    let page = source
        .read(&ReplayFilter::default(), ReplayReadRequest { after: 0, limit: 100, bytes: 1 })
        .await
        .expect("the log can be read");
    assert_eq!(page.messages.len(), 1);
}

/// A reader at the end of the log can continue from there later.
pub async fn a_later_read_sees_new_messages(h: &mut impl Harness) {
    let source = h.source().await;
    let first = h.publish(drafts(2)).await;
    let before = read_all(&*source, &ReplayFilter::default(), 10).await;
    assert_eq!(ids(&before), first);
    let second = h.publish(drafts(2)).await;
    let after = before.last().map_or(0, |message| message.number);
    let request = ReplayReadRequest { after, limit: 10, bytes: 1 << 20 };
    let read = source.read(&ReplayFilter::default(), request).await.expect("the log can be read");
    assert_eq!(ids(&read.messages), second);
}

/// A sample shows operators the messages that are handled first.
pub async fn a_sample_is_the_first_matching_messages(h: &mut impl Harness) {
    let published = h.publish(drafts(6)).await;
    let source = h.source().await;
    let shown = first_matching(&*source, &ReplayFilter::default(), 4).await.expect("the log can be read");
    assert_eq!(ids(&shown), published[..4]);
    let shown = first_matching(&*source, &ReplayFilter::default(), 40).await.expect("the log can be read");
    assert_eq!(ids(&shown), published);
}
