//! Decodes a delivery into the message that a handler sees.

use std::sync::Arc;

use bytestring::ByteString;
use relevo_core::inbox::{Arrival, Entry, identity};
use relevo_core::message::Headers;
use relevo_core::trace::Operation;
use relevo_core::wire::{CONTENT_TYPE, WireError};
use relevo_core::{Delivery, Lane, Message, MessageId, Raw};

use crate::config::{Config, Foreign};
use crate::incoming::Incoming;
use crate::item::Item;

/// Decodes messages for one consumer.
#[derive(Debug)]
pub(crate) struct Decoder {
    consumer: Arc<str>,
}

/// Where a message came from.
struct Origin<'a> {
    address: &'a Arc<str>,
    lane: &'a Lane,
    place: Option<u64>,
}

impl Decoder {
    pub(crate) fn new(config: &Config) -> Self {
        Self { consumer: config.consumer.as_str().into() }
    }

    /// Decodes a delivery, and derives its id and the queue in which it waits after a failure.
    pub(crate) fn item(&self, config: &Config, delivery: Delivery) -> Item {
        let Delivery { tag, raw, address, lane, place, redelivered, .. } = delivery;
        let incoming = self.read(config, &raw, &Origin { address: &address, lane: &lane, place });
        // The id of an undecodable message comes from its bytes: its headers could name another message.
        let id = incoming.as_ref().map_or_else(|_| made(&address, &lane, place, &raw), Incoming::id);
        let queue = match &incoming {
            Ok(incoming) if config.order.is_by_key() => incoming.message.key.clone(),
            // It must not block other messages, so it gets a queue of its own.
            _ => id.to_string().into(),
        };
        let correlation = incoming.as_ref().ok().map(Incoming::correlation_id);
        let entry = Entry { id, replay: 0 };
        let arrival = Arrival { entry, queue, raw, address, lane, place, correlation };
        let told = |incoming: &Incoming| config.traces.begin(Operation::Receive, &incoming.message, &incoming.address);
        let span = incoming.as_ref().ok().and_then(told);
        Item {
            tag,
            redelivered,
            arrival,
            incoming,
            attempts: 0,
            shares: false,
            noted: None,
            inverted: false,
            refused: 0,
            decided: None,
            span,
        }
    }

    /// Decodes a message from the retry table.
    pub(crate) fn waited(&self, config: &Config, arrival: &Arrival) -> Result<Incoming, String> {
        let Arrival { entry, raw, address, lane, place, .. } = arrival;
        let mut incoming = self.read(config, raw, &Origin { address, lane, place: *place })?;
        incoming.message.id = entry.id;
        incoming.replay = entry.replay;
        Ok(incoming)
    }

    fn read(&self, config: &Config, raw: &Raw, origin: &Origin<'_>) -> Result<Incoming, String> {
        let (message, source, seq) = match (raw.decode(), &config.foreign) {
            (Ok(received), _) => (received.message, Some(received.source), received.seq),
            // A message without even a CloudEvents version was not published by Relevo.
            (Err(WireError::Missing("ce-specversion")), Some(foreign)) => {
                (foreign_message(config, foreign, raw, origin), None, None)
            }
            (Err(error), _) => return Err(error.to_string()),
        };
        Ok(Incoming {
            consumer: Arc::clone(&self.consumer),
            message,
            raw: raw.clone(),
            address: Arc::clone(origin.address),
            lane: origin.lane.clone(),
            place: origin.place,
            source,
            seq,
            replay: 0,
            attempt: 1,
            trace: None,
        })
    }
}

fn made(address: &str, lane: &Lane, place: Option<u64>, raw: &Raw) -> MessageId {
    identity::of_foreign(address, place.map(|place| (lane, place)), &raw.payload)
}

