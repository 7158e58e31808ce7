//! Messages arrive with the same contents as sent.

use bytes::Bytes;
use relevo_core::Publication;

use super::harness::{ADDRESS, BrokerHarness, decode, publication, publish_all, with_message};

/// Any payload is allowed.
pub async fn empty_and_binary_payloads_arrive_unchanged(harness: &mut impl BrokerHarness) {
    let every_byte: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let payloads = [Bytes::new(), Bytes::from_static(&[0]), Bytes::from_static(&[0xff, 0xfe, 0]), every_byte.into()];
    let batch: Vec<Publication> = (1..)
        .zip(&payloads)
        .map(|(number, payload)| {
            with_message(&publication(number, "k"), |message| {
                message.payload = payload.clone();
                message.content_type = "application/octet-stream".into();
            })
        })
        .collect();
    publish_all(&harness.broker().await, &batch).await;
    let stored = harness.stored(ADDRESS).await;
    assert_eq!(stored.iter().map(|raw| &raw.payload).collect::<Vec<_>>(), payloads.iter().collect::<Vec<_>>());
}

/// Covers the envelope, the trace context, the application's headers, the sequence number and the epoch.
pub async fn every_attribute_and_header_arrives(harness: &mut impl BrokerHarness) {
    let sent = with_message(&publication(41, "o-41"), |message| {
        for (name, value) in [
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("tracestate", "vendor=1"),
            ("x-correlation-id", "c-1"),
            ("x-empty", ""),
            ("x-number", "007"),
        ] {
            message.headers.insert(name.to_owned(), value.to_owned());
        }
    });
    publish_all(&harness.broker().await, std::slice::from_ref(&sent)).await;
    let stored = harness.stored(ADDRESS).await;
    let received = decode(&stored[0]);
    assert_eq!(received.message, *sent.message);
    assert_eq!((received.seq, received.epoch), (Some(41), Some(7)));
    assert!(!received.source.is_empty());
}

/// Headers as large as an outbox allows.
pub async fn large_headers_arrive(harness: &mut impl BrokerHarness) {
    let sent = with_message(&publication(1, "k"), |message| {
        message.headers.extend((0..60).map(|number| (format!("x-{number}"), number.to_string().repeat(500))));
    });
    publish_all(&harness.broker().await, std::slice::from_ref(&sent)).await;
    assert_eq!(decode(&harness.stored(ADDRESS).await[0]).message, *sent.message);
}

/// Quotes, other alphabets, and text that looks like a pattern.
pub async fn keys_and_headers_may_be_any_text(harness: &mut impl BrokerHarness) {
    let texts = ["clave-ñ", "鍵", "🔑", "a b", "it's \"quoted\"", "\\", "*.**", "%_", "{}"];
    let batch: Vec<Publication> = (1..)
        .zip(texts)
        .map(|(number, text)| {
            with_message(&publication(number, text), |message| {
                message.headers.insert("x-text".to_owned(), text.to_owned());
            })
        })
        .collect();
    publish_all(&harness.broker().await, &batch).await;
    let stored = harness.stored(ADDRESS).await;
    let received: Vec<_> = stored.iter().map(|raw| decode(raw).message).collect();
    assert_eq!(received, batch.iter().map(|publication| (*publication.message).clone()).collect::<Vec<_>>());
}
