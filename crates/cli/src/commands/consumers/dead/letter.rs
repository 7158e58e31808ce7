//! A dead letter as people and programs see it: what came may be no message of ours, and is shown as it came.

use std::io::{self, Write};

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::inbox::dead_letters::DeadLetter;
use relevo_core::wire::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::commands::output;
use crate::commands::table::{self, plain};
use crate::commands::{moment, payload};

/// Its id, with the number of its replay if it has one.
pub(super) fn named(dead: &DeadLetter) -> String {
    match dead.message.dedup_id.replay {
        0 => dead.message.dedup_id.id.to_string(),
        replay => format!("{} (replay {replay})", dead.message.dedup_id.id),
    }
}

/// Its type, if it can be read.
pub(super) fn kind(dead: &DeadLetter) -> Option<String> {
    dead.message.raw.decode().ok().map(|received| received.message.kind.to_string())
}

/// One line of a list.
pub(super) fn object(dead: &DeadLetter) -> Value {
    let arrival = &dead.message;
    json!({
        "consumer": dead.consumer,
        "id": arrival.dedup_id.id.to_string(),
        "replay": arrival.dedup_id.replay,
        "key": &*arrival.queue,
        "type": kind(dead),
        "state": dead.state.as_str(),
        "class": dead.class,
        "error": dead.error,
        "attempts": dead.attempts,
        "redriven": dead.redrives,
        "arrived_at": output::time(Some(dead.arrived_at)),
        "dead_at": output::time(Some(dead.dead_at)),
        "address": &*arrival.address,
        "lane": arrival.lane.name(),
        "place": arrival.offset,
        "correlation": correlation(dead),
        "note": dead.reason,
    })
}

/// All of it.
pub(super) fn whole(dead: &DeadLetter) -> Value {
    let mut value = object(dead);
    value["backtrace"] = dead.backtrace.as_deref().into();
    let header = |(name, bytes): &(String, Bytes)| match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "name": name, "value": text }),
        Err(_) => json!({ "name": name, "value_base64": output::base64(bytes) }),
    };
    value["headers"] = dead.message.raw.headers.iter().map(header).collect();
    output::add_payload(&mut value, content_type(dead), &dead.message.raw.payload);
    value
}

/// The media type of its payload according to its headers.
fn content_type(dead: &DeadLetter) -> &str {
    text_header(dead, CONTENT_TYPE).unwrap_or_default()
}

/// The correlation id from its headers.
pub(in crate::commands) fn correlation(dead: &DeadLetter) -> Option<&str> {
    text_header(dead, "correlation-id")
}

/// The value of a header, if it is text. If the header occurs twice, the last one is used.
fn text_header<'a>(dead: &'a DeadLetter, name: &str) -> Option<&'a str> {
    let (_, value) = dead.message.raw.headers.iter().rev().find(|(other, _)| other.eq_ignore_ascii_case(name))?;
    std::str::from_utf8(value).ok()
}

/// All of it, for people.
pub(super) fn told(out: &mut impl Write, dead: &DeadLetter) -> io::Result<()> {
    let (arrival, now) = (&dead.message, Timestamp::now());
    let mut pairs = vec![
        ("id", named(dead)),
        ("state", format!("{} at consumer `{}`", dead.state.as_str(), dead.consumer)),
        ("class", dead.class.clone()),
        ("error", dead.error.clone()),
        ("attempts", dead.attempts.to_string()),
        ("arrived", moment::told(dead.arrived_at, now)),
        ("dead since", moment::told(dead.dead_at, now)),
        ("redriven", times(dead.redrives)),
    ];
    pairs.extend(dead.reason.clone().map(|note| ("note", note)));
    pairs.push(("key", arrival.queue.to_string()));
    pairs.extend(kind(dead).map(|kind| ("type", kind)));
    pairs.push(("address", arrival.address.to_string()));
    pairs.push(("lane", arrival.lane.name().to_owned()));
    pairs.extend(arrival.offset.map(|place| ("place", place.to_string())));
    pairs.extend(correlation(dead).map(|text| ("correlation", text.to_owned())));
    for (name, value) in &arrival.raw.headers {
        pairs.push(("header", format!("{name}: {}", readable(value))));
    }
    pairs.push(("payload", format!("{} bytes", arrival.raw.payload.len())));
    table::pairs(out, &pairs)?;
    if let Some(backtrace) = &dead.backtrace {
        writeln!(out, "\nbacktrace:")?;
        for line in backtrace.lines() {
            writeln!(out, "{}", plain(line))?;
        }
    }
    writeln!(out)?;
    payload::write(out, content_type(dead), &arrival.raw.payload)
}

fn times(count: u32) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

/// Text as it is, other bytes as their escapes.
fn readable(value: &[u8]) -> String {
    std::str::from_utf8(value).map_or_else(|_| value.escape_ascii().to_string(), str::to_owned)
}
