//! The message envelope: what a transaction commits and a consumer receives.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;
use uuid::Uuid;

use crate::trace::SpanContext;

/// Identifies a message. Every repeat of the message has the same id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Uuid);

impl MessageId {
    /// Wraps a UUID chosen by the caller.
    pub const fn from_uuid(id: Uuid) -> Self {
        Self(id)
    }

    /// Creates a version 7 id: the first 48 bits are `millis` since 1970, the rest comes from `random`.
    pub fn v7(millis: u64, random: [u8; 10]) -> Self {
        Self(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// The UUID itself.
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MessageId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::parse_str(text).map(Self)
    }
}

/// Header names and values in sorted order, so that the sent order is deterministic.
pub type Headers = BTreeMap<String, String>;

/// An event or a command, as its writer committed it.
///
/// Texts and payload share the buffer they were read into, so cloning does not copy them.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The same for every repeat.
    pub id: MessageId,
    /// The type of the event or command, such as `OrderPlaced`.
    pub kind: ByteString,
    /// The key. Messages of one key stay in order.
    pub key: ByteString,
    /// The topic. Routes match it first.
    pub topic: ByteString,
    /// The bytes exactly as they were emitted.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: ByteString,
    /// The writer's own headers, including the trace context.
    pub headers: Headers,
    /// The database time of `emit`, not of the start of the transaction. For a scheduled message, the time when it
    /// entered the log.
    pub created_at: Timestamp,
}

impl Message {
    /// The W3C trace context in the headers, if it is well formed.
    pub fn trace_context(&self) -> Option<TraceContext> {
        TraceContext::from_headers(&self.headers)
    }

    /// The approximate memory size of the message.
    pub fn memory_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + 64).sum();
        let text = self.kind.len() + self.key.len() + self.topic.len() + self.content_type.len();
        size_of::<Self>() + text + self.payload.len() + headers
    }
}

impl fmt::Debug for Message {
    /// Omits the payload, because debug output ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("type", &&*self.kind)
            .field("key", &&*self.key)
            .field("topic", &&*self.topic)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// The W3C trace context of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The `traceparent` header: version, trace, span and flags.
    pub parent: String,
    /// The `tracestate` header, if there is one.
    pub state: Option<String>,
}

impl TraceContext {
    /// Header with the trace and the parent span.
    pub const PARENT: &str = "traceparent";
    /// Header with vendor-specific state.
    pub const STATE: &str = "tracestate";

    /// Reads the two headers. Ignores a malformed `traceparent`, as the W3C recommendation requires.
    pub(crate) fn from_headers(headers: &Headers) -> Option<Self> {
        let parent = headers.get(Self::PARENT)?;
        SpanContext::parse(parent).map(|_| Self { parent: parent.clone(), state: headers.get(Self::STATE).cloned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(parent: &str) -> Headers {
        Headers::from([(TraceContext::PARENT.to_owned(), parent.to_owned())])
    }

    #[test]
    fn a_well_formed_trace_parent_is_read() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(TraceContext::from_headers(&headers(text)).map(|trace| trace.parent), Some(text.to_owned()));
    }

    #[test]
    fn a_malformed_trace_parent_counts_as_none() {
        for text in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::from_headers(&headers(text)), None, "{text}");
        }
    }

    #[test]
    fn later_ids_sort_later() {
        assert!(MessageId::v7(1_000, [0xff; 10]) < MessageId::v7(1_001, [0; 10]));
    }
}
