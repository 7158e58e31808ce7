//! Decodes the results of inbox statements.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::consume::{Lane, Raw};
use relevo_core::inbox::{Arrival, Due, Entered, Entry, Orders, State, Waiting};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::column;

/// Returns the first column of the only row.
pub(super) fn only<'r, T>(rows: &'r [PgRow]) -> Result<T, Error>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    column(rows.first().ok_or(Error::Answer("no row"))?, 0)
}

pub(super) fn state(word: &str) -> Result<State, Error> {
    State::of(word).ok_or(Error::Answer("a state is not known"))
}

/// The result of inserting messages.
pub(super) enum Answers {
    Each(BTreeMap<Entry, Entered>),
    Lost,
    Busy,
}

/// Reads the result of `inbox_insert_many`, which returns no row for a new message.
pub(super) fn answers(rows: &[PgRow]) -> Result<Answers, Error> {
    let text: Option<&str> = only(rows)?;
    match text {
        Some("lost") => Ok(Answers::Lost),
        Some("busy") => Ok(Answers::Busy),
        other => Ok(Answers::Each(other.unwrap_or_default().lines().map(answer).collect::<Result<_, _>>()?)),
    }
}

fn answer(line: &str) -> Result<(Entry, Entered), Error> {
    let malformed = || Error::Answer("an entry is malformed");
    let mut words = line.split(' ');
    let mut next = || words.next().ok_or_else(malformed);
    let id = MessageId::from_uuid(next()?.parse().map_err(|_| malformed())?);
    let replay = next()?.parse().map_err(|_| malformed())?;
    let entered = match next()? {
        "behind" => Entered::Behind,
        word => Entered::Repeat(state(word)?),
    };
    Ok((Entry { id, replay }, entered))
}

/// Returns one result per arrival, in the given order. A second arrival with the same id is a repeat of the first.
pub(super) fn in_order(arrivals: &[Arrival], mut answers: BTreeMap<Entry, Entered>) -> Vec<Entered> {
    let mut told = Vec::with_capacity(arrivals.len());
    for Arrival { entry, .. } in arrivals {
        let entered = answers.get(entry).copied().unwrap_or(Entered::New);
        let from_now_on = match entered {
            Entered::New => State::Done,
            Entered::Behind => State::Waiting,
            Entered::Repeat(state) => state,
        };
        answers.insert(*entry, Entered::Repeat(from_now_on));
        told.push(entered);
    }
    told
}

/// Reads claimed queues, each with its messages in order.
pub(super) fn dues(rows: &[PgRow]) -> Result<Vec<Due>, Error> {
    let mut dues: Vec<Due> = Vec::new();
    for row in rows {
        let token: Uuid = column(row, 1)?;
        if dues.last().is_none_or(|due| due.token != token) {
            dues.push(Due { queue: column::<String>(row, 0)?.into(), token, messages: Vec::new() });
        }
        let number: Option<i64> = column(row, 5)?;
        if let (Some(number), Some(due)) = (number, dues.last_mut()) {
            due.messages.push(Waiting {
                number,
                arrival: arrival(row, 6, due.queue.clone())?,
                attempts: count(column(row, 2)?)?,
                started: count(column(row, 3)?)?,
                reopened: column::<Option<bool>>(row, 4)?.unwrap_or(false),
            });
        }
    }
    Ok(dues)
}

/// Reads the columns from `id` to `correlation`. The queue is an argument.
pub(super) fn arrival(row: &PgRow, first: usize, queue: bytestring::ByteString) -> Result<Arrival, Error> {
    let names: Vec<Vec<u8>> = column(row, first + 2)?;
    let values: Vec<Vec<u8>> = column(row, first + 3)?;
    if names.len() != values.len() {
        return Err(Error::Answer("headers are malformed"));
    }
    let text = |name| String::from_utf8(name).map_err(|_| Error::Answer("the name of a header is not UTF-8"));
    let headers = names.into_iter().zip(values).map(|(name, value)| Ok((text(name)?, Bytes::from(value))));
    let place: Option<&str> = column(row, first + 7)?;
    Ok(Arrival {
        entry: Entry { id: MessageId::from_uuid(column(row, first)?), replay: count(column(row, first + 1)?)? },
        queue,
        raw: Raw {
            headers: headers.collect::<Result<_, Error>>()?,
            payload: column::<Vec<u8>>(row, first + 4)?.into(),
        },
        address: column::<&str>(row, first + 5)?.into(),
        lane: Lane::new(column::<&str>(row, first + 6)?),
        place: place.map(str::parse).transpose().map_err(|_| Error::Answer("a place is no number"))?,
        correlation: column::<Option<String>>(row, first + 8)?.map(Into::into),
    })
}

/// Converts a count. NULL is zero.
pub(super) fn count(number: Option<i32>) -> Result<u32, Error> {
    u32::try_from(number.unwrap_or(0)).map_err(|_| Error::Answer("a count is negative"))
}

pub(super) fn whole(number: i64) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| Error::Answer("a count is negative"))
}

/// Converts microseconds since 1970.
pub(super) fn time(micros: i64) -> Result<Timestamp, Error> {
    Timestamp::from_microsecond(micros).map_err(|_| Error::Answer("a time is out of range"))
}

/// Reads the result of `inbox_heartbeat`: the state of the member's row, and the controls.
pub(super) fn orders(answer: &Value, beat_before: bool) -> Result<Orders, Error> {
    let lane = |value: &Value| value.as_str().map(Lane::new);
    let read = || -> Option<Orders> {
        Some(Orders {
            paused: answer["paused"].as_bool()?,
            paused_lanes: answer["paused_lanes"].as_array()?.iter().map(lane).collect::<Option<_>>()?,
            forced: answer["breaker_forced"]
                .as_array()?
                .iter()
                .map(|pair| Some((lane(&pair[0])?, pair[1].as_bool()?)))
                .collect::<Option<_>>()?,
            was_dead: answer["expired"].as_bool()? || (beat_before && answer["absent"].as_bool()?),
        })
    };
    read().ok_or(Error::Answer("orders are malformed"))
}

/// The row that `inbox_claim_call` returns.
pub(super) struct ClaimRow<'r> {
    pub(super) word: &'r str,
    pub(super) token: Option<Uuid>,
    pub(super) started: u32,
    pub(super) rest_ms: u64,
}

pub(super) fn claim(rows: &[PgRow]) -> Result<ClaimRow<'_>, Error> {
    let row = rows.first().ok_or(Error::Answer("no row"))?;
    Ok(ClaimRow {
        word: row.try_get(0)?,
        token: column(row, 1)?,
        started: count(column(row, 2)?)?,
        rest_ms: whole(column::<Option<i64>>(row, 3)?.unwrap_or(0))?,
    })
}
