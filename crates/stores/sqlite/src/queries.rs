//! Code that all statements share, and the decoding of their rows.

pub(crate) mod consumers;
pub(crate) mod dead_letters;
pub(crate) mod destinations;
pub(crate) mod inbox;
pub(crate) mod leases;
pub(crate) mod parked;
pub(crate) mod read;
pub(crate) mod retention;
pub(crate) mod settle;
pub(crate) mod status;
pub(crate) mod tail;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::AfterDead;
use relevo_core::message::{Headers, Message, MessageId};
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{ParkAction, PublishFailure};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::slot::SLOTS;
use serde_json::{Value, json};
use sqlx::sqlite::{Sqlite, SqliteConnection, SqliteRow};
use sqlx::{Decode, Row as _, Type};
use uuid::Uuid;

use crate::classify::Error;

/// Counting for operators stops here.
pub(crate) const COUNT_MAX: i64 = 10_000;

/// An SQL expression for the clock that every condition uses, in milliseconds since 1970.
macro_rules! now {
    () => {
        "CAST(round(unixepoch('subsec') * 1000) AS INTEGER)"
    };
}
pub(crate) use now;

/// Reads the database clock.
pub(crate) async fn clock(connection: &mut SqliteConnection) -> Result<i64, Error> {
    column(&sqlx::query(concat!("SELECT ", now!())).fetch_one(connection).await?, 0)
}

pub(crate) fn column<'r, T>(row: &'r SqliteRow, index: usize) -> Result<T, Error>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    Ok(row.try_get(index)?)
}

/// Reads a number into a smaller type.
pub(crate) fn number<T: TryFrom<i64>>(row: &SqliteRow, index: usize) -> Result<T, Error> {
    T::try_from(column(row, index)?).map_err(|_| Error::unexpected_response("a number is out of range"))
}

fn text(row: &SqliteRow, index: usize) -> Result<ByteString, Error> {
    Ok(column::<String>(row, index)?.into())
}

pub(crate) fn id(row: &SqliteRow, index: usize) -> Result<MessageId, Error> {
    Ok(MessageId::from_uuid(column::<Uuid>(row, index)?))
}

pub(crate) fn timestamp(millis: i64) -> Result<Timestamp, Error> {
    Timestamp::from_millisecond(millis).map_err(|_| Error::unexpected_response("a time is out of range"))
}

pub(crate) fn time(row: &SqliteRow, index: usize) -> Result<Timestamp, Error> {
    timestamp(column(row, index)?)
}

pub(crate) fn optional_time(row: &SqliteRow, index: usize) -> Result<Option<Timestamp>, Error> {
    column::<Option<i64>>(row, index)?.map(timestamp).transpose()
}

/// Reads eight columns: id, time, topic, key, type, content type, headers, payload. A payload that was left out is
/// empty.
pub(crate) fn message(row: &SqliteRow, first: usize) -> Result<Message, Error> {
    let headers: Option<&str> = column(row, first + 6)?;
    let headers = match headers {
        None => Headers::new(),
        Some(text) => serde_json::from_str(text).map_err(|_| Error::unexpected_response("headers are not JSON"))?,
    };
    Ok(Message {
        id: id(row, first)?,
        created_at: time(row, first + 1)?,
        topic: text(row, first + 2)?,
        key: text(row, first + 3)?,
        kind: text(row, first + 4)?,
        content_type: text(row, first + 5)?,
        headers,
        payload: Bytes::from(column::<Option<Vec<u8>>>(row, first + 7)?.unwrap_or_default()),
    })
}

/// Reads ten columns: seq, slot, and those of [`message`].
pub(crate) fn entry(row: &SqliteRow, first: usize) -> Result<LogEntry, Error> {
    Ok(LogEntry {
        seq: column(row, first)?,
        slot: number(row, first + 1)?,
        message: Arc::new(message(row, first + 2)?),
    })
}

/// Reads three columns: first number of the window, last number of the window, settled number.
pub(crate) fn position(row: &SqliteRow, first: usize) -> Result<Position, Error> {
    Ok(Position::in_window(column(row, first)?, column(row, first + 1)?, column(row, first + 2)?))
}

/// Everything of a shard is settled up to this number. One number is enough, because numbers are in commit order.
pub(crate) fn settled_through(position: &Position) -> i64 {
    position.from_tick().max(position.settled_seq())
}

/// The slots of the leased shards as a JSON array, for `slot IN (SELECT value FROM json_each(?))`. `None` if the leases
/// cover the whole destination.
pub(crate) fn slots(leases: &[Lease]) -> Option<String> {
    let first = leases.first()?;
    if leases.len() >= usize::from(first.shard_count) {
        return None;
    }
    let shards = usize::from(first.shard_count.max(1));
    let mut slots: Vec<u16> = leases.iter().flat_map(|lease| (lease.shard..SLOTS).step_by(shards)).collect();
    slots.sort_unstable();
    Some(json!(slots).to_string())
}

