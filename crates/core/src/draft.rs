//! A message before it is emitted.

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;
use uuid::Uuid;

use crate::limits::{LimitError, Limits};
use crate::message::{Headers, Message, MessageId};

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
#[derive(Clone, Debug)]
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

    /// Checks the size limits. The error names the exceeded limit.
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
