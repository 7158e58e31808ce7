//! Values as JSON.

use std::io::{self, Write as _};

use anyhow::Result;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use relevo_core::Message;
use relevo_core::outbox::inspect::{MessageSummary, ShardInfo};
use serde_json::{Value, json};

/// One line of JSON.
pub(crate) fn line(value: &Value) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(())
}

/// A message in a list.
pub(crate) fn listed(listed: &MessageSummary, destination: &str) -> Value {
    json!({
        "destination": destination,
        "seq": listed.seq,
        "id": listed.id.to_string(),
        "topic": listed.topic,
        "key": listed.key,
        "type": listed.kind,
        "created_at": timestamp(Some(listed.created_at)),
        "status": listed.status.as_str(),
        "attempts": listed.attempts,
        "next_attempt_at": timestamp(listed.next_attempt_at),
        "last_error": listed.last_error,
        "published_at": timestamp(listed.published_at),
    })
}

/// What a list does not have of a message: the headers, and the payload in the form that fits it.
pub(crate) fn add_content(value: &mut Value, message: &Message) {
    value["content_type"] = (*message.content_type).into();
    value["headers"] = json!(message.headers);
    add_payload(value, &message.content_type, &message.payload);
}

/// A payload, in the form that fits it.
pub(crate) fn add_payload(value: &mut Value, content_type: &str, payload: &[u8]) {
    let parsed = serde_json::from_slice::<Value>(payload).ok().filter(|_| is_json(content_type));
    match (parsed, std::str::from_utf8(payload)) {
        (Some(parsed), _) => value["payload"] = parsed,
        (None, Ok(text)) => value["payload_text"] = text.into(),
        (None, Err(_)) => value["payload_base64"] = base64(payload).into(),
    }
}

/// Bytes that are no text.
pub(crate) fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// Whether a media type says that the payload is JSON.
pub(crate) fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    essence == "application/json" || essence.ends_with("+json")
}

/// A shard.
pub(crate) fn shard(shard: &ShardInfo) -> Value {
    json!({
        "shard": shard.shard,
        "owner": shard.owner,
        "epoch": shard.epoch,
        "lease_expires_in_ms": u64::try_from(shard.lease_remaining.as_millis()).unwrap_or(u64::MAX),
        "settled_at": timestamp(shard.settled_at),
        "parked_keys": shard.parked_keys,
    })
}

/// RFC 3339 in UTC, as exact as it is known; null where there is none.
pub(crate) fn timestamp(at: Option<Timestamp>) -> Value {
    at.map_or(Value::Null, |at| at.to_string().into())
}
