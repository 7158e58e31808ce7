//! Finds one message by its id. The log has no index on ids, but most ids contain their creation time, which leads to a
//! range of numbers.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use relevo_core::MessageId;
use relevo_core::operate::{Listed, Search, Shown, Status};

use super::listing::{self, Numbers, Sources, Sql};
use super::search::{Width, number_at, probe};
use crate::classify::Error;
use crate::copy::Rows;
use crate::store::Store;

/// An id is created at most this long before or after its message.
const NEAR: SignedDuration = SignedDuration::from_secs(5);
/// Time limit of the search from the end of the log.
const BUDGET: Duration = Duration::from_secs(30);

pub(super) async fn show(store: &Store, id: MessageId) -> Result<Option<Shown>, Error> {
    let sql = Sql::of(store);
    let own = format!(" AND id = '{id}'");
    let waiting = listing::scheduled(store.asking.copy(sql.scheduled(&own, 1)).await?)?;
    if let Some((_, listed)) = waiting.into_iter().next() {
        let whole = listing::whole(store.asking.copy(sql.whole("scheduled", &format!("id = '{id}'"))).await?)?;
        // It may have entered the log in the meantime. Then the code below finds it.
        if let Some(message) = whole {
            return Ok(Some(Shown { listed, message }));
        }
    }
    let Some(seq) = number_of(store, id).await? else { return Ok(None) };
    let Some(listed) = standing(store, seq).await? else { return Ok(None) };
    let tables = match listed.status {
        Status::Dead | Status::Discarded => ["dead_letter", "message"],
        Status::Retrying | Status::Held | Status::Quarantined | Status::Behind => ["parked_message", "message"],
        Status::Scheduled | Status::Pending | Status::Published => ["message", "parked_message"],
    };
    for table in tables {
        let whole = store.asking.copy(sql.whole(table, &format!("seq = {seq}"))).await?;
        if let Some(message) = listing::whole(whole)? {
            return Ok(Some(Shown { listed, message }));
        }
    }
    Ok(None)
}

/// Returns the status of the message with this number.
pub(super) async fn standing(store: &Store, seq: i64) -> Result<Option<Listed>, Error> {
    let numbers = Numbers { start: seq, end: seq.saturating_add(1) };
    let condition = listing::condition(&Search::default());
    let sql = Sql::of(store).list(Sources::ALL, &numbers, &condition, None, 1);
    Ok(listing::listed(store.asking.copy(sql).await?)?.into_iter().next())
}

async fn number_of(store: &Store, id: MessageId) -> Result<Option<i64>, Error> {
    let sql = Sql::of(store);
    if let Some(seq) = one(store, format!("SELECT seq FROM {} AND id = '{id}'", sql.own("dead_letter"))).await? {
        return Ok(Some(seq));
    }
    for made_at in [claimed_at(store, id).await?, made_at(id)].into_iter().flatten() {
        let start = number_at(store, made_at.saturating_sub(NEAR).unwrap_or(Timestamp::MIN)).await?;
        let end = number_at(store, made_at.saturating_add(NEAR).unwrap_or(Timestamp::MAX)).await?;
        if let Some(seq) = within(store, id, &Numbers { start, end }).await? {
            return Ok(Some(seq));
        }
    }
    if let Some(seq) =
        one(store, format!("SELECT seq FROM {} AND id = '{id}' LIMIT 1", sql.own("parked_message"))).await?
    {
        return Ok(Some(seq));
    }
    // A scheduled message entered the log long after its id was created.
    let began = Instant::now();
    let mut width = Width::first();
    let mut before = i64::MAX;
    while let Some((top, _)) = probe(store, sql.top(Sources::LOG, before)).await? {
        if began.elapsed() > BUDGET {
            return Err(Error::NotFoundInTime { id, budget: BUDGET });
        }
        let asked = Instant::now();
        let numbers = Numbers { start: top.saturating_sub(width.get()), end: top.saturating_add(1) };
        if let Some(seq) = within(store, id, &numbers).await? {
            return Ok(Some(seq));
        }
        width.adapt(asked.elapsed());
        before = numbers.start;
    }
    Ok(None)
}

async fn within(store: &Store, id: MessageId, numbers: &Numbers) -> Result<Option<i64>, Error> {
    let sql = format!(
        "SELECT seq FROM {}.message WHERE seq >= {} AND seq < {} AND id = '{id}' LIMIT 1",
        store.schema, numbers.start, numbers.end
    );
    one(store, sql).await
}

async fn one(store: &Store, sql: String) -> Result<Option<i64>, Error> {
    let mut rows = Rows::new(store.asking.copy(sql).await?, 1)?;
    let row = rows.next_row()?;
    row.map(|mut row| row.int8()).transpose()
}

/// Returns when a caller used this id.
async fn claimed_at(store: &Store, id: MessageId) -> Result<Option<Timestamp>, Error> {
    let sql = format!("SELECT claimed_at FROM {}.dedup_id WHERE id = '{id}'", store.schema);
    let mut rows = Rows::new(store.asking.copy(sql).await?, 1)?;
    let row = rows.next_row()?;
    row.map(|mut row| row.timestamp()).transpose()
}

/// Returns the creation time that a version 7 id contains.
fn made_at(id: MessageId) -> Option<Timestamp> {
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
    fn a_version_7_id_tells_when_it_was_made() {
        let time = made_at(MessageId::v7(1_700_000_000_123, [0xff; 10])).expect("a time");
        assert_eq!(time.as_millisecond(), 1_700_000_000_123);
        assert_eq!(made_at("5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10".parse().expect("an id")), None);
    }
}
