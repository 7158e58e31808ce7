//! Decodes a delivery into the message that a handler sees.

use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::inbox::{DedupId, InboxMessage, ids};
use relevo_core::message::Headers;
use relevo_core::trace::Operation;
use relevo_core::wire::{CONTENT_TYPE, WireError};
use relevo_core::{Delivery, Lane, Message, MessageId, RawMessage};

use crate::config::{Config, ForeignMessages};
use crate::delivery::PendingDelivery;
use crate::incoming::Incoming;

/// Decodes messages for one consumer.
#[derive(Debug)]
pub(crate) struct Decoder {
    consumer: Arc<str>,
}

/// Where a message came from.
struct Origin<'a> {
    address: &'a Arc<str>,
    lane: &'a Lane,
    offset: Option<u64>,
}

impl Decoder {
    pub(crate) fn new(consumer: &str) -> Self {
        Self { consumer: consumer.into() }
    }

    /// Decodes a delivery, and derives its id and the queue in which it waits after a failure.
    pub(crate) fn decode_delivery(&self, config: &Config, delivery: Delivery) -> PendingDelivery {
        let Delivery { tag, raw, address, lane, offset, redelivered, .. } = delivery;
        let incoming = self.decode(config, &raw, &Origin { address: &address, lane: &lane, offset });
        // The id of an undecodable message comes from its bytes: its headers could name another message.
        let id = incoming.as_ref().map_or_else(|_| generated_id(&address, &lane, offset, &raw), Incoming::id);
        let queue = match &incoming {
            Ok(incoming) if config.order.is_by_key() => incoming.message.key.clone(),
            // It must not block other messages, so it gets a queue of its own.
            _ => id.to_string().into(),
        };
        let dedup_id = DedupId { id, replay: 0 };
        let message = InboxMessage { dedup_id, queue, raw, address, lane, offset, attempts: 0 };
        let start_span =
            |incoming: &Incoming| config.tracer.start(Operation::Receive, &incoming.message, &incoming.address);
        let span = incoming.as_ref().ok().and_then(start_span);
        PendingDelivery {
            tag,
            redelivered,
            message,
            incoming,
            can_batch: false,
            start_record: None,
            out_of_order: false,
            store_backoff: config.outage_backoff(),
            unrecorded_failure: None,
            span,
        }
    }

    /// Decodes a message from the retry table.
    pub(crate) fn decode_queued(&self, config: &Config, message: &InboxMessage) -> Result<Incoming, String> {
        let InboxMessage { dedup_id, raw, address, lane, offset, .. } = message;
        let mut incoming = self.decode(config, raw, &Origin { address, lane, offset: *offset })?;
        incoming.message.id = dedup_id.id;
        incoming.replay = dedup_id.replay;
        Ok(incoming)
    }

    fn decode(&self, config: &Config, raw: &RawMessage, origin: &Origin<'_>) -> Result<Incoming, String> {
        let (message, source, seq) = match (raw.decode(), &config.foreign_messages) {
            (Ok(received), _) => (received.message, Some(received.source), received.seq),
            // A message without even a CloudEvents version was not published by Relevo.
            (Err(WireError::Missing("ce-specversion")), Some(foreign)) => {
                (foreign_message(config, foreign, raw, origin), None, None)
            }
            (Err(error), _) => return Err(error.to_string()),
        };
        Ok(Incoming {
            consumer: Arc::clone(&self.consumer),
            value: message.payload.clone(),
            message,
            raw: raw.clone(),
            address: Arc::clone(origin.address),
            lane: origin.lane.clone(),
            offset: origin.offset,
            source,
            seq,
            replay: 0,
            attempt: 1,
            trace: None,
        })
    }
}

fn generated_id(address: &str, lane: &Lane, offset: Option<u64>, raw: &RawMessage) -> MessageId {
    ids::foreign_id(address, offset.map(|offset| (lane, offset)), &raw.payload)
}

fn foreign_message(config: &Config, foreign: &ForeignMessages, raw: &RawMessage, origin: &Origin<'_>) -> Message {
    let headers = raw.text_headers();
    let id = match foreign.id_header.as_ref().and_then(|name| headers.get(name)) {
        Some(text) => text.parse().unwrap_or_else(|_| ids::named_id(origin.address, text.as_bytes())),
        None => generated_id(origin.address, origin.lane, origin.offset, raw),
    };
    let key = foreign.key_header.as_ref().and_then(|name| headers.get(name));
    Message {
        id,
        kind: foreign.kind.clone(),
        key: key.map_or_else(|| id.to_string().into(), |key| ByteString::from(key.as_str())),
        topic: ByteString::from(&**origin.address),
        payload: raw.payload.clone(),
        content_type: content_type(&headers),
        headers,
        created_at: config.clock.now(),
    }
}

