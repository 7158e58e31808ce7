//! Encodes messages for AMQP.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use relevo_core::{Publication, wire};

use crate::address;
use crate::classify::Error;
use crate::config::{Config, NAME_BYTES_MAX};

/// The server stores the message on disk if the queue is durable.
const PERSISTENT: u8 = 2;
/// The server reads lists in these headers as further routing keys, and closes the channel for other values. Any other
/// spelling, such as `cc`, is an ordinary header.
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];
/// The part of a frame that is not headers: the frame itself, the other properties, and a reserve.
const FRAME_MARGIN: usize = 2_048;

/// An encoded message.
#[derive(Debug)]
pub(crate) struct EncodedMessage {
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) payload: Bytes,
}

impl EncodedMessage {
    /// Encodes a publication and returns its exchange, or the reason why it can never be sent. `frame_bytes` is the
    /// largest frame.
    pub(crate) fn encode<'a>(
        publication: &'a Publication,
        config: &'a Config,
        frame_bytes: usize,
    ) -> Result<(&'a str, Self), Error> {
        let message = &*publication.message;
        let (exchange, key) = address::resolve_address(&publication.address, &message.key, config)?;
        let key =
            ShortString::try_new(key).map_err(|_| Error::InvalidAddress("its routing key is longer than 255 bytes"))?;
        if message.payload.len() > config.message_size_max {
            return Err(Error::TooLarge { bytes: message.payload.len(), max: config.message_size_max });
        }
        let headers = encode_headers(publication, &config.source, frame_bytes)?;
        let id = ShortString::try_new(message.id.to_string()).expect("a UUID is short");
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(id)
            .with_timestamp(u64::try_from(message.created_at.as_second()).unwrap_or_default())
            .with_headers(headers);
        // Both are also headers, so that a value too long for a property is not lost.
        if let Ok(kind) = ShortString::try_new(&*message.kind) {
            properties = properties.with_type(kind);
        }
        if let Ok(content_type) = ShortString::try_new(&*message.content_type) {
            properties = properties.with_content_type(content_type);
        }
        Ok((exchange, Self { routing_key: key, properties, payload: message.payload.clone() }))
    }
}

/// Encodes headers as long strings: the server closes the connection on short strings.
fn encode_headers(publication: &Publication, source: &str, frame_bytes: usize) -> Result<FieldTable, Error> {
    let mut table = FieldTable::default();
    let mut bytes = 0;
    let mut problem = None;
    wire::for_each(publication, source, |name, value| {
        // The length of the name, the type and the length of the value.
        bytes += name.len() + value.len() + 6;
        match ShortString::try_new(name) {
            Ok(name) => {
                table.insert(name, AMQPValue::LongString(value.into()));
            }
            Err(_) => problem = Some(format!("a name has {} bytes, the limit is {NAME_BYTES_MAX}", name.len())),
        }
        if ROUTING_HEADERS.contains(&name) {
            problem = Some(format!("`{name}` is reserved: the server reads it as further routing keys"));
        }
    });
    if let Some(problem) = problem {
        return Err(Error::InvalidHeaders(problem));
    }
    // The headers must fit into one frame, or the server closes the connection.
    let max = frame_bytes.saturating_sub(FRAME_MARGIN);
    if bytes > max {
        return Err(Error::InvalidHeaders(format!("they have {bytes} bytes, a frame has room for {max}")));
    }
    Ok(table)
}
