//! A message before it is emitted, and its size limits.

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;

use crate::message::{Headers, Message, MessageId};

/// Maximum payload size in bytes. The SQL functions enforce the same limits.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Maximum size of all header names and values together, in bytes.
pub const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Maximum key length in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 512;
/// Maximum length of topic, type and content type, each, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;

/// The reason why a message cannot be emitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// A part has too many bytes.
    #[error("`{part}` is {bytes} bytes, more than {max}")]
    TooLong {
        /// The part of the message.
        part: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A required part is empty.
    #[error("`{0}` is empty")]
    Empty(&'static str),
    /// A part contains a character that PostgreSQL text and most broker headers do not allow.
    #[error("`{0}` has a control character")]
    ControlCharacter(&'static str),
}

/// The behaviour of `emit` if the id was emitted before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDuplicate {
    /// `emit` returns an error.
    #[default]
    Error,
    /// `emit` does nothing.
    Ignore,
}

/// A message before it is emitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The topic. Routes match it first.
    pub topic: ByteString,
    /// The key. Messages of one key stay in order.
    pub key: ByteString,
    /// The type of the event or command.
    pub kind: ByteString,
    /// The payload bytes.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: ByteString,
    /// Further headers, including the trace context.
    pub headers: Headers,
    /// An id chosen by the caller. Without one, the store creates it.
    pub id: Option<MessageId>,
    /// The earliest delivery time. The message takes its place in the key's order at that time.
    pub deliver_at: Option<Timestamp>,
    /// Locks the key until the transaction ends. For writers that do not lock a row of their own.
    pub lock_key: bool,
    /// The behaviour if the id was emitted before.
    pub on_duplicate: OnDuplicate,
}

impl Draft {
    /// A message whose payload is JSON text.
    pub fn json(topic: &str, key: &str, kind: &str, payload: impl Into<Bytes>) -> Self {
        Self::bytes(topic, key, kind, payload, "application/json")
    }

    /// A message with any payload.
    pub fn bytes(topic: &str, key: &str, kind: &str, payload: impl Into<Bytes>, content_type: &str) -> Self {
        Self {
            topic: topic.into(),
            key: key.into(),
            kind: kind.into(),
            payload: payload.into(),
            content_type: content_type.into(),
            headers: Headers::new(),
            id: None,
            deliver_at: None,
            lock_key: false,
            on_duplicate: OnDuplicate::default(),
        }
    }

    /// Checks the size limits and the characters of names, the cheapest checks first. The error names the part.
    pub fn check(&self) -> Result<(), DraftError> {
        for (part, name) in [("topic", &self.topic), ("type", &self.kind), ("content_type", &self.content_type)] {
            check_name(part, name)?;
            check_length(part, name.len(), NAME_BYTES_MAX)?;
        }
        check_name("key", &self.key)?;
        check_length("key", self.key.len(), KEY_BYTES_MAX)?;
        check_length("payload", self.payload.len(), PAYLOAD_BYTES_MAX)?;
        let mut bytes = 0;
        for (header, value) in &self.headers {
            check_name("headers", header)?;
            if value.contains(|char: char| char.is_control() && char != '\t') {
                return Err(DraftError::ControlCharacter("headers"));
            }
            bytes += header.len() + value.len();
        }
        check_length("headers", bytes, HEADERS_BYTES_MAX)
    }

    /// The message with this id and this time. The draft's own id is ignored: the caller chooses.
    pub fn into_message(self, id: MessageId, created_at: Timestamp) -> Message {
        Message {
            id,
            kind: self.kind,
            key: self.key,
            topic: self.topic,
            payload: self.payload,
            content_type: self.content_type,
            headers: self.headers,
            created_at,
        }
    }
}

fn check_name(part: &'static str, name: &str) -> Result<(), DraftError> {
    if name.is_empty() {
        Err(DraftError::Empty(part))
    } else if name.contains(char::is_control) {
        Err(DraftError::ControlCharacter(part))
    } else {
        Ok(())
    }
}

fn check_length(part: &'static str, bytes: usize, max: usize) -> Result<(), DraftError> {
    if bytes > max { Err(DraftError::TooLong { part, bytes, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Draft {
        Draft::json("orders", "o-1", "OrderPlaced", "{}")
    }

    #[test]
    fn an_ordinary_message_passes() {
        assert_eq!(draft().check(), Ok(()));
    }

    #[test]
    fn each_error_names_the_part_and_the_limit() {
        let long = "k".repeat(513);
        let cases: [(&str, Draft); 6] = [
            ("`key` is 513 bytes, more than 512", Draft { key: long.clone().into(), ..draft() }),
            ("`topic` is 513 bytes, more than 255", Draft { topic: long.into(), ..draft() }),
            ("`type` is empty", Draft { kind: "".into(), ..draft() }),
            ("`key` has a control character", Draft { key: "a\0b".into(), ..draft() }),
            (
                "`payload` is 16777217 bytes, more than 16777216",
                Draft { payload: vec![0; PAYLOAD_BYTES_MAX + 1].into(), ..draft() },
            ),
            (
                "`headers` is 65539 bytes, more than 65536",
                Draft { headers: Headers::from([("abc".to_owned(), "d".repeat(HEADERS_BYTES_MAX))]), ..draft() },
            ),
        ];
        for (text, draft) in cases {
            assert_eq!(draft.check().map_err(|error| error.to_string()), Err(text.to_owned()));
        }
    }
}
