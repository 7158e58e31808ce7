//! Decodes the results of inbox statements.

use std::collections::BTreeMap;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::broker_consumer::{Lane, RawMessage};
use relevo_core::inbox::members::HeartbeatReply;
use relevo_core::inbox::retries::{ClaimedQueue, QueueClaim, QueuedMessage};
use relevo_core::inbox::transactions::EnterOutcome;
use relevo_core::inbox::{DedupId, InboxMessage, InboxState, LaneLease};
use serde_json::Value;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::{column, count_u32, count_u64, scalar};

pub(crate) fn parse_state(word: &str) -> Result<InboxState, Error> {
    InboxState::parse(word).ok_or(Error::UnexpectedResponse("a state is not known"))
}

/// The result of inserting messages.
pub(crate) enum InsertResult {
    Each(BTreeMap<DedupId, EnterOutcome>),
    Fenced,
    Busy,
}

/// Reads the result of `inbox_insert_many`, which returns no row for a new message.
pub(crate) fn insert_result(rows: &[PgRow]) -> Result<InsertResult, Error> {
    let text: Option<&str> = scalar(rows)?;
    match text {
        Some("lost") => Ok(InsertResult::Fenced),
        Some("busy") => Ok(InsertResult::Busy),
        other => Ok(InsertResult::Each(other.unwrap_or_default().lines().map(parse_result).collect::<Result<_, _>>()?)),
    }
}

fn parse_result(line: &str) -> Result<(DedupId, EnterOutcome), Error> {
    let malformed = || Error::UnexpectedResponse("an entry is malformed");
    let mut words = line.split(' ');
    let mut next = || words.next().ok_or_else(malformed);
    let id = MessageId::from_uuid(next()?.parse().map_err(|_| malformed())?);
    let replay = next()?.parse().map_err(|_| malformed())?;
    let entered = match next()? {
        "behind" => EnterOutcome::QueuedBehind,
        word => EnterOutcome::Duplicate(parse_state(word)?),
    };
    Ok((DedupId { id, replay }, entered))
}

/// Returns one result per arrival, in the given order. A second arrival with the same id is a repeat of the first.
pub(crate) fn results_in_order(
    arrivals: &[InboxMessage],
    mut answers: BTreeMap<DedupId, EnterOutcome>,
) -> Vec<EnterOutcome> {
    let mut results = Vec::with_capacity(arrivals.len());
    for InboxMessage { dedup_id: entry, .. } in arrivals {
        let entered = answers.get(entry).copied().unwrap_or(EnterOutcome::New);
        let from_now_on = match entered {
            EnterOutcome::New => InboxState::Done,
            EnterOutcome::QueuedBehind => InboxState::Waiting,
            EnterOutcome::Duplicate(state) => state,
        };
        answers.insert(*entry, EnterOutcome::Duplicate(from_now_on));
        results.push(entered);
    }
    results
}

/// Reads claimed queues, each with its messages in order.
pub(crate) fn claimed_queues(rows: &[PgRow]) -> Result<Vec<ClaimedQueue>, Error> {
    let mut dues: Vec<ClaimedQueue> = Vec::new();
    for row in rows {
        let token: Uuid = column(row, 1)?;
        if dues.last().is_none_or(|due| due.claim.token != token) {
            let claim = QueueClaim { queue: column::<String>(row, 0)?.into(), token };
            dues.push(ClaimedQueue { claim, messages: Vec::new() });
        }
        let number: Option<i64> = column(row, 4)?;
        if let (Some(number), Some(due)) = (number, dues.last_mut()) {
            due.messages.push(QueuedMessage {
                ordinal: number,
                message: inbox_message(row, 5, due.claim.queue.clone(), count_u32(column(row, 2)?)?)?,
                unfinished_starts: count_u32(column(row, 3)?)?,
            });
        }
    }
    Ok(dues)
}

