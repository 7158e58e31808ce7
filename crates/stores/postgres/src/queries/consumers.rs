//! Statements of operators for consumers, and the decoding of their results.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::MessageId;
use relevo_core::broker_consumer::Lane;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterContent, DeadLetterFilter, DeadLetterPage, DeadLetterSummary, MarkAction, MarkRequest,
};
use relevo_core::inbox::admin::{
    ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, LaneInfo, MemberInfo, RemoveOutcome, RetryQueueInfo,
};
use relevo_core::inbox::replays::{EnqueueOutcome, Replay, ReplayBatch, ReplayPlan, ReplayState};
use relevo_core::inbox::{DedupId, InboxMessage};
use serde_json::Value;
use sqlx::postgres::PgRow;

use super::dead_letters::{filter_json, mark_of, parse_state as parse_dead_letter_state};
use super::inbox::results::{offset, parse_state, raw_message};
use super::inbox::{Body, message_array};
use super::{column, count_u32, count_u64, scalar, timestamp};
use crate::classify::Error;
use crate::literal::{json_literal, literal, optional_literal};

/// Selects all consumers, or only the one with this name.
pub(crate) fn list_consumers(schema: &str, only: Option<&str>) -> String {
    format!(
        "SELECT c.*, round(date_part('epoch', k.done_retention) * 1000)::bigint \
         FROM {schema}.inbox_list_consumers({}) AS c \
         LEFT JOIN {schema}.inbox_consumer AS k ON k.name = c.name ORDER BY c.name",
        optional_literal(only)
    )
}

/// Selects the members, the lanes and at most `limit` retry queues of a consumer.
pub(crate) fn get_consumer(schema: &str, name: &str, limit: usize) -> String {
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    format!("SELECT {schema}.inbox_show_consumer({}, {limit})::text", literal(name))
}

pub(crate) fn set_control(schema: &str, consumer: &str, lane: Option<&str>, control: ConsumerControl) -> String {
    let control = match control {
        ConsumerControl::Pause => "pause",
        ConsumerControl::Resume => "resume",
        ConsumerControl::OpenBreaker => "open",
        ConsumerControl::CloseBreaker => "close",
        ConsumerControl::AutoBreaker => "free",
    };
    format!("SELECT {schema}.inbox_set_control({}, {}, '{control}')", literal(consumer), optional_literal(lane))
}

pub(crate) fn remove_consumer(schema: &str, consumer: &str) -> String {
    format!("SELECT {schema}.inbox_remove_consumer({})", literal(consumer))
}

pub(crate) fn remove_outcome(rows: &[PgRow]) -> Result<RemoveOutcome, Error> {
    match scalar(rows)? {
        "gone" => Ok(RemoveOutcome::Removed),
        "alive" => Ok(RemoveOutcome::MembersAlive),
        "unknown" => Ok(RemoveOutcome::Unknown),
        _ => Err(Error::UnexpectedResponse("the outcome of removing a consumer is unknown")),
    }
}

const DEAD_LETTER: &str = "d.consumer, d.id, d.replay, d.queue, d.class, d.error, d.attempts, \
                           @.epoch_micros(d.arrived_at), @.epoch_micros(d.dead_at), d.redrives, d.state, \
                           @.epoch_micros(d.marked_at), d.marked_by, d.reason, d.ordinal, d.header_names, d.header_values";

/// The position of a dead letter in a list: its time in microseconds and its ordinal.
pub(crate) type Cursor = (i64, i64);

/// Parses [`DeadLetterPage::next`].
pub(crate) fn parse_cursor(text: &str) -> Result<Cursor, Error> {
    let parsed = text.split_once('/').and_then(|(at, ordinal)| Some((at.parse().ok()?, ordinal.parse().ok()?)));
    parsed.ok_or_else(|| Error::InvalidCursor(text.to_owned()))
}

