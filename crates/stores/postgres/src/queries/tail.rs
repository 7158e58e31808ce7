//! Messages that became visible between two snapshots.

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::outbox::search::{TAIL_RANGE, TailFilter, TailMessage};

use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::literal::{join_with_commas, literal};
use crate::tick::Snapshot;

/// A snapshot of a standby does not list open transactions.
pub(crate) const CURRENT_SNAPSHOT: &str = "SELECT pg_current_snapshot()::text, pg_is_in_recovery()";

const COLUMNS: &str = "xid, seq, id, created_at, topic, key, type";
const RESULT: &str = "xid::text, seq, id, created_at, topic, key, type";

/// The last row of a page, in the order of the index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) xid: u64,
    pub(crate) seq: i64,
}

fn condition(filter: &TailFilter) -> String {
    let equal = |column: &str, wanted: &Option<String>| {
        wanted.as_ref().map_or_else(String::new, |wanted| format!(" AND {column} = {}", literal(wanted)))
    };
    [equal("key", &filter.key), equal("topic", &filter.topic), equal("type", &filter.kind)].concat()
}

/// Selects the newest messages that a snapshot sees, newest first.
pub(crate) fn newest(schema: &str, filter: &TailFilter, to: &Snapshot, limit: usize) -> String {
    format!(
        "SELECT {RESULT} FROM {schema}.message \
         WHERE seq > (SELECT max(seq) - {TAIL_RANGE} FROM {schema}.message) \
         AND pg_visible_in_snapshot(xid, '{}'){} ORDER BY seq DESC LIMIT {limit}",
        to.text(),
        condition(filter),
    )
}

/// Selects the messages of a window after a place, in the order of transactions and numbers.
///
/// A message that `from` did not see was written by a transaction that was open then, or by one whose id is `xmax` or
/// higher. Comparing rows as (xid, seq) leaves only one index to use, and a filter inside CASE does not mislead the
/// planner.
pub(crate) fn page(
    schema: &str,
    filter: &TailFilter,
    (from, to): (&Snapshot, &Snapshot),
    after: Place,
    limit: usize,
) -> String {
    let condition = condition(filter);
    let first = if after.xid >= from.xmax() { after } else { Place { xid: from.xmax() - 1, seq: i64::MAX } };
    let mut sql = format!(
        "SELECT {COLUMNS} FROM {schema}.message WHERE (xid, seq) > ('{}'::xid8, {}) \
         AND CASE WHEN pg_visible_in_snapshot(xid, '{}'){condition} THEN true END ORDER BY xid, seq LIMIT {limit}",
        first.xid,
        first.seq,
        to.text(),
    );
    let late: Vec<u64> = from.ended_until(to).into_iter().filter(|&xid| xid >= after.xid).collect();
    if !late.is_empty() {
        let floor = |&xid: &u64| if xid == after.xid { after.seq } else { 0 };
        sql = format!(
            "(SELECT m.* FROM unnest('{{{}}}'::xid8[], '{{{}}}'::bigint[]) AS l (x, floor) CROSS JOIN LATERAL (\
             SELECT {COLUMNS} FROM {schema}.message WHERE (xid, seq) > (x, floor) AND (xid, seq) <= (x, {}) \
             AND CASE WHEN true{condition} THEN true END ORDER BY xid, seq LIMIT {limit}) AS m) \
             UNION ALL ({sql}) ORDER BY xid, seq LIMIT {limit}",
            join_with_commas(late.iter()),
            join_with_commas(late.iter().map(floor)),
            i64::MAX,
        );
    }
    format!("SELECT {RESULT} FROM ({sql}) AS w ORDER BY w.xid, w.seq")
}

/// Reads the rows of [`newest`] and [`page`], each with its transaction.
pub(crate) fn decode(answer: Bytes) -> Result<Vec<(u64, TailMessage)>, Error> {
    let mut rows = CopyRows::new(answer, 7)?;
    let mut list = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let xid = row.text()?.parse().map_err(|_| Error::UnexpectedResponse("a transaction id is malformed"))?;
        let seq = row.int8()?;
        let id = MessageId::from_uuid(row.uuid()?);
        let created_at = row.timestamp()?;
        let (topic, key, kind) = (row.string()?, row.string()?, row.string()?);
        list.push((xid, TailMessage { seq, id, topic, key, kind, created_at }));
    }
    Ok(list)
}
