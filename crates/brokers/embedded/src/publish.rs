//! Stores messages.

use std::collections::HashSet;
use std::fmt::Write as _;

use bytes::Bytes;
use relevo_core::message::Headers;
use relevo_core::{Publication, slot, wire};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use crate::classify::Error;
use crate::config::Config;
use crate::connection::WriteTransaction;

/// A message as it is stored.
pub(crate) struct EncodedMessage<'a> {
    address: &'a str,
    key: &'a str,
    id: Option<Uuid>,
    headers: String,
    payload: Bytes,
}

impl<'a> EncodedMessage<'a> {
    pub(crate) fn from_raw(address: &'a str, key: &'a str, headers: &Headers, payload: Bytes) -> Self {
        let headers = serde_json::to_string(headers).expect("a map of texts is always JSON");
        Self { address, key, id: None, headers, payload }
    }

    fn from_publication(publication: &'a Publication, source: &str) -> Self {
        let message = &*publication.message;
        let id = Some(*message.id.as_uuid());
        let headers = wire::headers(publication, source);
        Self { id, ..Self::from_raw(&publication.address, &message.key, &headers, message.payload.clone()) }
    }

    fn bytes(&self) -> usize {
        self.headers.len() + self.payload.len()
    }

    pub(crate) fn validate(&self, max: usize) -> Result<(), Error> {
        let bytes = self.bytes();
        if bytes > max { Err(Error::TooLarge { bytes, max }) } else { Ok(()) }
    }
}

/// The number of messages and of bytes in these rows.
pub(crate) fn batch_size(rows: &[EncodedMessage<'_>]) -> (u64, u64) {
    (rows.len() as u64, rows.iter().map(|row| row.bytes() as u64).sum())
}

type Indexed<T> = Vec<(usize, T)>;

/// Splits a batch into messages to store and messages to refuse. A message is refused if it, or an earlier one of its
/// key, is too large.
pub(crate) fn encode_batch<'a>(
    batch: &'a [Publication],
    config: &Config,
) -> (Indexed<EncodedMessage<'a>>, Indexed<Error>) {
    let mut rows = Vec::with_capacity(batch.len());
    let mut refused = Vec::new();
    let mut keys = HashSet::new();
    for (index, publication) in batch.iter().enumerate() {
        let row = EncodedMessage::from_publication(publication, &config.source);
        if keys.contains(row.key) {
            refused.push((index, Error::EarlierRefused));
        } else if let Err(error) = row.validate(config.message_bytes_max) {
            keys.insert(row.key);
            refused.push((index, error));
        } else {
            rows.push((index, row));
        }
    }
    (rows, refused)
}

/// Stores all rows or none. Returns an error if the broker is full.
pub(crate) async fn store(
    mut write: WriteTransaction,
    rows: &[EncodedMessage<'_>],
    config: &Config,
) -> Result<(), Error> {
    let meta = sqlx::query(
        "SELECT messages, bytes, CAST(unixepoch('subsec') * 1000 AS INTEGER),
                coalesce((SELECT max(seq) FROM broker_message), 0) FROM broker_meta",
    )
    .fetch_one(write.connection())
    .await?;
    let (messages, bytes): (u64, u64) = (meta.get::<i64, _>(0).cast_unsigned(), meta.get::<i64, _>(1).cast_unsigned());
    let (now, newest): (i64, i64) = (meta.get(2), meta.get(3));
    let (more, more_bytes) = batch_size(rows);
    if messages + more > config.messages_max || bytes + more_bytes > config.bytes_max {
        write.rollback().await?;
        return Err(Error::Full { messages, bytes });
    }
    let mut stored = 0;
    let mut rest = rows;
    while !rest.is_empty() {
        // Use only a few sizes, so that each statement is prepared once.
        let size = [128, 16, 1].into_iter().find(|size| *size <= rest.len()).unwrap_or(1);
        let (chunk, tail) = rest.split_at(size);
        stored += insert(&mut write, chunk, now).await?;
        rest = tail;
    }
    let (added, added_bytes) = if stored == more { (more, more_bytes) } else { size_after(&mut write, newest).await? };
    sqlx::query("UPDATE broker_meta SET messages = messages + ?1, bytes = bytes + ?2")
        .bind(added.cast_signed())
        .bind(added_bytes.cast_signed())
        .execute(write.connection())
        .await?;
    write.commit().await
}

async fn insert(write: &mut WriteTransaction, rows: &[EncodedMessage<'_>], now: i64) -> Result<u64, Error> {
    let mut sql =
        String::from("INSERT INTO broker_message (address, slot, key, id, stored_at_ms, headers, payload) VALUES ");
    for index in 0..rows.len() {
        let comma = if index == 0 { "" } else { "," };
        write!(sql, "{comma}(?,?,?,?,?,?,?)").expect("writing to a text does not fail");
    }
    // Not a plain `DO NOTHING`, which would hide other conflicts.
    sql.push_str(" ON CONFLICT (id, address) WHERE id IS NOT NULL DO NOTHING");
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for row in rows {
        query = query
            .bind(row.address)
            .bind(i64::from(slot::slot_of(row.key)))
            .bind(row.key)
            .bind(row.id)
            .bind(now)
            .bind(&*row.headers)
            .bind(&*row.payload);
    }
    Ok(query.execute(write.connection()).await?.rows_affected())
}

/// The number and size of the rows after `newest`. Duplicates in the batch were not stored and do not count.
async fn size_after(write: &mut WriteTransaction, newest: i64) -> Result<(u64, u64), Error> {
    let row = sqlx::query(
        "SELECT count(*), coalesce(sum(octet_length(headers) + octet_length(payload)), 0)
         FROM broker_message WHERE seq > ?1",
    )
    .bind(newest)
    .fetch_one(write.connection())
    .await?;
    Ok((row.get::<i64, _>(0).cast_unsigned(), row.get::<i64, _>(1).cast_unsigned()))
}
