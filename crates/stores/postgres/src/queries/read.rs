//! Reads ticks, and pages of the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use relevo_core::message::{Message, MessageId};
use relevo_core::outbox::LogEntry;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::PageRequest;
use sqlx::postgres::PgRow;

use super::column;
use crate::binary_copy::{CopyRow, CopyRows};
use crate::classify::Error;
use crate::tick::Tick;

/// Maximum number of scheduled messages that one transaction moves into the log.
const SCHEDULED_BATCH: u32 = 1000;

pub(crate) fn make_tick(schema: &str) -> String {
    format!("SELECT * FROM {schema}.make_tick()")
}

/// The result of [`make_tick`].
pub(crate) struct NewTick {
    pub(crate) tick: Tick,
    pub(crate) timeline: i64,
    /// Whether scheduled messages are due.
    pub(crate) is_due: bool,
}

pub(crate) fn new_tick(rows: &[PgRow]) -> Result<NewTick, Error> {
    let row = rows.first().ok_or(Error::UnexpectedResponse("no tick"))?;
    Ok(NewTick { tick: tick(row)?, timeline: column::<i32>(row, 4)?.into(), is_due: column(row, 5)? })
}

pub(crate) fn move_due_scheduled(schema: &str) -> String {
    format!("SELECT {schema}.move_due_scheduled({SCHEDULED_BATCH})")
}

pub(crate) fn select_tick(schema: &str, id: i64) -> String {
    format!("SELECT tick, snapshot::text, max_seq, late_xids::text FROM {schema}.tick WHERE tick = {id}")
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
pub(crate) fn page(
    schema: &str,
    request: &PageRequest<'_>,
    leases: &[Lease],
    from: &Tick,
    to: &Tick,
    settled_seq: i64,
) -> String {
    let limit = request.messages_max;
    let columns = "seq, slot, id, created_at, topic, key, type, content_type, headers, payload";
    let slots = slot_filter(leases);
    let mut sql = format!(
        "SELECT {columns} FROM {schema}.message WHERE seq > {} AND seq <= {} \
         AND CASE WHEN pg_visible_in_snapshot(xid, '{}') AND NOT pg_visible_in_snapshot(xid, '{}'){slots} \
         THEN true END ORDER BY seq LIMIT {limit}",
        settled_seq.max(from.max_seq),
        to.max_seq,
        to.snapshot.text(),
        from.snapshot.text(),
    );
    let late = if settled_seq < from.max_seq { from.late_xids_until(to) } else { Vec::new() };
    if !late.is_empty() {
        let xids = late.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        sql = format!(
            "(SELECT {columns} FROM unnest('{{{xids}}}'::xid8[]) AS x CROSS JOIN LATERAL (\
             SELECT * FROM {schema}.message WHERE (xid, seq) > (x, {settled_seq}) AND (xid, seq) <= (x, {}) \
             AND CASE WHEN true{slots} THEN true END ORDER BY xid, seq LIMIT {limit}) AS m) \
             UNION ALL ({sql}) ORDER BY seq LIMIT {limit}",
            from.max_seq,
        );
    }
    // Large payloads are left out, so that the size of the page is limited before it is known.
    let small = inline_payload_max(request);
    format!(
        "SELECT seq, slot, octet_length(payload), id, created_at, topic, key, type, content_type, headers::text, \
         CASE WHEN octet_length(payload) <= {small} THEN payload END FROM ({sql}) AS w"
    )
}

/// Payloads up to this length cannot exceed the byte limit, even in a full page.
fn inline_payload_max(read: &PageRequest<'_>) -> usize {
    (read.bytes_max / read.messages_max.max(1)).clamp(1, 1 << 30)
}

/// Builds the condition that selects the slots of leased shards.
pub(super) fn slot_filter(leases: &[Lease]) -> String {
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
            self.message.payload =
                payloads.remove(&self.seq).ok_or(Error::UnexpectedResponse("a payload is missing"))?;
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
