//! Parses the server's response to a published message.

use std::borrow::Cow;

use async_nats::{Message, StatusCode};
use serde::Deserialize;

use crate::classify::{Error, answered};

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(borrow)]
    error: Option<Refusal<'a>>,
    seq: Option<u64>,
    /// The number of messages in the batch.
    count: Option<usize>,
}

#[derive(Deserialize)]
struct Refusal<'a> {
    #[serde(default)]
    err_code: u64,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
}

/// The number of stored messages: the batch size, or one without a batch. A duplicate counts as stored.
pub(crate) fn read(message: &Message) -> Result<usize, Error> {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(Error::NoStream);
    }
    let answer: Answer<'_> =
        serde_json::from_slice(&message.payload).map_err(|error| Error::Acknowledgement(error.to_string()))?;
    match answer {
        Answer { error: Some(refusal), .. } => Err(answered(refusal.err_code, refusal.description.into_owned())),
        Answer { seq: Some(_), count, .. } => Ok(count.unwrap_or(1)),
        Answer { seq: None, .. } => Err(Error::Acknowledgement("it names no sequence".to_owned())),
    }
}
