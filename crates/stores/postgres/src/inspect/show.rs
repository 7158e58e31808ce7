//! Finds one message by its id. The log has no index on ids, but most ids contain their creation time, which leads to a
//! range of numbers.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use relevo_core::MessageId;
use relevo_core::outbox::inspect::{MessageDetails, MessageStatus, MessageSummary};
use relevo_core::outbox::search::MessageFilter;

use super::listing::{self, SeqRange, Sources, Sql};
use super::search::{ScanWidth, seq_and_time, seq_at};
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::store::Store;

/// An id is created at most this long before or after its message.
const ID_TIME_TOLERANCE: SignedDuration = SignedDuration::from_secs(5);
/// Time limit of the search from the end of the log.
const SEARCH_BUDGET: Duration = Duration::from_secs(30);

pub(super) async fn show(store: &Store, id: MessageId) -> Result<Option<MessageDetails>, Error> {
    let sql = Sql::of(store);
    let own = format!(" AND id = '{id}'");
    let waiting = listing::decode_scheduled(store.operator_connection.copy_out(sql.scheduled(&own, 1)).await?)?;
    if let Some((_, listed)) = waiting.into_iter().next() {
        let whole = listing::decode_message(
            store.operator_connection.copy_out(sql.whole("scheduled", &format!("id = '{id}'"))).await?,
        )?;
        // It may have entered the log in the meantime. Then the code below finds it.
        if let Some(message) = whole {
            return Ok(Some(MessageDetails { summary: listed, message }));
        }
    }
    let Some(seq) = seq_of(store, id).await? else { return Ok(None) };
    let Some(listed) = summary_at(store, seq).await? else { return Ok(None) };
    let tables = match listed.status {
        MessageStatus::Dead | MessageStatus::Discarded => ["dead_letter", "message"],
        MessageStatus::Retrying | MessageStatus::Held | MessageStatus::Quarantined | MessageStatus::Waiting => {
            ["parked_message", "message"]
        }
        MessageStatus::Scheduled | MessageStatus::Pending | MessageStatus::Published => ["message", "parked_message"],
    };
    for table in tables {
        let whole = store.operator_connection.copy_out(sql.whole(table, &format!("seq = {seq}"))).await?;
        if let Some(message) = listing::decode_message(whole)? {
            return Ok(Some(MessageDetails { summary: listed, message }));
        }
    }
    Ok(None)
}

/// Returns the status of the message with this number.
pub(super) async fn summary_at(store: &Store, seq: i64) -> Result<Option<MessageSummary>, Error> {
    let numbers = SeqRange { start: seq, end: seq.saturating_add(1) };
    let condition = listing::condition(&MessageFilter::default());
    let sql = Sql::of(store).list(Sources::ALL, &numbers, &condition, None, 1);
    Ok(listing::decode_summaries(store.operator_connection.copy_out(sql).await?)?.into_iter().next())
}

async fn seq_of(store: &Store, id: MessageId) -> Result<Option<i64>, Error> {
    let sql = Sql::of(store);
    if let Some(seq) =
        optional_int8(store, format!("SELECT seq FROM {} AND id = '{id}'", sql.own("dead_letter"))).await?
    {
        return Ok(Some(seq));
    }
    for made_at in [claimed_at(store, id).await?, id_created_at(id)].into_iter().flatten() {
        let start = seq_at(store, made_at.saturating_sub(ID_TIME_TOLERANCE).unwrap_or(Timestamp::MIN)).await?;
        let end = seq_at(store, made_at.saturating_add(ID_TIME_TOLERANCE).unwrap_or(Timestamp::MAX)).await?;
        if let Some(seq) = seq_in_range(store, id, &SeqRange { start, end }).await? {
            return Ok(Some(seq));
        }
    }
    if let Some(seq) =
        optional_int8(store, format!("SELECT seq FROM {} AND id = '{id}' LIMIT 1", sql.own("parked_message"))).await?
    {
        return Ok(Some(seq));
    }
    // A scheduled message entered the log long after its id was created.
    let began = Instant::now();
    let mut width = ScanWidth::first();
    let mut before = i64::MAX;
    while let Some((top, _)) = seq_and_time(store, sql.top(Sources::LOG, before)).await? {
        if began.elapsed() > SEARCH_BUDGET {
            return Err(Error::SearchTimedOut { id, budget: SEARCH_BUDGET });
        }
        let asked = Instant::now();
        let numbers = SeqRange { start: top.saturating_sub(width.get()), end: top.saturating_add(1) };
        if let Some(seq) = seq_in_range(store, id, &numbers).await? {
            return Ok(Some(seq));
        }
        width.adapt(asked.elapsed());
        before = numbers.start;
    }
    Ok(None)
}

async fn seq_in_range(store: &Store, id: MessageId, numbers: &SeqRange) -> Result<Option<i64>, Error> {
    let sql = format!(
        "SELECT seq FROM {}.message WHERE seq >= {} AND seq < {} AND id = '{id}' LIMIT 1",
        store.schema, numbers.start, numbers.end
    );
    optional_int8(store, sql).await
}

async fn optional_int8(store: &Store, sql: String) -> Result<Option<i64>, Error> {
    let mut rows = CopyRows::new(store.operator_connection.copy_out(sql).await?, 1)?;
    let row = rows.next_row()?;
    row.map(|mut row| row.int8()).transpose()
}

/// Returns when a caller used this id.
async fn claimed_at(store: &Store, id: MessageId) -> Result<Option<Timestamp>, Error> {
    let sql = format!("SELECT claimed_at FROM {}.dedup_id WHERE id = '{id}'", store.schema);
    let mut rows = CopyRows::new(store.operator_connection.copy_out(sql).await?, 1)?;
    let row = rows.next_row()?;
    row.map(|mut row| row.timestamp()).transpose()
}

/// Returns the creation time that a version 7 id contains.
fn id_created_at(id: MessageId) -> Option<Timestamp> {
    let uuid = id.as_uuid();
    if uuid.get_version_num() != 7 {
        return None;
    }
    let millis = uuid.as_u128() >> 80;
    Timestamp::from_millisecond(i64::try_from(millis).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_7_id_contains_its_creation_time() {
        let time = id_created_at(MessageId::v7(1_700_000_000_123, [0xff; 10])).expect("a time");
        assert_eq!(time.as_millisecond(), 1_700_000_000_123);
        assert_eq!(id_created_at("5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10".parse().expect("an id")), None);
    }
}
