//! Encodes messages for the wire, and decodes their acknowledgements.

use std::borrow::Cow;
use std::fmt::Write as _;

use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::{HeaderMap, Message, StatusCode, Subject};
use bytes::Bytes;
use relevo_core::{Publication, wire};
use serde::Deserialize;

use crate::address;
use crate::classify::{Error, from_api_code};
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
    write!(id, "{}/{}", publication.message.id, publication.address).expect("writing to a string cannot fail");
    id
}

#[derive(Deserialize)]
struct AckResponse<'a> {
    #[serde(borrow)]
    error: Option<ApiError<'a>>,
    seq: Option<u64>,
    /// The number of messages in the batch.
    count: Option<usize>,
}

#[derive(Deserialize)]
struct ApiError<'a> {
    #[serde(default)]
    err_code: u64,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
}

/// The number of stored messages: the batch size, or one without a batch. A duplicate counts as stored.
pub(crate) fn parse_ack(message: &Message) -> Result<usize, Error> {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(Error::NoStream);
    }
    let response: AckResponse<'_> =
        serde_json::from_slice(&message.payload).map_err(|error| Error::InvalidAck(error.to_string()))?;
    match response {
        AckResponse { error: Some(error), .. } => Err(from_api_code(error.err_code, error.description.into_owned())),
        AckResponse { seq: Some(_), count, .. } => Ok(count.unwrap_or(1)),
        AckResponse { seq: None, .. } => Err(Error::InvalidAck("it has no sequence".to_owned())),
    }
}
