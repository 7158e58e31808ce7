//! A message as its handler sees it.

use std::sync::Arc;

use bytes::Bytes;
use bytestring::ByteString;
use relevo_core::inbox::{Entry, identity};
use relevo_core::{Draft, Lane, Message, MessageId, Raw, TraceContext};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::verdict::Trouble;

/// A message as its handler sees it.
#[derive(Clone, Debug)]
pub struct Incoming {
    pub(crate) consumer: Arc<str>,
    pub(crate) message: Message,
    pub(crate) raw: Raw,
    pub(crate) address: Arc<str>,
    pub(crate) lane: Lane,
    pub(crate) place: Option<u64>,
    pub(crate) source: Option<String>,
    pub(crate) seq: Option<i64>,
    pub(crate) replay: u32,
    pub(crate) attempt: u32,
    /// The span that its handler runs in.
    pub(crate) trace: Option<TraceContext>,
}

impl Incoming {
    /// Header of what joins a message with all those that it led to.
    pub const CORRELATION: &str = "correlation-id";
    /// Header of the message that led to this one.
    pub const CAUSATION: &str = "causation-id";

    /// The message. One that is not ours has its address as topic, and the type that the configuration says.
    pub const fn message(&self) -> &Message {
        &self.message
    }

    /// The same in every repeat.
    pub const fn id(&self) -> MessageId {
        self.message.id
    }

    /// What happened or is asked for.
    pub fn kind(&self) -> &str {
        &self.message.kind
    }

    /// What order is kept within.
    pub fn key(&self) -> &str {
        &self.message.key
    }

    /// The payload exactly as it came.
    pub const fn payload(&self) -> &Bytes {
        &self.message.payload
    }

    /// A header that is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.message.headers.get(name).map(String::as_str)
    }

    /// What arrived, headers that are no text included.
    pub const fn raw(&self) -> &Raw {
        &self.raw
    }

    /// Where it was published to.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Which lane it came through.
    pub const fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Its number at the broker, where that has one.
    pub const fn place(&self) -> Option<u64> {
        self.place
    }

    /// Zero, but for messages that are handled again on purpose.
    pub const fn replay(&self) -> u32 {
        self.replay
    }

    /// Which counted try this is: 1 for the first.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The payload, read as JSON. What cannot be read goes to the dead letters.
    pub fn json<P: DeserializeOwned>(&self) -> Result<P, Trouble> {
        serde_json::from_slice(&self.message.payload).map_err(Trouble::undecodable)
    }

    /// The id to call a far side under: the same at every try of this message by this consumer, and another one when it
    /// is replayed on purpose. A far side that knows such ids does once what it is asked twice.
    pub fn idempotency_id(&self) -> Uuid {
        identity::of_call(&self.consumer, Entry { id: self.message.id, replay: self.replay })
    }

    /// What joins this message with all those that led to it: its header says it, or it is the first and has its own id.
    pub fn correlation_id(&self) -> ByteString {
        self.header(Self::CORRELATION).map_or_else(|| self.message.id.to_string().into(), ByteString::from)
    }

    /// The W3C trace context that a handler works in: that of the span that is told of it, or the message's own if nothing is
    /// told. Spans of the handler are its children, and calls to far sides carry it.
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.trace.clone().or_else(|| self.message.trace_context())
    }

    /// A message that this one leads to: it carries on the correlation id and the trace context, and names this one as its
    /// cause. Headers that the draft has already stay as they are.
    pub fn caused(&self, mut draft: Draft) -> Draft {
        let mut carry = |name: &str, value: String| {
            draft.headers.entry(name.to_owned()).or_insert(value);
        };
        carry(Self::CORRELATION, self.correlation_id().to_string());
        carry(Self::CAUSATION, self.message.id.to_string());
        if let Some(trace) = self.trace_context() {
            carry(TraceContext::PARENT, trace.parent);
            if let Some(state) = trace.state {
                carry(TraceContext::STATE, state);
            }
        }
        draft
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use jiff::Timestamp;
    use relevo_core::message::Headers;

    use super::*;

    /// A message with these headers.
    pub(crate) fn incoming(kind: &str, payload: &str, headers: &[(&str, &str)]) -> Incoming {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let message = Message {
            id: MessageId::v7(1, [7; 10]),
            kind: kind.into(),
            key: "o-1".into(),
            topic: "orders".into(),
            payload: payload.to_owned().into(),
            content_type: "application/json".into(),
            headers: headers.iter().map(owned).collect::<Headers>(),
            created_at: Timestamp::UNIX_EPOCH,
        };
        Incoming {
            consumer: "billing".into(),
            raw: Raw::new(message.headers.clone(), message.payload.clone()),
            message,
            address: "orders".into(),
            lane: Lane::new("0"),
            place: Some(1),
            source: None,
            seq: None,
            replay: 0,
            attempt: 1,
            trace: None,
        }
    }

    #[test]
    fn the_first_message_gives_its_id_to_all_that_follow() {
        let first = incoming("OrderPlaced", "{}", &[]);
        let caused = first.caused(Draft::json("bills", "b-1", "BillMade", "{}"));
        let id = first.id().to_string();
        assert_eq!(caused.headers[Incoming::CORRELATION], id);
        assert_eq!(caused.headers[Incoming::CAUSATION], id);
    }

    #[test]
    fn correlation_and_trace_are_carried_on_and_the_cause_is_new() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let headers = [
            (Incoming::CORRELATION, "c-7"),
            (Incoming::CAUSATION, "before"),
            ("traceparent", parent),
            ("tracestate", "a=b"),
            ("other", "stays here"),
        ];
        let second = incoming("OrderPlaced", "{}", &headers);
        let caused = second.caused(Draft::json("bills", "b-1", "BillMade", "{}"));
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
    fn a_handler_that_is_told_of_leads_on_from_its_own_span() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let own = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000001-01";
        let incoming = incoming("OrderPlaced", "{}", &[("traceparent", parent)]);
        assert_eq!(incoming.trace_context().map(|trace| trace.parent).as_deref(), Some(parent));
        let incoming = Incoming { trace: Some(TraceContext { parent: own.to_owned(), state: None }), ..incoming };
        let caused = incoming.caused(Draft::json("bills", "b-1", "BillMade", "{}"));
        assert_eq!(caused.headers["traceparent"], own);
    }

    #[test]
    fn what_is_no_json_is_undecodable() {
        let trouble = incoming("OrderPlaced", "{", &[]).json::<serde_json::Value>().unwrap_err();
        assert_eq!(trouble.class, Trouble::UNDECODABLE);
    }

    #[test]
    fn a_replay_calls_under_another_id() {
        let once = incoming("OrderPlaced", "{}", &[]);
        let again = Incoming { replay: 1, ..once.clone() };
        assert_eq!(once.idempotency_id(), once.clone().idempotency_id());
        assert_ne!(once.idempotency_id(), again.idempotency_id());
    }
}
