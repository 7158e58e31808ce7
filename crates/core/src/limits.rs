//! Size limits of a message, and the errors that name the exceeded limit.

use crate::message::Message;

/// Size limits of one message. The SQL functions enforce the same defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Payload, in bytes.
    pub payload_bytes_max: usize,
    /// All header names and values together, in bytes.
    pub headers_bytes_max: usize,
    /// Key, in bytes of UTF-8.
    pub key_bytes_max: usize,
    /// Topic, type and content type, each, in bytes of UTF-8.
    pub name_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload_bytes_max: 16 << 20, headers_bytes_max: 64 << 10, key_bytes_max: 512, name_bytes_max: 255 }
    }
}

/// The reason why a message cannot be emitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A part has too many bytes.
    #[error("`{part}` is {bytes} bytes, more than `{limit}` = {max}")]
    TooLong {
        /// Which part of the message.
        part: &'static str,
        /// Its size in bytes.
        bytes: usize,
        /// The limit's name in [`Limits`].
        limit: &'static str,
        /// The limit's value.
        max: usize,
    },
    /// A required part is empty.
    #[error("`{0}` is empty")]
    Empty(&'static str),
    /// A part contains a character that PostgreSQL text and most broker headers do not allow.
    #[error("`{0}` has a control character")]
    ControlCharacter(&'static str),
}

impl Limits {
    /// Checks every part of a message, the cheapest first.
    pub fn check(&self, message: &Message) -> Result<(), LimitError> {
        for (part, text) in
            [("topic", &message.topic), ("type", &message.kind), ("content_type", &message.content_type)]
        {
            name(part, text)?;
            within(part, text.len(), "name_bytes_max", self.name_bytes_max)?;
        }
        name("key", &message.key)?;
        within("key", message.key.len(), "key_bytes_max", self.key_bytes_max)?;
        within("payload", message.payload.len(), "payload_bytes_max", self.payload_bytes_max)?;
        let mut bytes = 0;
        for (header, value) in &message.headers {
            name("headers", header)?;
            if value.contains(|char: char| char.is_control() && char != '\t') {
                return Err(LimitError::ControlCharacter("headers"));
            }
            bytes += header.len() + value.len();
        }
        within("headers", bytes, "headers_bytes_max", self.headers_bytes_max)
    }
}

fn name(part: &'static str, text: &str) -> Result<(), LimitError> {
    if text.is_empty() {
        Err(LimitError::Empty(part))
    } else if text.contains(char::is_control) {
        Err(LimitError::ControlCharacter(part))
    } else {
        Ok(())
    }
}

fn within(part: &'static str, bytes: usize, limit: &'static str, max: usize) -> Result<(), LimitError> {
    if bytes > max { Err(LimitError::TooLong { part, bytes, limit, max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Headers, MessageId};
    use bytes::Bytes;

    fn message() -> Message {
        Message {
            id: MessageId::v7(0, [0; 10]),
            kind: "OrderPlaced".into(),
            key: "o-1".into(),
            topic: "orders".into(),
            payload: Bytes::from_static(b"{}"),
            content_type: "application/json".into(),
            headers: Headers::new(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn an_ordinary_message_passes() {
        assert_eq!(Limits::default().check(&message()), Ok(()));
    }

    #[test]
    fn each_error_names_the_part_and_the_limit() {
        let limits = Limits { payload_bytes_max: 1, headers_bytes_max: 4, ..Limits::default() };
        let long = "k".repeat(513);
        let cases: [(&str, Message); 6] = [
            ("`key` is 513 bytes, more than `key_bytes_max` = 512", Message { key: long.clone().into(), ..message() }),
            ("`topic` is 513 bytes, more than `name_bytes_max` = 255", Message { topic: long.into(), ..message() }),
            ("`type` is empty", Message { kind: "".into(), ..message() }),
            ("`key` has a control character", Message { key: "a\0b".into(), ..message() }),
            ("`payload` is 2 bytes, more than `payload_bytes_max` = 1", message()),
            (
                "`headers` is 6 bytes, more than `headers_bytes_max` = 4",
                Message {
                    payload: Bytes::new(),
                    headers: Headers::from([("abc".to_owned(), "def".to_owned())]),
                    ..message()
                },
            ),
        ];
        for (text, message) in cases {
            assert_eq!(limits.check(&message).map_err(|error| error.to_string()), Err(text.to_owned()));
        }
    }
}
