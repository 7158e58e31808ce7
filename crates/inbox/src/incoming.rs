//! A message as its handler sees it.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use relevo_core::inbox::{DedupId, ids};
use relevo_core::{Draft, Lane, Message, MessageId, RawMessage, TraceContext};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::error::HandlerError;

/// A message as its handler sees it. It dereferences to its payload: a value that was deserialized from JSON, or the bytes
/// as received.
#[derive(Clone, Debug)]
pub struct Incoming<P = Bytes> {
    pub(crate) consumer: Arc<str>,
    pub(crate) message: Message,
    pub(crate) raw: RawMessage,
    pub(crate) address: Arc<str>,
    pub(crate) lane: Lane,
    pub(crate) offset: Option<u64>,
    pub(crate) source: Option<String>,
    pub(crate) seq: Option<i64>,
    pub(crate) replay: u32,
    pub(crate) attempt: u32,
    /// Trace context of the span in which its handler runs.
    pub(crate) trace: Option<TraceContext>,
    /// What it dereferences to.
    pub(crate) value: P,
}

impl Incoming {
    /// Header with the id that a message shares with all messages it caused, directly or indirectly.
    pub const CORRELATION: &str = "correlation-id";
    /// Header with the id of the message that caused this one.
    pub const CAUSATION: &str = "causation-id";

    /// The same message with its payload deserialized from JSON.
    pub(crate) fn decode<P: DeserializeOwned>(self) -> Result<Incoming<P>, HandlerError> {
        let value = self.json()?;
        let Self { consumer, message, raw, address, lane, offset, source, seq, replay, attempt, trace, value: _ } =
            self;
        Ok(Incoming { consumer, message, raw, address, lane, offset, source, seq, replay, attempt, trace, value })
    }
}

impl<P> Incoming<P> {
    /// The message. A foreign message has its address as topic, and its type comes from the configuration.
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// The message id. Redeliveries have the same id.
    pub const fn id(&self) -> MessageId {
        self.message.id
    }

    /// The message type: which event happened, or which command is requested.
    pub fn kind(&self) -> &str {
        &self.message.kind
    }

    /// The key; order is kept per key.
    pub fn key(&self) -> &str {
        &self.message.key
    }

    /// The payload, byte for byte as received.
    pub const fn payload(&self) -> &Bytes {
        &self.message.payload
    }

    /// The value of a text header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.message.headers.get(name).map(String::as_str)
    }

    /// The message as received, including headers that are not text.
    pub const fn raw(&self) -> &RawMessage {
        &self.raw
    }

    /// The address it was published to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The lane that delivered it.
    pub const fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Its offset at the broker, if the broker has offsets.
    pub const fn offset(&self) -> Option<u64> {
        self.offset
    }

    /// Number of the replay it belongs to; 0 for a normal delivery.
    pub const fn replay(&self) -> u32 {
        self.replay
    }

    /// Number of this attempt; the first is 1.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Deserializes the payload from JSON. A payload that does not deserialize is dead-lettered.
    pub fn json<V: DeserializeOwned>(&self) -> Result<V, HandlerError> {
        serde_json::from_slice(&self.message.payload).map_err(HandlerError::undecodable)
    }

    /// The idempotency id for calls to an external service. Every attempt of this message by this consumer uses the
    /// same id; a replay uses a new one. A service that supports idempotency ids executes a repeated call once.
    pub fn idempotency_id(&self) -> Uuid {
        ids::idempotency_id(&self.consumer, DedupId { id: self.message.id, replay: self.replay })
    }

    /// The correlation id from the header, or the message's own id if it is the first of its chain.
    pub fn correlation_id(&self) -> ByteString {
        self.header(Incoming::CORRELATION).map_or_else(|| self.message.id.to_string().into(), ByteString::from)
    }

    /// The W3C trace context of the handler: that of its span, or the message's own if tracing is off. Use it as the
    /// parent of the handler's spans and send it with calls to external services.
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.trace.clone().or_else(|| self.message.trace_context())
    }

    /// Prepares a message that this one causes. It inherits the correlation id and the trace context, and names this
    /// message as its cause. Headers already set in the draft are kept.
    pub fn with_causation(&self, mut draft: Draft) -> Draft {
        let mut add = |name: &str, value: String| {
            draft.headers.entry(name.to_owned()).or_insert(value);
        };
        add(Incoming::CORRELATION, self.correlation_id().to_string());
        add(Incoming::CAUSATION, self.message.id.to_string());
        if let Some(trace) = self.trace_context() {
            add(TraceContext::PARENT, trace.parent);
            if let Some(state) = trace.state {
                add(TraceContext::STATE, state);
            }
        }
        draft
    }
}