/// The media type from the headers.
pub(crate) fn content_type(headers: &Headers) -> ByteString {
    headers.get(CONTENT_TYPE).map_or("application/octet-stream", String::as_str).into()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use relevo_core::DeliveryTag;

    use super::*;
    use crate::config::MessageOrder;

    fn delivery(headers: &[(&str, &str)], payload: &'static [u8], offset: Option<u64>) -> Delivery {
        let header = |(name, value): &(&str, &str)| ((*name).to_owned(), Bytes::from((*value).to_owned()));
        Delivery {
            tag: DeliveryTag::new(1),
            raw: RawMessage { headers: headers.iter().map(header).collect(), payload: Bytes::from_static(payload) },
            address: "orders".into(),
            lane: Lane::new("0"),
            offset,
            redelivered: false,
            retry_count: 0,
        }
    }

    const HEADERS: [(&str, &str); 9] = [
        ("ce-specversion", "1.0"),
        ("ce-id", "01890a5d-ac96-774b-bcce-b302099a8057"),
        ("ce-source", "/outbox"),
        ("ce-type", "OrderPlaced"),
        ("ce-subject", "orders"),
        ("ce-time", "2026-01-01T00:00:00Z"),
        ("ce-partitionkey", "o-1"),
        ("content-type", "application/json"),
        ("relevo-sequence", "7"),
    ];

    fn decode(config: &Config, delivery: Delivery) -> PendingDelivery {
        Decoder::new("billing").decode_delivery(config, delivery)
    }

    #[test]
    fn the_queue_is_the_key_with_order_and_the_id_without() {
        let config = Config::default();
        assert_eq!(&**decode(&config, delivery(&HEADERS, b"{}", Some(3))).queue(), "o-1");
        let config = Config { order: MessageOrder::None { concurrency: 1 }, ..config };
        assert_eq!(&**decode(&config, delivery(&HEADERS, b"{}", Some(3))).queue(), HEADERS[1].1);
    }

    #[test]
    fn a_foreign_message_is_undecodable_unless_configured() {
        let config = Config::default();
        let undecodable = decode(&config, delivery(&[("a", "b")], b"\xff", Some(3)));
        assert_eq!(undecodable.incoming.unwrap_err(), "header `ce-specversion` is missing");
        assert_eq!(&*undecodable.message.queue, undecodable.message.dedup_id.id.to_string());
        let foreign = ForeignMessages { kind: "legacy".into(), id_header: None, key_header: Some("a".to_owned()) };
        let config = Config { foreign_messages: Some(foreign), ..config };
        let decoded = decode(&config, delivery(&[("a", "b")], b"\xff", Some(3)));
        assert_eq!(decoded.message.dedup_id, undecodable.message.dedup_id);
        let incoming = decoded.incoming.expect("foreign messages are configured");
        assert_eq!((incoming.kind(), incoming.key(), &incoming.payload()[..]), ("legacy", "b", &b"\xff"[..]));
    }

    #[test]
    fn an_invalid_cloud_event_is_not_a_foreign_message() {
        let foreign = ForeignMessages { kind: "legacy".into(), id_header: None, key_header: None };
        let config = Config { foreign_messages: Some(foreign), ..Config::default() };
        let broken = decode(&config, delivery(&[("ce-specversion", "1.0"), ("ce-id", "x")], b"{}", None));
        assert_eq!(broken.incoming.unwrap_err(), "header `ce-id` cannot be read");
    }

    #[test]
    fn a_foreign_id_is_the_same_when_it_is_retried() {
        let foreign =
            ForeignMessages { kind: "legacy".into(), id_header: Some("message-id".to_owned()), key_header: None };
        let config = Config { foreign_messages: Some(foreign), ..Config::default() };
        let with_uuid = decode(&config, delivery(&[("message-id", HEADERS[1].1)], b"{}", None));
        assert_eq!(with_uuid.message.dedup_id.id.to_string(), HEADERS[1].1);
        let named = decode(&config, delivery(&[("message-id", "A-17")], b"{}", None));
        let again = decode(&config, delivery(&[("message-id", "A-17")], b"{ }", Some(9)));
        assert_eq!(named.message.dedup_id, again.message.dedup_id);
        let generated = decode(&config, delivery(&[], b"{}", Some(3)));
        assert_ne!(generated.message.dedup_id, decode(&config, delivery(&[], b"{}", Some(4))).message.dedup_id);
        let queued = Decoder::new("billing")
            .decode_queued(&config, &generated.message)
            .expect("foreign messages are configured");
        assert_eq!(queued.id(), generated.message.dedup_id.id);
    }
}
