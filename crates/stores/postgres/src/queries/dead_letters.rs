//! Dead letters of the outbox.

use bytes::Bytes;
use relevo_core::dead_letters::{DeadLetter, DeadLetterFilter, MarkRequest, OperatorMark};
use serde_json::json;

use super::read::full_message;
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::literal::{json_literal, literal};

pub(crate) fn select_dead_letters(schema: &str, destination: &str, filter: &DeadLetterFilter, limit: usize) -> String {
    let mut sql = format!(
        "SELECT class, error, attempts, route, dead_at, state, marked_at, marked_by, reason, id, created_at, topic, key, type, content_type, headers::text, payload \
         FROM {schema}.dead_letter WHERE destination = {}",
        literal(destination)
    );
    let mut add = |condition: String| {
        sql.push_str(" AND ");
        sql.push_str(&condition);
    };
    if !filter.ids.is_empty() {
        let ids = filter.ids.iter().map(|id| format!("'{id}'")).collect::<Vec<_>>().join(",");
        add(format!("id IN ({ids})"));
    }
    if let Some(key) = &filter.key {
        add(format!("key = {}", literal(key)));
    }
    if let Some(route) = &filter.route {
        add(format!("route = {}", literal(route)));
    }
    if filter.unmarked {
        add("state = 'dead'".to_owned());
    }
    format!("{sql} ORDER BY seq LIMIT {limit}")
}

pub(crate) fn dead_letters(answer: Bytes) -> Result<Vec<DeadLetter>, Error> {
    let mut rows = CopyRows::new(answer, 17)?;
    let mut letters = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let class = row.text()?.to_string();
        let error = row.text()?.to_string();
        let attempts = u32::try_from(row.int4()?).map_err(|_| Error::UnexpectedResponse("attempts are negative"))?;
        let (route, dead_at) = (row.string()?, row.timestamp()?);
        let state = row.string()?;
        let marks = (row.optional_timestamp()?, row.optional_string()?, row.optional_string()?);
        let marked = match marks {
            (Some(at), Some(by), Some(reason)) => Some(OperatorMark { at, by, reason }),
            _ => None,
        };
        let message = full_message(&mut row)?;
        letters.push(DeadLetter { message, error, class, attempts, route, dead_at, state, marked });
    }
    Ok(letters)
}

/// Calls `redrive` or `discard`, which return the number of marked dead letters.
pub(crate) fn mark_dead_letters(schema: &str, function: &str, destination: &str, mark: &MarkRequest) -> String {
    let ids: Vec<_> = mark.filter.ids.iter().map(ToString::to_string).collect();
    let filter = json!({ "ids": ids, "key": mark.filter.key, "route": mark.filter.route });
    format!(
        "SELECT {schema}.{function}({}, {}, {}, {}, {})",
        literal(destination),
        json_literal(&filter),
        literal(&mark.by),
        literal(&mark.reason),
        mark.dry_run,
    )
}