impl<P> Deref for Incoming<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.value
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use jiff::Timestamp;
    use relevo_core::Draft;
    use relevo_core::message::Headers;

    use super::*;

    /// Builds a message with these headers.
    pub(crate) fn incoming(kind: &str, payload: &str, headers: &[(&str, &str)]) -> Incoming {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let headers = headers.iter().map(owned).collect();
        let draft = Draft { headers, ..Draft::json("orders", "o-1", kind, payload.to_owned()) };
        let message = draft.into_message(MessageId::v7(1, [7; 10]), Timestamp::UNIX_EPOCH);
        Incoming {
            consumer: "billing".into(),
            raw: RawMessage::new(message.headers.clone(), message.payload.clone()),
            value: message.payload.clone(),
            message,
            address: "orders".into(),
            lane: Lane::new("0"),
            offset: Some(1),
            source: None,
            seq: None,
            replay: 0,
            attempt: 1,
            trace: None,
        }
    }

    #[test]
    fn the_first_message_sets_the_correlation_id() {
        let first = incoming("OrderPlaced", "{}", &[]);
        let caused = first.with_causation(Draft::json("bills", "b-1", "BillMade", "{}"));
        let id = first.id().to_string();
        assert_eq!(caused.headers[Incoming::CORRELATION], id);
        assert_eq!(caused.headers[Incoming::CAUSATION], id);
    }

    #[test]
    fn correlation_and_trace_are_propagated_and_the_causation_is_new() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let headers = [
            (Incoming::CORRELATION, "c-7"),
            (Incoming::CAUSATION, "before"),
            ("traceparent", parent),
            ("tracestate", "a=b"),
            ("other", "stays here"),
        ];
        let second = incoming("OrderPlaced", "{}", &headers);
        let caused = second.with_causation(Draft::json("bills", "b-1", "BillMade", "{}"));
        let expected = [
            (Incoming::CAUSATION, second.id().to_string()),
            (Incoming::CORRELATION, "c-7".to_owned()),
            ("traceparent", parent.to_owned()),
            ("tracestate", "a=b".to_owned()),
        ];
        let expected: Headers = expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(caused.headers, expected);
    }

    #[test]
    fn a_traced_handler_propagates_its_own_span() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let own = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01";
        let incoming = incoming("OrderPlaced", "{}", &[("traceparent", parent)]);
        assert_eq!(incoming.trace_context().map(|trace| trace.parent).as_deref(), Some(parent));
        let incoming = Incoming { trace: Some(TraceContext { parent: own.to_owned(), state: None }), ..incoming };
        let caused = incoming.with_causation(Draft::json("bills", "b-1", "BillMade", "{}"));
        assert_eq!(caused.headers["traceparent"], own);
    }

    #[test]
    fn an_invalid_json_payload_is_undecodable() {
        let error = incoming("OrderPlaced", "{", &[]).json::<serde_json::Value>().unwrap_err();
        assert_eq!(error.class, relevo_core::inbox::retries::classes::UNDECODABLE);
    }

    #[test]
    fn a_replay_has_another_idempotency_id() {
        let once = incoming("OrderPlaced", "{}", &[]);
        let again = Incoming { replay: 1, ..once.clone() };
        assert_eq!(once.idempotency_id(), once.clone().idempotency_id());
        assert_ne!(once.idempotency_id(), again.idempotency_id());
    }
}
