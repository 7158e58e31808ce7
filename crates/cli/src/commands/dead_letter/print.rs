//! A dead letter for people and programs. A consumer's dead letter is shown as it was received: it may be a foreign
//! message.

use std::io::{self, Write};

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::dead_letters::{DeadLetter, DeadLetterContent, DeadLetterOwner, DeadLetterSummary};
use relevo_core::inbox::InboxMessage;
use relevo_core::wire::CONTENT_TYPE;
use serde_json::{Value, json};

use super::owner::described;
use crate::commands::message::envelope;
use crate::output::table::{self, plain};
use crate::output::{self, payload, time};

pub(super) const HEADINGS: &[&str] =
    &["ID", "OWNER", "STATE", "CLASS", "ATTEMPTS", "REDRIVES", "DEAD SINCE", "TOPIC", "KEY", "TYPE", "ERROR"];

/// One line of the table.
pub(super) fn row(letter: &DeadLetterSummary, owner: &DeadLetterOwner, now: Timestamp) -> Vec<String> {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    vec![
        named(letter),
        described(owner).replace('`', ""),
        letter.state.as_str().to_owned(),
        letter.class.clone(),
        letter.attempts.to_string(),
        letter.redrives.to_string(),
        time::with_age(letter.dead_at, now),
        or_dash(&letter.topic),
        letter.key.clone(),
        or_dash(&letter.kind),
        letter.error.clone(),
    ]
}

/// Its id, with the number of its replay if it has one.
fn named(letter: &DeadLetterSummary) -> String {
    match letter.replay {
        0 => letter.id.to_string(),
        replay => format!("{} (replay {replay})", letter.id),
    }
}

/// One line of the list for programs.
pub(super) fn object(letter: &DeadLetterSummary, owner: &DeadLetterOwner) -> Value {
    let (destination, consumer) = match owner {
        DeadLetterOwner::Destination(name) => (Some(name), None),
        DeadLetterOwner::Consumer(name) => (None, Some(name)),
        DeadLetterOwner::AnyConsumer => (None, Some(&letter.owner)),
    };
    json!({
        "destination": destination,
        "consumer": consumer,
        "id": letter.id.to_string(),
        "replay": letter.replay,
        "topic": letter.topic,
        "key": letter.key,
        "type": letter.kind,
        "route": letter.route,
        "state": letter.state.as_str(),
        "class": letter.class,
        "error": letter.error,
        "attempts": letter.attempts,
        "redrive_count": letter.redrives,
        "entered_at": output::timestamp(Some(letter.entered_at)),
        "dead_at": output::timestamp(Some(letter.dead_at)),
        "marked_at": output::timestamp(letter.mark.as_ref().map(|mark| mark.at)),
        "marked_by": letter.mark.as_ref().map(|mark| &mark.by),
        "reason": letter.mark.as_ref().map(|mark| &mark.reason),
    })
}

/// One dead letter with its message, for programs.
pub(super) fn full_object(letter: &DeadLetter, owner: &DeadLetterOwner) -> Value {
    let mut value = object(&letter.summary, owner);
    let (message, backtrace) = match &letter.content {
        DeadLetterContent::Outbox(message) => {
            output::add_content(&mut value, message);
            return value;
        }
        DeadLetterContent::Inbox { message, backtrace } => (message, backtrace),
    };
    value["address"] = (&*message.address).into();
    value["lane"] = message.lane.name().into();
    value["broker_offset"] = message.offset.into();
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

/// One dead letter with its message, for people.
pub(super) fn text(out: &mut impl Write, letter: &DeadLetter, owner: &DeadLetterOwner) -> io::Result<()> {
    let (summary, now) = (&letter.summary, Timestamp::now());
    let mut pairs = vec![
        ("id", named(summary)),
        ("state", format!("{} at {}", summary.state.as_str(), described(owner))),
        ("class", summary.class.clone()),
        ("error", summary.error.clone()),
        ("attempts", summary.attempts.to_string()),
    ];
    pairs.extend(summary.route.clone().map(|route| ("route", route)));
    pairs.push(("dead since", time::with_age(summary.dead_at, now)));
    pairs.push(("redrives", summary.redrives.to_string()));
    if let Some(mark) = &summary.mark {
        pairs.push(("marked", format!("{} by {}", time::with_age(mark.at, now), mark.by)));
        pairs.push(("reason", mark.reason.clone()));
    }
    let (content_type, bytes, backtrace) = match &letter.content {
        DeadLetterContent::Outbox(message) => {
            pairs.extend(envelope(message, now));
            (&*message.content_type, &message.payload, None)
        }
        DeadLetterContent::Inbox { message, backtrace } => {
            pairs.extend(delivery(summary, message, now));
            (content_type(message), &message.raw.payload, backtrace.as_ref())
        }
    };
    table::pairs(out, &pairs)?;
    if let Some(backtrace) = backtrace {
        writeln!(out, "\nbacktrace:")?;
        for line in backtrace.lines() {
            writeln!(out, "{}", plain(line))?;
        }
    }
    writeln!(out)?;
    payload::write(out, content_type, bytes)
}

/// What the consumer received.
fn delivery(summary: &DeadLetterSummary, message: &InboxMessage, now: Timestamp) -> Vec<(&'static str, String)> {
    let mut pairs = vec![("received", time::with_age(summary.entered_at, now)), ("key", summary.key.clone())];
    pairs.extend(summary.kind.clone().map(|kind| ("type", kind)));
    pairs.push(("address", message.address.to_string()));
    pairs.push(("lane", message.lane.name().to_owned()));
    pairs.extend(message.offset.map(|offset| ("broker offset", offset.to_string())));
    pairs.extend(correlation(message).map(|text| ("correlation", text.to_owned())));
    for (name, value) in &message.raw.headers {
        let value = std::str::from_utf8(value).map_or_else(|_| value.escape_ascii().to_string(), str::to_owned);
        pairs.push(("header", format!("{name}: {value}")));
    }
    pairs.push(("payload", format!("{} bytes", message.raw.payload.len())));
    pairs
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