fn foreign_message(config: &Config, foreign: &Foreign, raw: &Raw, origin: &Origin<'_>) -> Message {
    let headers = text_headers(raw);
    let id = match foreign.id_header.as_ref().and_then(|name| headers.get(name)) {
        Some(text) => text.parse().unwrap_or_else(|_| identity::of_name(origin.address, text.as_bytes())),
        None => made(origin.address, origin.lane, origin.place, raw),
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

/// The text headers. If a header occurs twice, the last value wins.
pub(crate) fn text_headers(raw: &Raw) -> Headers {
    let text =
        |(name, value): &(String, bytes::Bytes)| Some((name.clone(), std::str::from_utf8(value).ok()?.to_owned()));
    raw.headers.iter().filter_map(text).collect()
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
    use crate::config::Order;

    fn delivery(headers: &[(&str, &str)], payload: &'static [u8], place: Option<u64>) -> Delivery {
        let header = |(name, value): &(&str, &str)| ((*name).to_owned(), Bytes::from((*value).to_owned()));
        Delivery {
            tag: DeliveryTag::new(1),
            raw: Raw { headers: headers.iter().map(header).collect(), payload: Bytes::from_static(payload) },
            address: "orders".into(),
            lane: Lane::new("0"),
            place,
            redelivered: false,
            retries: 0,
        }
    }

    const OURS: [(&str, &str); 9] = [
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

    fn item(config: &Config, delivery: Delivery) -> Item {
        Decoder::new(config).item(config, delivery)
    }

    #[test]
    fn ours_waits_behind_its_key_if_order_is_kept_and_for_itself_if_not() {
        let config = Config::new("billing");
        assert_eq!(&**item(&config, delivery(&OURS, b"{}", Some(3))).queue(), "o-1");
        let config = Config { order: Order::None { concurrency: 1 }, ..config };
        assert_eq!(&**item(&config, delivery(&OURS, b"{}", Some(3))).queue(), OURS[1].1);
    }

    #[test]
    fn what_is_not_ours_is_undecodable_unless_it_is_wanted() {
        let config = Config::new("billing");
        let refused = item(&config, delivery(&[("a", "b")], b"\xff", Some(3)));
        assert_eq!(refused.incoming.unwrap_err(), "header `ce-specversion` is missing");
        assert_eq!(&*refused.arrival.queue, refused.arrival.entry.id.to_string());
        let foreign = Foreign { kind: "legacy".into(), id_header: None, key_header: Some("a".to_owned()) };
        let config = Config { foreign: Some(foreign), ..config };
        let wanted = item(&config, delivery(&[("a", "b")], b"\xff", Some(3)));
        assert_eq!(wanted.arrival.entry, refused.arrival.entry);
        let incoming = wanted.incoming.expect("it is wanted");
        assert_eq!((incoming.kind(), incoming.key(), &incoming.payload()[..]), ("legacy", "b", &b"\xff"[..]));
    }

    #[test]
    fn a_broken_cloud_event_is_nobodys_foreign_message() {
        let foreign = Foreign { kind: "legacy".into(), id_header: None, key_header: None };
        let config = Config { foreign: Some(foreign), ..Config::new("billing") };
        let broken = item(&config, delivery(&[("ce-specversion", "1.0"), ("ce-id", "x")], b"{}", None));
        assert_eq!(broken.incoming.unwrap_err(), "header `ce-id` cannot be read");
    }

    #[test]
    fn a_foreign_id_is_kept_or_made_and_stays_the_same_when_it_waited() {
        let foreign = Foreign { kind: "legacy".into(), id_header: Some("message-id".to_owned()), key_header: None };
        let config = Config { foreign: Some(foreign), ..Config::new("billing") };
        let own = item(&config, delivery(&[("message-id", OURS[1].1)], b"{}", None));
        assert_eq!(own.arrival.entry.id.to_string(), OURS[1].1);
        let named = item(&config, delivery(&[("message-id", "A-17")], b"{}", None));
        let again = item(&config, delivery(&[("message-id", "A-17")], b"{ }", Some(9)));
        assert_eq!(named.arrival.entry, again.arrival.entry);
        let made = item(&config, delivery(&[], b"{}", Some(3)));
        assert_ne!(made.arrival.entry, item(&config, delivery(&[], b"{}", Some(4))).arrival.entry);
        let waited = Decoder::new(&config).waited(&config, &made.arrival).expect("it is wanted");
        assert_eq!(waited.id(), made.arrival.entry.id);
    }
}
