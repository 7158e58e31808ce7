//! Encodes messages for the wire.

use std::borrow::Cow;
use std::fmt::Write as _;

use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use relevo_core::{Publication, wire};

use crate::address;
use crate::classify::Error;
use crate::config::Config;
use crate::headers::HeaderWriter;

/// A message encoded for the wire.
#[derive(Debug)]
pub(crate) struct EncodedMessage {
    pub(crate) subject: Subject,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: Bytes,
    /// The size of headers and payload.
    pub(crate) bytes: usize,
}

/// Encodes a publication, or returns why it can never be sent. `bytes_max` is the limit of server and configuration.
pub(crate) fn encode(publication: &Publication, config: &Config, bytes_max: usize) -> Result<EncodedMessage, Error> {
    let message = &publication.message;
    let subject = address::subject(&publication.address, &message.key, config.lanes)?;
    let mut headers = HeaderWriter::default();
    wire::for_each(publication, &config.source, |name, value| headers.put(name, value));
    headers.put_control(NATS_MESSAGE_ID, message_id(publication).into());
    if let Some(stream) = &config.stream {
        headers.put_control(NATS_EXPECTED_STREAM, Cow::Borrowed(stream));
    }
    let (headers, header_bytes) = headers.finish()?;
    let bytes = header_bytes + message.payload.len();
    if bytes > bytes_max {
        return Err(Error::TooLarge { bytes, max: bytes_max });
    }
    Ok(EncodedMessage { subject: subject.into(), headers, payload: message.payload.clone(), bytes })
}

/// The id for duplicate detection: message id and address, because a stream may store the same message for several
/// addresses. It does not include the lane, so that a change of the lane count creates no duplicates.
pub(crate) fn message_id(publication: &Publication) -> String {
    let mut id = String::with_capacity(37 + publication.address.len());
    write!(id, "{}/{}", publication.message.id, publication.address).expect("a string takes any text");
    id
}
