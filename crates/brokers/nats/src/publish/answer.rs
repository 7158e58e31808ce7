//! Parses the server's response to a published message.

use std::borrow::Cow;

use async_nats::{Message, StatusCode};
use serde::Deserialize;

use crate::classify::{Error, from_api_code};

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
    let answer: AckResponse<'_> =
        serde_json::from_slice(&message.payload).map_err(|error| Error::InvalidAck(error.to_string()))?;
    match answer {
        AckResponse { error: Some(refusal), .. } => {
            Err(from_api_code(refusal.err_code, refusal.description.into_owned()))
        }
        AckResponse { seq: Some(_), count, .. } => Ok(count.unwrap_or(1)),
        AckResponse { seq: None, .. } => Err(Error::InvalidAck("it names no sequence".to_owned())),
    }
}
