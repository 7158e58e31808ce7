//! A dead letter as people and programs see it: what came may be no message of ours, and is shown as it came.

use std::io::{self, Write};

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::dead_letters::{DeadLetter, DeadLetterContent, DeadLetterSummary};
use relevo_core::inbox::InboxMessage;
use relevo_core::wire::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::commands::dead::times;
use crate::output;
use crate::output::table::{self, plain};
use crate::output::{payload, time};

/// Its id, with the number of its replay if it has one.
pub(super) fn named(dead: &DeadLetterSummary) -> String {
    match dead.replay {
        0 => dead.id.to_string(),
        replay => format!("{} (replay {replay})", dead.id),
    }
}

/// One line of a list.
pub(super) fn object(dead: &DeadLetterSummary) -> Value {
    json!({
        "consumer": dead.owner,
        "id": dead.id.to_string(),
        "replay": dead.replay,
        "key": dead.key,
        "type": dead.kind,
        "state": dead.state.as_str(),
        "class": dead.class,
        "error": dead.error,
        "attempts": dead.attempts,
        "redriven": dead.redrives,
        "arrived_at": output::timestamp(Some(dead.entered_at)),
        "dead_at": output::timestamp(Some(dead.dead_at)),
        "marked_at": output::timestamp(dead.mark.as_ref().map(|mark| mark.at)),
        "marked_by": dead.mark.as_ref().map(|mark| &mark.by),
        "note": dead.mark.as_ref().map(|mark| &mark.reason),
    })
}

/// All of it.
pub(super) fn whole(dead: &DeadLetter) -> Value {
    let mut value = object(&dead.summary);
    let DeadLetterContent::Inbox { message, backtrace } = &dead.content else { return value };
    value["address"] = (&*message.address).into();
    value["lane"] = message.lane.name().into();
    value["place"] = message.offset.into();
    value["correlation"] = correlation(message).into();
    value["backtrace"] = backtrace.as_deref().into();
    let header = |(name, bytes): &(String, Bytes)| match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "name": name, "value": text }),
        Err(_) => json!({ "name": name, "value_base64": output::base64(bytes) }),
    };
    value["headers"] = message.raw.headers.iter().map(header).collect();
    output::add_payload(&mut value, content_type(message), &message.raw.payload);
    value
}

/// The media type of its payload according to its headers.
fn content_type(message: &InboxMessage) -> &str {
    text_header(message, CONTENT_TYPE).unwrap_or_default()
}

/// The correlation id from its headers.
pub(in crate::commands) fn correlation(message: &InboxMessage) -> Option<&str> {
    text_header(message, "correlation-id")
}

/// The value of a header, if it is text. If the header occurs twice, the last one is used.
fn text_header<'a>(message: &'a InboxMessage, name: &str) -> Option<&'a str> {
    let (_, value) = message.raw.headers.iter().rev().find(|(other, _)| other.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(value).ok()
}

/// All of it, for people.
pub(super) fn told(out: &mut impl Write, letter: &DeadLetter) -> io::Result<()> {
    let (dead, now) = (&letter.summary, Timestamp::now());
    let mut pairs = vec![
        ("id", named(dead)),
        ("state", format!("{} at consumer `{}`", dead.state.as_str(), dead.owner)),
        ("class", dead.class.clone()),
        ("error", dead.error.clone()),
        ("attempts", dead.attempts.to_string()),
        ("arrived", time::with_age(dead.entered_at, now)),
        ("dead since", time::with_age(dead.dead_at, now)),
        ("redriven", times(dead.redrives)),
    ];
    if let Some(mark) = &dead.mark {
        pairs.push(("marked", format!("{} by {}", time::with_age(mark.at, now), mark.by)));
        pairs.push(("note", mark.reason.clone()));
    }
    pairs.push(("key", dead.key.clone()));
    pairs.extend(dead.kind.clone().map(|kind| ("type", kind)));
    let DeadLetterContent::Inbox { message, backtrace } = &letter.content else { return table::pairs(out, &pairs) };
    pairs.push(("address", message.address.to_string()));
    pairs.push(("lane", message.lane.name().to_owned()));
    pairs.extend(message.offset.map(|place| ("place", place.to_string())));
    pairs.extend(correlation(message).map(|text| ("correlation", text.to_owned())));
    for (name, value) in &message.raw.headers {
        pairs.push(("header", format!("{name}: {}", readable(value))));
    }
    pairs.push(("payload", format!("{} bytes", message.raw.payload.len())));
    table::pairs(out, &pairs)?;
    if let Some(backtrace) = backtrace {
        writeln!(out, "\nbacktrace:")?;
        for line in backtrace.lines() {
            writeln!(out, "{}", plain(line))?;
        }
    }
    writeln!(out)?;
    payload::write(out, content_type(message), &message.raw.payload)
}

/// Text as it is, other bytes as their escapes.
fn readable(value: &[u8]) -> String {
    std::str::from_utf8(value).map_or_else(|_| value.escape_ascii().to_string(), str::to_owned)
}