/// Selects summaries after this position, and one more than the limit.
pub(crate) fn list_dead_letters(
    schema: &str,
    filter: &DeadLetterFilter,
    after: Option<Cursor>,
    limit: usize,
) -> String {
    let after = after.map_or_else(String::new, |(at, ordinal)| {
        format!(" AND (d.dead_at, d.ordinal) > (timestamptz 'epoch' + interval '1 microsecond' * {at}, {ordinal})")
    });
    select_dead_letters(schema, "", filter, &after, limit.saturating_add(1))
}

/// Selects dead letters with their messages.
pub(crate) fn get_dead_letters(schema: &str, filter: &DeadLetterFilter, limit: usize) -> String {
    let content = ", d.payload, d.address, d.lane, d.broker_offset::text, d.backtrace";
    select_dead_letters(schema, content, filter, "", limit)
}

fn select_dead_letters(schema: &str, content: &str, filter: &DeadLetterFilter, after: &str, limit: usize) -> String {
    let summary = DEAD_LETTER.replace('@', schema);
    format!(
        "SELECT {summary}{content} FROM {schema}.inbox_dead_letter AS d \
         WHERE {schema}.inbox_dead_letter_matches({}, d){after} ORDER BY d.dead_at, d.ordinal LIMIT {limit}",
        filter_literal(filter)
    )
}

/// Calls `inbox_redrive` or `inbox_discard`, which return the number of dead letters.
pub(crate) fn mark_dead_letters(schema: &str, request: &MarkRequest) -> String {
    let filter = filter_literal(&request.filter);
    let (by, reason, dry_run) = (literal(&request.by), literal(&request.reason), request.dry_run);
    match (request.action, request.rate_per_second) {
        (MarkAction::Discard, _) => format!("SELECT {schema}.inbox_discard({filter}, {by}, {reason}, {dry_run})"),
        (MarkAction::Redrive, None) => format!("SELECT {schema}.inbox_redrive({filter}, {by}, {reason}, {dry_run})"),
        (MarkAction::Redrive, Some(rate)) => {
            let rate = i32::try_from(rate).unwrap_or(i32::MAX);
            format!("SELECT {schema}.inbox_redrive({filter}, {by}, {reason}, {dry_run}, {rate})")
        }
    }
}

/// Selects the inbox rows of a message. The primary key begins with the consumer, so the query steps from one consumer
/// name to the next and looks up the id for each.
pub(crate) fn find_message(schema: &str, id: MessageId) -> String {
    format!(
        "WITH RECURSIVE name (n) AS ((SELECT consumer FROM {schema}.inbox ORDER BY consumer LIMIT 1) UNION ALL \
         SELECT (SELECT o.consumer FROM {schema}.inbox AS o WHERE o.consumer > name.n ORDER BY o.consumer LIMIT 1) \
         FROM name WHERE name.n IS NOT NULL) \
         SELECT i.consumer, i.replay, i.state, i.unfinished_starts, \
         CASE WHEN isfinite(i.entered_at) THEN {schema}.epoch_micros(i.entered_at) END \
         FROM name CROSS JOIN LATERAL (SELECT * FROM {schema}.inbox AS o WHERE o.consumer = name.n AND o.message_id = '{id}') AS i \
         ORDER BY i.consumer, i.replay"
    )
}

pub(crate) fn create_replay(schema: &str, plan: &ReplayPlan) -> String {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    format!(
        "SELECT {schema}.inbox_create_replay({}, {}, {}, {}, {}, {}, {})",
        literal(&plan.consumer),
        literal(&plan.source),
        number(plan.count),
        plan.rate,
        number(plan.dead_letters_max),
        literal(&plan.requested_by),
        literal(&plan.reason),
    )
}

pub(crate) fn enqueue_replay(schema: &str, consumer: &str, number: u32, batch: &ReplayBatch<'_>) -> String {
    let messages: Vec<&InboxMessage> = batch.messages.iter().collect();
    format!(
        "SELECT {schema}.inbox_feed_replay({}, {number}, {}, {}, {})",
        literal(consumer),
        message_array(schema, &messages, Body::Full),
        optional_literal(batch.cursor),
        optional_literal(batch.next_cursor)
    )
}

