//! Builds the statements of a relay and decodes their results.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use relevo_core::dead_letters::{DeadLetter, OperatorMark};
use relevo_core::message::{Message, MessageId};
use relevo_core::outbox::leases::{HeldAddress, Lease, LeaseRequest, LeaseResponse, TakenShard};
use relevo_core::outbox::log::{
    PageRequest, ParkAction, ParkedMessage, PublishFailure, SettleResult, Settlement, WindowLimit,
};
use relevo_core::outbox::parked::{ParkedBatch, ParkedSettlement};
use relevo_core::outbox::{LogEntry, Position};
use serde_json::{Value, json};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::binary_copy::{CopyRow, CopyRows};
use crate::classify::Error;
use crate::tick::Tick;

/// Builds a string literal that does not depend on `standard_conforming_strings`. It cannot contain a NUL.
pub(crate) fn literal(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 8);
    quoted.push_str(" E'");
    for char in text.chars() {
        match char {
            '\'' => quoted.push_str("''"),
            '\\' => quoted.push_str("\\\\"),
            '\0' => quoted.push('\u{fffd}'),
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

/// Builds a JSON literal. A NUL, which jsonb cannot store, becomes the replacement character.
pub(crate) fn json_literal(value: &Value) -> String {
    literal(&without_nul(value.to_string()))
}

/// Replaces NULs in JSON. An escaped backslash before `u0000` is not a NUL and stays.
fn without_nul(json: String) -> String {
    const NUL: &str = "\\u0000";
    if !json.contains(NUL) {
        return json;
    }
    let mut kept = String::with_capacity(json.len());
    let mut rest = json.as_str();
    while let Some(at) = rest.find('\\') {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix(NUL) {
            kept.push('\u{fffd}');
            rest = after;
        } else {
            // Skip the backslash and the character that it escapes.
            let (escape, after) = rest.split_at(2);
            kept.push_str(escape);
            rest = after;
        }
    }
    kept.push_str(rest);
    kept
}

pub(crate) fn column<'r, T>(row: &'r PgRow, index: usize) -> Result<T, Error>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    Ok(row.try_get(index)?)
}

/// Reads the only JSON value of a result.
pub(crate) fn json_response(rows: &[PgRow]) -> Result<Value, Error> {
    let row = rows.first().ok_or(Error::UnexpectedResponse("no row"))?;
    let text: &str = row.try_get_unchecked(0)?;
    serde_json::from_str(text).map_err(|_| Error::UnexpectedResponse("not JSON"))
}

pub(crate) fn tick(row: &PgRow) -> Result<Tick, Error> {
    Tick::parse(column(row, 0)?, column(row, 1)?, column(row, 2)?, column(row, 3)?)
}

/// Selects the messages of a window after a position, in sequence order. Numbers drawn before the first tick are looked
/// up by transaction, one index probe each, so that a long transaction causes no rescan.
///
/// Stale statistics cannot mislead the planner here. It estimates that a filter inside CASE matches half of the rows.
/// For a plain condition it estimates almost none, and then scans and sorts the whole window for every page. Comparing
/// rows as (xid, seq) leaves only one index to use. With `xid = x ORDER BY seq` the planner scans the whole history by
/// sequence when a few large transactions wrote most of it.
pub(crate) fn page(schema: &str, read: &PageRequest<'_>, from: &Tick, to: &Tick, place: i64) -> String {
    let (leases, limit) = (read.leases, read.messages_max);
    let columns = "seq, slot, id, created_at, topic, key, type, content_type, headers, payload";
    let slots = slot_filter(leases);
    let mut sql = format!(
        "SELECT {columns} FROM {schema}.message WHERE seq > {} AND seq <= {} \
         AND CASE WHEN pg_visible_in_snapshot(xid, '{}') AND NOT pg_visible_in_snapshot(xid, '{}'){slots} \
         THEN true END ORDER BY seq LIMIT {limit}",
        place.max(from.max_seq),
        to.max_seq,
        to.snapshot.text(),
        from.snapshot.text(),
    );
    let late = if place < from.max_seq { from.late_xids_until(to) } else { Vec::new() };
    if !late.is_empty() {
        let xids = late.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        sql = format!(
            "(SELECT {columns} FROM unnest('{{{xids}}}'::xid8[]) AS x CROSS JOIN LATERAL (\
             SELECT * FROM {schema}.message WHERE (xid, seq) > (x, {place}) AND (xid, seq) <= (x, {}) \
             AND CASE WHEN true{slots} THEN true END ORDER BY xid, seq LIMIT {limit}) AS m) \
             UNION ALL ({sql}) ORDER BY seq LIMIT {limit}",
            from.max_seq,
        );
    }
    // Large payloads are left out, so that the size of the page is limited before it is known.
    let small = inline_payload_max(read);
    format!(
        "SELECT seq, slot, octet_length(payload), id, created_at, topic, key, type, content_type, headers::text, \
         CASE WHEN octet_length(payload) <= {small} THEN payload END FROM ({sql}) AS w"
    )
}