/// Reads the columns from `id` to `broker_offset`. The queue and the attempts are arguments.
pub(crate) fn inbox_message(
    row: &PgRow,
    first: usize,
    queue: bytestring::ByteString,
    attempts: u32,
) -> Result<InboxMessage, Error> {
    Ok(InboxMessage {
        dedup_id: DedupId {
            id: MessageId::from_uuid(column(row, first)?),
            replay: count_u32(column(row, first + 1)?)?,
        },
        queue,
        raw: raw_message(row, first + 2, column::<Vec<u8>>(row, first + 4)?.into())?,
        address: column::<&str>(row, first + 5)?.into(),
        lane: Lane::new(column::<&str>(row, first + 6)?),
        offset: offset(column(row, first + 7)?)?,
        attempts,
    })
}

/// Reads the names and values of headers from two columns.
pub(crate) fn raw_message(row: &PgRow, first: usize, payload: Bytes) -> Result<RawMessage, Error> {
    let names: Vec<Vec<u8>> = column(row, first)?;
    let values: Vec<Vec<u8>> = column(row, first + 1)?;
    if names.len() != values.len() {
        return Err(Error::UnexpectedResponse("headers are malformed"));
    }
    let text =
        |name| String::from_utf8(name).map_err(|_| Error::UnexpectedResponse("the name of a header is not UTF-8"));
    let headers = names.into_iter().zip(values).map(|(name, value)| Ok((text(name)?, Bytes::from(value))));
    Ok(RawMessage { headers: headers.collect::<Result<_, Error>>()?, payload })
}

/// Parses an offset, which may exceed a `bigint`.
pub(crate) fn offset(text: Option<&str>) -> Result<Option<u64>, Error> {
    text.map(str::parse).transpose().map_err(|_| Error::UnexpectedResponse("an offset is not a number"))
}

/// Reads the result of `inbox_heartbeat`: the state of the member's row, and the controls.
pub(crate) fn heartbeat_reply(answer: &Value, beat_before: bool) -> Result<HeartbeatReply, Error> {
    let lane = |value: &Value| value.as_str().map(Lane::new);
    let read = || -> Option<HeartbeatReply> {
        Some(HeartbeatReply {
            paused: answer["paused"].as_bool()?,
            paused_lanes: answer["paused_lanes"].as_array()?.iter().map(lane).collect::<Option<_>>()?,
            breaker_overrides: answer["breaker_forced"]
                .as_array()?
                .iter()
                .map(|pair| Some((lane(&pair[0])?, pair[1].as_bool()?)))
                .collect::<Option<_>>()?,
            expired: answer["expired"].as_bool()? || (beat_before && answer["absent"].as_bool()?),
        })
    };
    read().ok_or(Error::UnexpectedResponse("orders are malformed"))
}

/// The row that `inbox_claim_call` returns.
pub(crate) struct ClaimRow<'r> {
    pub(crate) outcome: &'r str,
    pub(crate) token: Option<Uuid>,
    pub(crate) unfinished_starts: u32,
    pub(crate) remaining_ms: u64,
}

pub(crate) fn claim_row(rows: &[PgRow]) -> Result<ClaimRow<'_>, Error> {
    let row = rows.first().ok_or(Error::UnexpectedResponse("no row"))?;
    Ok(ClaimRow {
        outcome: column(row, 0)?,
        token: column(row, 1)?,
        unfinished_starts: count_u32(column(row, 2)?)?,
        remaining_ms: count_u64(column::<Option<i64>>(row, 3)?.unwrap_or(0))?,
    })
}

/// Reads the lanes that `owner` acquired.
pub(crate) fn lane_leases(rows: &[PgRow], owner: Uuid) -> Result<Vec<LaneLease>, Error> {
    let lease = |row| Ok(LaneLease { lane: Lane::new(column::<&str>(row, 0)?), epoch: column(row, 1)?, owner });
    rows.iter().map(lease).collect()
}