pub(crate) fn enqueue_outcome(rows: &[PgRow]) -> Result<EnqueueOutcome, Error> {
    match scalar(rows)? {
        "kept" => Ok(EnqueueOutcome::Enqueued),
        "moved" => Ok(EnqueueOutcome::CursorMoved),
        "ended" => Ok(EnqueueOutcome::NotRunning),
        _ => Err(Error::UnexpectedResponse("the outcome of a replay batch is unknown")),
    }
}

pub(crate) fn stop_replay(schema: &str, consumer: &str, number: u32) -> String {
    format!("SELECT {schema}.inbox_stop_replay({}, {number})", literal(consumer))
}

pub(crate) fn resume_replay(schema: &str, consumer: &str, number: u32, more_dead_letters: u64) -> String {
    let more = i64::try_from(more_dead_letters).unwrap_or(i64::MAX).min(i64::MAX / 2);
    format!("SELECT {schema}.inbox_resume_replay({}, {number}, {more})", literal(consumer))
}

pub(crate) fn list_replays(schema: &str, consumer: &str) -> String {
    let consumer = literal(consumer);
    format!(
        "SELECT r.*, {schema}.inbox_replay_ready({consumer}, r.number) FROM {schema}.inbox_list_replays({consumer}) AS r"
    )
}

fn filter_literal(filter: &DeadLetterFilter) -> String {
    let mut value = filter_json(filter);
    value["consumer"] = filter.owner_name().into();
    json_literal(&value)
}

pub(crate) fn consumer_summary(row: &PgRow) -> Result<ConsumerSummary, Error> {
    let at = |index| column::<Option<i64>>(row, index)?.map(timestamp).transpose();
    Ok(ConsumerSummary {
        name: column(row, 0)?,
        paused: column(row, 1)?,
        members: u32::try_from(column::<i64>(row, 2)?)
            .map_err(|_| Error::UnexpectedResponse("a count is out of range"))?,
        heartbeat_at: at(3)?,
        last_message_at: at(4)?,
        waiting: count_u64(column(row, 5)?)?,
        dead: count_u64(column(row, 6)?)?,
        done_retention: column::<Option<i64>>(row, 7)?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
    })
}

/// Reads the result of [`get_consumer`]. Returns `None` if it is malformed.
pub(crate) fn consumer_details(consumer: ConsumerSummary, answer: &Value) -> Option<ConsumerDetails> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let at = |value: &Value| value.as_i64().and_then(|micros| timestamp(micros).ok());
    let member = |m: &Value| {
        Some(MemberInfo {
            name: text(&m["name"])?,
            alive: m["alive"].as_bool()?,
            heartbeat_at: at(&m["beat_at"])?,
            last_message_at: at(&m["last_message_at"]),
        })
    };
    let lane = |l: &Value| {
        Some(LaneInfo {
            name: text(&l["name"])?,
            owner: text(&l["owner"]),
            epoch: l["epoch"].as_i64()?,
            settled_offset: l["settled_offset"].as_str().and_then(|mark| mark.parse().ok()),
            paused: l["paused"].as_bool()?,
            breaker: text(&l["breaker_reason"]),
            breaker_override: l["breaker_forced"].as_bool(),
        })
    };
    let queue = |q: &Value| {
        let id = MessageId::from_uuid(q["id"].as_str()?.parse().ok()?);
        Some(RetryQueueInfo {
            queue: text(&q["queue"])?.into(),
            head: DedupId { id, replay: u32::try_from(q["replay"].as_u64()?).ok()? },
            length: q["length"].as_u64()?,
            attempts: u32::try_from(q["attempts"].as_u64()?).ok()?,
            next_attempt_at: at(&q["next_at"]),
            error: text(&q["error"])?,
        })
    };
    Some(ConsumerDetails {
        summary: consumer,
        members: answer["members"].as_array()?.iter().map(member).collect::<Option<_>>()?,
        lanes: answer["lanes"].as_array()?.iter().map(lane).collect::<Option<_>>()?,
        queues: answer["queues"].as_array()?.iter().map(queue).collect::<Option<_>>()?,
    })
}

