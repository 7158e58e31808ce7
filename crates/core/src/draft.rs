//! A message that is about to be emitted.

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;
use uuid::Uuid;

use crate::limits::{LimitError, Limits};
use crate::message::{Headers, Message, MessageId};

/// What to do with an id that was emitted before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRepeat {
    /// An error.
    #[default]
    Refuse,
    /// Nothing is emitted.
    Ignore,
}

/// A message that is about to be emitted.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What routes match first.
    pub topic: ByteString,
    /// What order is kept within.
    pub key: ByteString,
    /// What happened or is asked for.
    pub kind: ByteString,
    /// The bytes.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: ByteString,
    /// Further headers, trace context among them.
    pub headers: Headers,
    /// An id of the caller's own; the store makes one otherwise.
    pub id: Option<MessageId>,
    /// Not before this time; its place in the key's order starts then.
    pub deliver_at: Option<Timestamp>,
    /// Takes the key's lock until the transaction ends, for writers that lock no row of their own.
    pub serialize: bool,
    /// What to do if the id was emitted before.
    pub on_repeat: OnRepeat,
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
            serialize: false,
            on_repeat: OnRepeat::default(),
        }
    }

    /// Whether it is within the limits; the error names the one that it breaks.
    pub fn check(&self) -> Result<(), LimitError> {
        Limits::default().check(&Message {
            id: self.id.unwrap_or(MessageId::from_uuid(Uuid::nil())),
            kind: self.kind.clone(),
            key: self.key.clone(),
            topic: self.topic.clone(),
            payload: self.payload.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            created_at: Timestamp::UNIX_EPOCH,
        })
    }
}
