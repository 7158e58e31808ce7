//! Code that all statements of the inbox share.

pub(crate) mod dead_letters;
pub(crate) mod enter;
pub(crate) mod members;
pub(crate) mod prune;
pub(crate) mod replays;
pub(crate) mod retry;

use std::fmt::Write as _;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::inbox::{DedupId, InboxMessage, InboxState};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqliteRow};

use crate::classify::Error;
use crate::queries::{column, id, number};

type Statement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Builds a statement whose first three parameters are consumer, id and replay.
pub(crate) fn bind_dedup_id<'q>(sql: &'static str, consumer: &'q str, id: DedupId) -> Statement<'q> {
    sqlx::query(sql).bind(consumer).bind(*id.id.as_uuid()).bind(i64::from(id.replay))
}

pub(crate) fn state(row: &SqliteRow, index: usize) -> Result<InboxState, Error> {
    InboxState::parse(column(row, index)?).ok_or_else(|| Error::unexpected_response("an inbox state is unknown"))
}

/// Reads the columns id, replay, headers, payload, address, lane, offset, queue, attempts.
pub(crate) fn inbox_message(row: &SqliteRow, first: usize) -> Result<InboxMessage, Error> {
    Ok(InboxMessage {
        dedup_id: DedupId { id: id(row, first)?, replay: number(row, first + 1)? },
        raw: raw_message(row, first + 2, column::<Vec<u8>>(row, first + 3)?.into())?,
        address: column::<&str>(row, first + 4)?.into(),
        lane: Lane::new(column::<&str>(row, first + 5)?),
        offset: column::<Option<i64>>(row, first + 6)?.map(i64::cast_unsigned),
        queue: column::<String>(row, first + 7)?.into(),
        attempts: number(row, first + 8)?,
    })
}

/// Reads the column of headers.
pub(crate) fn raw_message(row: &SqliteRow, index: usize, payload: Bytes) -> Result<RawMessage, Error> {
    let headers = decode_headers(column(row, index)?);
    let headers = headers.ok_or_else(|| Error::unexpected_response("headers are malformed"))?;
    Ok(RawMessage { headers, payload })
}

/// Appends a message to its queue and returns its number.
pub(crate) async fn append(
    connection: &mut SqliteConnection,
    consumer: &str,
    message: &InboxMessage,
    arrived_at: i64,
) -> Result<i64, Error> {
    let sql = "INSERT INTO relevo_inbox_retry_message (consumer, id, replay, headers, payload, address, lane, \
               broker_offset, queue, arrived_at_ms, attempts) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11) RETURNING ordinal";
    let insert = bind_dedup_id(sql, consumer, message.dedup_id).bind(encode_headers(&message.raw.headers));
    let insert = insert.bind(&*message.raw.payload).bind(&*message.address).bind(message.lane.name());
    let insert = insert.bind(message.offset.map(u64::cast_signed));
    let insert = insert.bind(&*message.queue).bind(arrived_at).bind(i64::from(message.attempts));
    column(&insert.fetch_one(connection).await?, 0)
}

/// Header values may be any bytes, but JSON holds only text.
fn encode_headers(headers: &[(String, Bytes)]) -> String {
    let hex = |value: &Bytes| {
        let mut text = String::with_capacity(value.len() * 2);
        for byte in value {
            write!(text, "{byte:02x}").expect("writing to a string does not fail");
        }
        text
    };
    let pairs: Vec<_> = headers.iter().map(|(name, value)| (name, hex(value))).collect();
    serde_json::to_string(&pairs).expect("pairs of strings are always JSON")
}

fn decode_headers(text: &str) -> Option<Vec<(String, Bytes)>> {
    let pairs: Vec<(String, String)> = serde_json::from_str(text).ok()?;
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let value = |hex: &str| hex.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>();
    pairs.into_iter().map(|(name, hex)| Some((name, value(&hex)?.into()))).collect()
}

/// Returns ids as a JSON array of hexadecimal digits, as SQLite's `hex` prints them. `None` if there are none.
pub(crate) fn hex_ids(ids: &[MessageId]) -> Option<String> {
    let hex = |id: &MessageId| id.as_uuid().simple().to_string().to_uppercase();
    let list: serde_json::Value = ids.iter().map(hex).collect();
    (!ids.is_empty()).then(|| list.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_any_bytes_are_read_back() {
        let given = vec![
            ("x-twice".to_owned(), Bytes::from_static(b"2")),
            ("X-\"Twice".to_owned(), Bytes::new()),
            ("x-twice".to_owned(), Bytes::from_static(b"\xff\x00\xfe")),
        ];
        assert_eq!(decode_headers(&encode_headers(&given)), Some(given));
    }

    #[test]
    fn malformed_headers_are_rejected() {
        assert_eq!((decode_headers("{}"), decode_headers("[[\"a\", \"f\u{fc}\"]]")), (None, None));
    }
}