/// Leases as a JSON array of [shard, epoch, owner].
fn lease_tokens(leases: &[Lease]) -> String {
    let owner = |lease: &Lease| lease.owner.simple().to_string().to_uppercase();
    let tokens: Value = leases.iter().map(|lease| json!([lease.shard, lease.epoch, owner(lease)])).collect();
    tokens.to_string()
}

/// Returns the leases that are still held, and the time. No other relay can acquire them before a transaction with the
/// write lock ends.
pub(crate) async fn held_leases(
    connection: &mut SqliteConnection,
    destination: &str,
    leases: &[Lease],
) -> Result<(Vec<Lease>, i64), Error> {
    let sql = concat!(
        "SELECT d.shards, ",
        now!(),
        ", (SELECT json_group_array(l.shard) FROM json_each(?2) AS w JOIN relevo_lease AS l \
            ON l.destination = d.name AND l.shard = w.value ->> 0 AND l.epoch = w.value ->> 1 \
            AND hex(l.owner) = w.value ->> 2) \
         FROM relevo_destination AS d WHERE d.name = ?1"
    );
    let row = sqlx::query(sql).bind(destination).bind(lease_tokens(leases)).fetch_optional(connection).await?;
    let row = row.ok_or_else(|| unknown_destination(destination))?;
    let shards: u16 = number(&row, 0)?;
    let held: Vec<u16> =
        serde_json::from_str(column(&row, 2)?).map_err(|_| Error::unexpected_response("shards are not numbers"))?;
    let is_held = |lease: &&Lease| lease.shard_count == shards && held.contains(&lease.shard);
    Ok((leases.iter().filter(is_held).copied().collect(), column(&row, 1)?))
}

pub(crate) fn unknown_destination(destination: &str) -> Error {
    Error::Refused(format!("destination `{destination}` does not exist; hint: add it with `relevo destination add`"))
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).min(1 << 50)
}

/// The parked state of a key after its head failed: state, next attempt, address.
pub(crate) fn parked_state(failure: &PublishFailure, now: i64) -> (&'static str, Option<i64>, Option<&str>) {
    match &failure.action {
        ParkAction::Retry { after } => ("retrying", Some(now + millis(*after)), None),
        ParkAction::Quarantine { after } => ("quarantined", Some(now + millis(*after)), None),
        ParkAction::HoldAddress { address, .. } => ("held", None, Some(address)),
        ParkAction::DeadLetter(AfterDead::Hold) => ("dead", None, None),
        ParkAction::DeadLetter(AfterDead::Continue) => ("retrying", Some(now), None),
    }
}

/// Holds an address. Only a failed probe extends the hold. New messages for the address were not tried, and would
/// postpone the probe forever.
pub(crate) async fn hold_address(
    connection: &mut SqliteConnection,
    destination: &str,
    failure: &PublishFailure,
    now: i64,
    probed: bool,
) -> Result<(), Error> {
    let ParkAction::HoldAddress { address, after } = &failure.action else { return Ok(()) };
    let sql = "INSERT INTO relevo_address_hold AS h (destination, address, class, error, since_ms, next_at_ms) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (destination, address) DO UPDATE \
               SET class = excluded.class, error = excluded.error, next_at_ms = excluded.next_at_ms \
               WHERE ?7 AND h.next_at_ms <= ?5";
    let insert = sqlx::query(sql).bind(destination).bind(&**address).bind(failure.class).bind(&failure.error);
    insert.bind(now).bind(now + millis(*after)).bind(probed).execute(connection).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(shard: u16, shards: u16) -> Lease {
        Lease { shard, shard_count: shards, epoch: 1, owner: Uuid::nil() }
    }

    #[test]
    fn the_slots_of_some_shards_are_listed_and_those_of_all_are_not() {
        assert_eq!(slots(&[lease(0, 2), lease(1, 2)]), None);
        let listed: Vec<u16> = serde_json::from_str(&slots(&[lease(1, 128), lease(0, 128)]).unwrap()).unwrap();
        assert_eq!(listed, [0, 1, 128, 129]);
    }

    #[test]
    fn a_shard_is_settled_up_to_one_number() {
        assert_eq!(settled_through(&Position::at(7)), 7);
        assert_eq!(settled_through(&Position::in_window(7, 20, 0)), 7);
        assert_eq!(settled_through(&Position::in_window(7, 20, 12)), 12);
    }
}