/// Payloads up to this length cannot exceed the byte limit, even in a full page.
fn inline_payload_max(read: &PageRequest<'_>) -> usize {
    (read.bytes_max / read.messages_max.max(1)).clamp(1, 1 << 30)
}

fn slot_filter(leases: &[Lease]) -> String {
    match leases.first() {
        Some(first) if leases.len() < usize::from(first.shard_count) => {
            let shards = leases.iter().map(|lease| lease.shard.to_string()).collect::<Vec<_>>().join(",");
            format!(" AND slot % {} IN ({shards})", first.shard_count)
        }
        _ => String::new(),
    }
}

/// One row of a page. A large payload is missing.
pub(crate) struct PageRow {
    pub(crate) seq: i64,
    pub(crate) size: usize,
    pub(crate) has_payload: bool,
    slot: u16,
    message: Message,
}

impl PageRow {
    /// Returns the entry. Adds the payload that was fetched separately, if it was missing.
    pub(crate) fn with_payload(mut self, payloads: &mut BTreeMap<i64, Bytes>) -> Result<LogEntry, Error> {
        if !self.has_payload {
            self.message.payload = payloads.remove(&self.seq).ok_or(Error::UnexpectedResponse("a payload is gone"))?;
        }
        Ok(LogEntry { seq: self.seq, slot: self.slot, message: Arc::new(self.message) })
    }
}

/// Reads the rows of [`page`].
pub(crate) fn page_rows(answer: Bytes) -> Result<Vec<PageRow>, Error> {
    let mut rows = CopyRows::new(answer, 11)?;
    let mut page = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let seq = row.int8()?;
        let slot = row.slot()?;
        let size =
            usize::try_from(row.int4()?).map_err(|_| Error::UnexpectedResponse("a payload has a negative length"))?;
        let (message, is_whole) = message(&mut row)?;
        page.push(PageRow { seq, size, has_payload: is_whole, slot, message });
    }
    Ok(page)
}

/// Selects the payloads that a page left out.
pub(crate) fn payloads(schema: &str, seqs: &[i64]) -> String {
    let seqs = seqs.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    format!("SELECT seq, payload FROM {schema}.message WHERE seq IN ({seqs})")
}

pub(crate) fn payload_rows(answer: Bytes) -> Result<BTreeMap<i64, Bytes>, Error> {
    let mut rows = CopyRows::new(answer, 2)?;
    let mut payloads = BTreeMap::new();
    while let Some(mut row) = rows.next_row()? {
        payloads.insert(row.int8()?, row.bytes()?);
    }
    Ok(payloads)
}

/// Reads the columns from `id` to `payload`. Also returns whether the payload is present.
fn message(row: &mut CopyRow<'_>) -> Result<(Message, bool), Error> {
    let mut message = Message {
        id: MessageId::from_uuid(row.uuid()?),
        created_at: row.timestamp()?,
        topic: row.text()?,
        key: row.text()?,
        kind: row.text()?,
        content_type: row.text()?,
        headers: row.headers()?,
        payload: Bytes::new(),
    };
    let payload = row.optional()?;
    let is_whole = payload.is_some();
    message.payload = payload.unwrap_or_default();
    Ok((message, is_whole))
}

pub(crate) fn full_message(row: &mut CopyRow<'_>) -> Result<Message, Error> {
    match message(row)? {
        (message, true) => Ok(message),
        (_, false) => Err(Error::UnexpectedResponse("a payload is null")),
    }
}

fn lease_tokens(leases: impl IntoIterator<Item = Lease>) -> Value {
    leases.into_iter().map(|lease| json!([lease.shard, lease.epoch, lease.owner.to_string()])).collect()
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(1 << 40)
}

