//! The wire format: CloudEvents 1.0 in binary mode, plus Relevo's own headers.

use bytes::Bytes;
use jiff::Timestamp;

use crate::broker::Publication;
use crate::message::{Headers, Message, MessageId};

/// Header with the outbox sequence number. Receivers may use it as a hint, but must not drop messages by it.
pub const SEQUENCE: &str = "relevo-sequence";
/// Header with the epoch of the lease under which the message was sent.
pub const EPOCH: &str = "relevo-epoch";
/// Header with the topic.
pub const TOPIC: &str = "ce-subject";
/// Header with the type.
pub const KIND: &str = "ce-type";
/// Header with the key.
pub const KEY: &str = "ce-partitionkey";
/// Header with the payload's media type.
pub const CONTENT_TYPE: &str = "content-type";

const VERSION: &str = "1.0";

/// The headers that a broker sends with a message from `source`, a URI that names the outbox.
///
/// The message's own headers are included as its route defines them, except names that CloudEvents or Relevo reserve.
pub fn headers(publication: &Publication, source: &str) -> Headers {
    let mut headers = Headers::new();
    for_each(publication, source, |name, value| {
        headers.insert(name.to_owned(), value.to_owned());
    });
    headers
}

/// Calls `put` with each header of [`headers`], once per name and in no particular order. For adapters that need no
/// map.
pub fn for_each(publication: &Publication, source: &str, mut put: impl FnMut(&str, &str)) {
    let message = &*publication.message;
    publication.headers.for_each(message, |name, value| {
        if !is_reserved(name) {
            put(name, value);
        }
    });
    put("ce-specversion", VERSION);
    put("ce-id", message.id.as_uuid().hyphenated().encode_lower(&mut uuid::Uuid::encode_buffer()));
    put("ce-source", source);
    put(KIND, &message.kind);
    put(TOPIC, &message.topic);
    put("ce-time", &message.created_at.to_string());
    put(KEY, &message.key);
    put(CONTENT_TYPE, &message.content_type);
    put(SEQUENCE, &publication.seq.to_string());
    put(EPOCH, &publication.epoch.to_string());
}

/// Whether CloudEvents or Relevo reserves this header name. Writers and routes cannot set it.
pub fn is_reserved(name: &str) -> bool {
    matches!(name, "ce-specversion" | "ce-id" | "ce-source" | "ce-type" | "ce-subject" | "ce-time" | "ce-partitionkey")
        || [CONTENT_TYPE, SEQUENCE, EPOCH].contains(&name)
}

/// The reason why received headers are not a Relevo message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A required header is missing.
    #[error("header `{0}` is missing")]
    Missing(&'static str),
    /// A header cannot be parsed.
    #[error("header `{0}` cannot be read")]
    Malformed(&'static str),
}

/// A received message and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The message with its own headers, as they were emitted.
    pub message: Message,
    /// The sender's source.
    pub source: String,
    /// The outbox sequence number, if the sender included it.
    pub seq: Option<i64>,
    /// The lease epoch, if the sender included it.
    pub epoch: Option<i64>,
}

/// Parses the headers that [`headers`] wrote.
pub fn receive(mut headers: Headers, payload: Bytes) -> Result<Received, WireError> {
    let mut take = |name: &'static str| headers.remove(name).ok_or(WireError::Missing(name));
    if take("ce-specversion")? != VERSION {
        return Err(WireError::Malformed("ce-specversion"));
    }
    let id: MessageId = take("ce-id")?.parse().map_err(|_| WireError::Malformed("ce-id"))?;
    let source = take("ce-source")?;
    let kind = take("ce-type")?;
    let topic = take("ce-subject")?;
    let created_at: Timestamp = take("ce-time")?.parse().map_err(|_| WireError::Malformed("ce-time"))?;
    let key = take("ce-partitionkey")?;
    let content_type = take(CONTENT_TYPE)?;
    let seq = number(&mut headers, SEQUENCE)?;
    let epoch = number(&mut headers, EPOCH)?;
    let message = Message {
        id,
        kind: kind.into(),
        key: key.into(),
        topic: topic.into(),
        payload,
        content_type: content_type.into(),
        headers,
        created_at,
    };
    Ok(Received { message, source, seq, epoch })
}

fn number(headers: &mut Headers, name: &'static str) -> Result<Option<i64>, WireError> {
    headers.remove(name).map(|text| text.parse().map_err(|_| WireError::Malformed(name))).transpose()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn messages()(
            millis in 0u64..1 << 47, random: [u8; 10], kind in "\\PC{1,20}", key in "\\PC{1,20}", topic in "\\PC{1,20}",
            payload: Vec<u8>, content_type in "[a-z]{1,8}/[a-z]{1,8}",
            headers in prop::collection::btree_map("x-[a-z]{1,8}", "\\PC{0,20}", 0..4), micros in 0i64..4_000_000_000_000_000,
        ) -> Message {
            Message {
                id: MessageId::v7(millis, random),
                kind: kind.into(),
                key: key.into(),
                topic: topic.into(),
                payload: payload.into(),
                content_type: content_type.into(),
                headers,
                created_at: Timestamp::from_microsecond(micros).expect("within jiff's range"),
            }
        }
    }

    proptest! {
        #[test]
        fn any_envelope_survives_a_round_trip(message in messages(), seq: i64, epoch: i64) {
            let publication = Publication {
                message: Arc::new(message.clone()), address: "a".into(), headers: Arc::default(), seq, epoch
            };
            let received = receive(headers(&publication, "/outbox/a"), message.payload.clone());
            let expected = Received { message, source: "/outbox/a".to_owned(), seq: Some(seq), epoch: Some(epoch) };
            prop_assert_eq!(received, Ok(expected));
        }

        #[test]
        fn foreign_headers_never_panic(headers in prop::collection::btree_map("(ce-[a-z]{1,12}|content-type)", "\\PC{0,20}", 0..12)) {
            prop_assert!(receive(headers, Bytes::new()).is_err());
        }
    }
}
