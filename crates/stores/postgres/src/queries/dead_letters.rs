//! Dead letters of the outbox.

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterContent, DeadLetterFilter, DeadLetterPage, DeadLetterState, DeadLetterSummary, MarkAction,
    MarkRequest, OperatorMark,
};
use serde_json::{Value, json};

use super::read::full_message;
use crate::binary_copy::{CopyRow, CopyRows};
use crate::classify::Error;
use crate::literal::{json_literal, literal};

const SUMMARY: &str = "seq, id, topic, key, type, route, class, error, attempts, created_at, dead_at, redrives, state, \
                       marked_at, marked_by, reason";
const MESSAGE: &str = "id, created_at, topic, key, type, content_type, headers::text, payload";

/// Selects summaries after the one with this number, and one more than the limit.
pub(crate) fn list(
    schema: &str,
    destination: &str,
    filter: &DeadLetterFilter,
    after: Option<i64>,
    limit: usize,
) -> String {
    let after = after.map_or_else(String::new, |seq| format!(" AND seq > {seq}"));
    let limit = limit.saturating_add(1);
    let condition = condition(destination, filter);
    format!("SELECT {SUMMARY} FROM {schema}.dead_letter WHERE {condition}{after} ORDER BY seq LIMIT {limit}")
}

/// Selects dead letters with their messages.
pub(crate) fn get(schema: &str, destination: &str, filter: &DeadLetterFilter, limit: usize) -> String {
    let condition = condition(destination, filter);
    format!("SELECT {SUMMARY}, {MESSAGE} FROM {schema}.dead_letter WHERE {condition} ORDER BY seq LIMIT {limit}")
}

fn condition(destination: &str, filter: &DeadLetterFilter) -> String {
    let mut sql = format!("destination = {}", literal(destination));
    let mut add = |condition: String| {
        sql.push_str(" AND ");
        sql.push_str(&condition);
    };
    if !filter.ids.is_empty() {
        let ids = filter.ids.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(",");
        add(format!("id IN ({ids})"));
    }
    let texts = [
        ("key", &filter.key),
        ("topic", &filter.topic),
        ("type", &filter.kind),
        ("route", &filter.route),
        ("class", &filter.class),
    ];
    for (column, value) in texts {
        if let Some(value) = value {
            add(format!("{column} = {}", literal(value)));
        }
    }
    if let Some(part) = &filter.error {
        add(format!("strpos(lower(error), lower({})) > 0", literal(part)));
    }
    if !filter.states.is_empty() {
        let states = filter.states.iter().map(|state| format!("'{}'", state.as_str())).collect::<Vec<_>>().join(",");
        add(format!("state IN ({states})"));
    }
    if let Some(since) = filter.since {
        add(format!("dead_at >= '{since}'"));
    }
    if let Some(until) = filter.until {
        add(format!("dead_at < '{until}'"));
    }
    sql
}

/// Parses [`DeadLetterPage::next`].
pub(crate) fn parse_cursor(text: &str) -> Result<i64, Error> {
    text.parse().map_err(|_| Error::InvalidCursor(text.to_owned()))
}

/// Reads the rows of [`list`].
pub(crate) fn page(answer: Bytes, destination: &str, limit: usize) -> Result<DeadLetterPage, Error> {
    let mut rows = CopyRows::new(answer, 16)?;
    let mut page = DeadLetterPage::default();
    let mut last = None;
    while let Some(mut row) = rows.next_row()? {
        if page.letters.len() == limit {
            page.next = last.map(|seq: i64| seq.to_string());
            break;
        }
        let (seq, letter) = summary(&mut row, destination)?;
        last = Some(seq);
        page.letters.push(letter);
    }
    Ok(page)
}

/// Reads the rows of [`get`].
pub(crate) fn dead_letters(answer: Bytes, destination: &str) -> Result<Vec<DeadLetter>, Error> {
    let mut rows = CopyRows::new(answer, 24)?;
    let mut letters = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let (_, summary) = summary(&mut row, destination)?;
        letters.push(DeadLetter { summary, content: DeadLetterContent::Outbox(full_message(&mut row)?) });
    }
    Ok(letters)
}

fn summary(row: &mut CopyRow<'_>, destination: &str) -> Result<(i64, DeadLetterSummary), Error> {
    let count = |number: i32| u32::try_from(number).map_err(|_| Error::UnexpectedResponse("a count is negative"));
    let seq = row.int8()?;
    let letter = DeadLetterSummary {
        owner: destination.to_owned(),
        id: MessageId::from_uuid(row.uuid()?),
        replay: 0,
        topic: Some(row.string()?),
        key: row.string()?,
        kind: Some(row.string()?),
        route: Some(row.string()?),
        class: row.string()?,
        error: row.string()?,
        attempts: count(row.int4()?)?,
        entered_at: row.timestamp()?,
        dead_at: row.timestamp()?,
        redrives: count(row.int4()?)?,
        state: parse_state(&row.text()?)?,
        mark: mark_of(row.optional_timestamp()?, row.optional_string()?, row.optional_string()?),
    };
    Ok((seq, letter))
}

pub(crate) fn parse_state(name: &str) -> Result<DeadLetterState, Error> {
    DeadLetterState::parse(name).ok_or(Error::UnexpectedResponse("the state of a dead letter is unknown"))
}

pub(crate) fn mark_of(at: Option<Timestamp>, by: Option<String>, reason: Option<String>) -> Option<OperatorMark> {
    Some(OperatorMark { at: at?, by: by?, reason: reason? })
}

/// Calls `redrive` or `discard`, which return the number of marked dead letters.
pub(crate) fn mark(schema: &str, destination: &str, request: &MarkRequest) -> String {
    let function = match request.action {
        MarkAction::Redrive => "redrive",
        MarkAction::Discard => "discard",
    };
    format!(
        "SELECT {schema}.{function}({}, {}, {}, {}, {})",
        literal(destination),
        json_literal(&filter_json(&request.filter)),
        literal(&request.by),
        literal(&request.reason),
        request.dry_run,
    )
}

/// The filter of the SQL functions that mark dead letters, without the owner.
pub(crate) fn filter_json(filter: &DeadLetterFilter) -> Value {
    let ids: Vec<_> = filter.ids.iter().map(ToString::to_string).collect();
    let states: Vec<_> = filter.states.iter().map(|state| state.as_str()).collect();
    json!({
        "ids": ids, "key": filter.key, "topic": filter.topic, "type": filter.kind, "route": filter.route,
        "class": filter.class, "error": filter.error, "states": states,
        "since": filter.since.map(|at| at.to_string()), "until": filter.until.map(|at| at.to_string()),
    })
}