pub(crate) fn acquire_leases(schema: &str, destination: &str, ask: &LeaseRequest) -> String {
    let give_back: Vec<_> = ask.release.iter().map(|lease| json!([lease.shard, lease.epoch])).collect();
    let doc = json!({
        "owner": ask.owner.to_string(), "name": ask.name, "lease_ms": millis(ask.duration), "release": give_back,
    });
    format!("SELECT {schema}.acquire_leases({}, {})::text", literal(destination), json_literal(&doc))
}

/// Reads the result of [`acquire_leases`] and its timeline.
pub(crate) fn lease_response(answer: &Value, ask: &LeaseRequest) -> Result<(LeaseResponse, i64), Error> {
    let malformed = Error::UnexpectedResponse("leases are malformed");
    let read = || -> Option<(LeaseResponse, i64)> {
        let shards = u16::try_from(answer["shards"].as_u64()?).ok()?;
        let lease = |pair: &Value| {
            let shard = u16::try_from(pair[0].as_u64()?).ok()?;
            Some(Lease { shard, shard_count: shards, epoch: pair[1].as_i64()?, owner: ask.owner })
        };
        let hold = |pair: &Value| {
            Some(HeldAddress { address: pair[0].as_str()?.to_owned(), error: pair[1].as_str()?.to_owned() })
        };
        let ceiling = match (answer["reshard"].as_bool()?, answer["reshard_tick"].as_i64()) {
            (false, _) => WindowLimit::Unlimited,
            (true, None) => WindowLimit::CurrentWindow,
            (true, Some(tick)) => WindowLimit::UntilTick(tick),
        };
        let leased = LeaseResponse {
            leases: answer["leases"].as_array()?.iter().map(lease).collect::<Option<_>>()?,
            duration: Duration::from_millis(answer["lasts_ms"].as_f64().map_or(0, remaining_millis)),
            fair_share: usize::try_from(answer["fair"].as_u64()?).ok()?,
            window_limit: ceiling,
            held_addresses: answer["holds"].as_array()?.iter().map(hold).collect::<Option<_>>()?,
            timeline_changed: answer["timeline_changed"].as_bool()?,
        };
        Some((leased, answer["timeline"].as_i64()?))
    };
    read().ok_or(malformed)
}

/// The remaining time of a lease, or zero if it has expired.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between zero and a day")]
fn remaining_millis(millis: f64) -> u64 {
    millis.clamp(0.0, 86_400_000.0) as u64
}

pub(crate) fn positions(schema: &str, destination: &str) -> String {
    format!("SELECT shard, from_tick, to_tick, settled_seq FROM {schema}.shard_positions({})", literal(destination))
}

pub(crate) fn taken_shards(rows: &[PgRow], leases: &[Lease]) -> Result<Vec<TakenShard>, Error> {
    let mut standings = Vec::with_capacity(leases.len());
    for row in rows {
        let shard: i16 = column(row, 0)?;
        let Some(lease) = leases.iter().find(|lease| i32::from(lease.shard) == i32::from(shard)) else { continue };
        let position = Position { from_tick: column(row, 1)?, to_tick: column(row, 2)?, settled_seq: column(row, 3)? };
        standings.push(TakenShard { shard: lease.shard, position, parked_keys: Vec::new() });
    }
    Ok(standings)
}

pub(crate) fn parked_keys(schema: &str, destination: &str, leases: &[Lease]) -> String {
    format!(
        "SELECT slot, key FROM {schema}.parked_key WHERE destination = {}{}",
        literal(destination),
        slot_filter(leases)
    )
}

pub(crate) fn add_parked(answer: Bytes, shards: u16, standings: &mut [TakenShard]) -> Result<(), Error> {
    let mut rows = CopyRows::new(answer, 2)?;
    while let Some(mut row) = rows.next_row()? {
        let shard = relevo_core::slot::shard_of(row.slot()?, shards);
        let key = row.text()?;
        if let Some(standing) = standings.iter_mut().find(|standing| standing.shard == shard) {
            standing.parked_keys.push(key);
        }
    }
    Ok(())
}

pub(crate) fn settle(schema: &str, destination: &str, settlement: &Settlement) -> String {
    let progress: Vec<_> = settlement
        .progress
        .iter()
        .map(|(lease, position)| json!([lease.shard, position.from_tick, position.to_tick, position.settled_seq]))
        .collect();
    let parks: Vec<_> = settlement.parked.iter().map(park_json).collect();
    let doc = json!({
        "leases": lease_tokens(settlement.progress.iter().map(|(lease, _)| *lease)),
        "shards": settlement.progress.first().map_or(1, |(lease, _)| lease.shard_count),
        "progress": progress,
        "parks": parks,
    });
    format!("SELECT {schema}.settle({}, {})::text", literal(destination), json_literal(&doc))
}