/// Reads the rows of [`list_dead_letters`].
pub(crate) fn dead_letter_page(rows: &[PgRow], limit: usize) -> Result<DeadLetterPage, Error> {
    let shown = rows.get(..limit).unwrap_or(rows);
    let letters: Vec<_> = shown.iter().map(dead_letter_summary).collect::<Result<_, _>>()?;
    let mut next = None;
    if let Some(last) = shown.last().filter(|_| rows.len() > limit) {
        next = Some(format!("{}/{}", column::<i64>(last, 8)?, column::<i64>(last, 14)?));
    }
    Ok(DeadLetterPage { letters, next })
}

fn dead_letter_summary(row: &PgRow) -> Result<DeadLetterSummary, Error> {
    let received = raw_message(row, 15, Bytes::new())?.decode().ok().map(|received| received.message);
    let marked_at = column::<Option<i64>>(row, 11)?.map(timestamp).transpose()?;
    Ok(DeadLetterSummary {
        owner: column(row, 0)?,
        id: MessageId::from_uuid(column(row, 1)?),
        replay: count_u32(column(row, 2)?)?,
        topic: received.as_ref().map(|message| message.topic.to_string()),
        key: column(row, 3)?,
        kind: received.as_ref().map(|message| message.kind.to_string()),
        route: None,
        class: column(row, 4)?,
        error: column(row, 5)?,
        attempts: count_u32(column(row, 6)?)?,
        entered_at: timestamp(column(row, 7)?)?,
        dead_at: timestamp(column(row, 8)?)?,
        redrives: count_u32(column(row, 9)?)?,
        state: parse_dead_letter_state(column(row, 10)?)?,
        mark: mark_of(marked_at, column(row, 12)?, column(row, 13)?),
    })
}

/// Reads the rows of [`get_dead_letters`].
pub(crate) fn dead_letter(row: &PgRow) -> Result<DeadLetter, Error> {
    let summary = dead_letter_summary(row)?;
    let message = InboxMessage {
        dedup_id: DedupId { id: summary.id, replay: summary.replay },
        queue: summary.key.as_str().into(),
        raw: raw_message(row, 15, column::<Vec<u8>>(row, 17)?.into())?,
        address: column::<&str>(row, 18)?.into(),
        lane: Lane::new(column::<&str>(row, 19)?),
        offset: offset(column(row, 20)?)?,
        attempts: summary.attempts,
    };
    Ok(DeadLetter { summary, content: DeadLetterContent::Inbox { message, backtrace: column(row, 21)? } })
}

pub(crate) fn inbox_record(row: &PgRow, id: MessageId) -> Result<InboxRecord, Error> {
    Ok(InboxRecord {
        consumer: column(row, 0)?,
        dedup_id: DedupId { id, replay: count_u32(column(row, 1)?)? },
        state: parse_state(column(row, 2)?)?,
        unfinished_starts: count_u32(column(row, 3)?)?,
        at: column::<Option<i64>>(row, 4)?.map(timestamp).transpose()?,
    })
}

pub(crate) fn replay(row: &PgRow, consumer: &str) -> Result<Replay, Error> {
    let count_at = |index| count_u64(column(row, index)?);
    Ok(Replay {
        number: count_u32(column(row, 0)?)?,
        plan: ReplayPlan {
            consumer: consumer.to_owned(),
            source: column(row, 1)?,
            count: count_at(2)?,
            rate: u32::try_from(column::<i64>(row, 3)?)
                .map_err(|_| Error::UnexpectedResponse("a rate is out of range"))?,
            dead_letters_max: count_at(4)?,
            requested_by: column(row, 5)?,
            reason: column(row, 6)?,
        },
        state: ReplayState::parse(column(row, 7)?)
            .ok_or(Error::UnexpectedResponse("the state of a replay is unknown"))?,
        enqueued: count_at(8)?,
        done: count_at(9)?,
        dead: count_at(10)?,
        ready: count_at(13)?,
        cursor: column(row, 11)?,
        started_at: timestamp(column(row, 12)?)?,
    })
}