fn park_json(park: &ParkedMessage) -> Value {
    let mut value = park.failure.as_ref().map_or_else(|| json!({}), failure_json);
    value["seq"] = park.seq.into();
    value["slot"] = park.slot.into();
    value["key"] = (*park.key).into();
    value
}

fn failure_json(stopped: &PublishFailure) -> Value {
    let (stop, after, address) = match &stopped.action {
        ParkAction::Retry { after } => ("retrying", Some(*after), None),
        ParkAction::HoldAddress { address, after } => ("held", Some(*after), Some(&**address)),
        ParkAction::Quarantine { after } => ("quarantined", Some(*after), None),
        ParkAction::DeadHold => ("dead_hold", None, None),
        ParkAction::DeadContinue => ("dead_continue", None, None),
    };
    json!({
        "stop": stop, "after_ms": after.map(millis), "address": address, "attempts": stopped.attempts,
        "class": stopped.class, "error": stopped.error, "route": &*stopped.route,
    })
}

pub(crate) fn settle_result(answer: &Value) -> Result<SettleResult, Error> {
    let read = || -> Option<SettleResult> {
        Some(SettleResult {
            lost_shards: answer["lost"]
                .as_array()?
                .iter()
                .map(|v| u16::try_from(v.as_u64()?).ok())
                .collect::<Option<_>>()?,
            reread: answer["passed"].as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?,
        })
    };
    read().ok_or(Error::UnexpectedResponse("a settlement's answer is malformed"))
}

pub(crate) fn read_parked(schema: &str, destination: &str, leases: &[Lease], keys: usize, messages: usize) -> String {
    let doc = json!({
        "leases": lease_tokens(leases.iter().copied()), "shards": leases.first().map_or(1, |lease| lease.shard_count),
        "keys": keys, "messages": messages,
    });
    format!(
        "SELECT slot, attempts, state, address, ordinal, seq, id, created_at, topic, key, type, content_type, headers, payload \
         FROM {schema}.read_parked({}, {})",
        literal(destination),
        json_literal(&doc)
    )
}

pub(crate) fn parked_batches(answer: Bytes) -> Result<Vec<ParkedBatch>, Error> {
    let mut rows = CopyRows::new(answer, 14)?;
    let mut runs: Vec<ParkedBatch> = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let slot = row.slot()?;
        let attempts = u32::try_from(row.int4()?).map_err(|_| Error::UnexpectedResponse("attempts are negative"))?;
        let quarantined = row.text()? == "quarantined";
        let address = row.optional_text()?.map(|address| address.to_string());
        let no = row.int8()?;
        let seq = row.int8()?;
        let message = Arc::new(full_message(&mut row)?);
        let key = message.key.clone();
        let entry = (no, LogEntry { seq, slot, message });
        match runs.last_mut() {
            Some(run) if run.key == key => run.messages.push(entry),
            _ => runs.push(ParkedBatch {
                key,
                slot,
                attempts,
                quarantined,
                probe_address: address,
                messages: vec![entry],
            }),
        }
    }
    Ok(runs)
}

pub(crate) fn settle_parked(schema: &str, destination: &str, advances: &[ParkedSettlement]) -> String {
    let mut leases: Vec<Lease> = advances.iter().map(|advance| advance.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    let runs: Vec<_> = advances
        .iter()
        .map(|advance| {
            json!({
                "key": &*advance.key,
                "shard": advance.lease.shard,
                "delivered": advance.delivered,
                "ordinal": advance.failed.as_ref().map(|(no, _)| no),
                "park": advance.failed.as_ref().map(|(_, why)| failure_json(why)),
                "released": advance.released_address.as_deref(),
            })
        })
        .collect();
    let doc = json!({ "leases": lease_tokens(leases), "runs": runs });
    format!("SELECT {schema}.settle_parked({}, {})::text", literal(destination), json_literal(&doc))
}

pub(crate) fn select_dead_letters(
    schema: &str,
    destination: &str,
    filter: &relevo_core::dead_letters::DeadLetterFilter,
    limit: usize,
) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_cannot_be_escaped() {
        assert_eq!(literal(r"a'b\'c"), r" E'a''b\\''c'");
        assert_eq!(literal("a\0b"), " E'a\u{fffd}b'");
    }
}
