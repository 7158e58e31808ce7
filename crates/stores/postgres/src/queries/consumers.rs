//! Statements of operators for consumers, and the decoding of their results.

use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::inbox::admin::{
    ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, LaneInfo, MemberInfo, RemoveOutcome, RetryQueueInfo,
};
use relevo_core::inbox::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterState, MarkRequest};
use relevo_core::inbox::replays::{EnqueueOutcome, Replay, ReplayBatch, ReplayPlan, ReplayState};
use relevo_core::inbox::{DedupId, InboxMessage};
use serde_json::{Value, json};
use sqlx::postgres::PgRow;

use super::inbox::results::{inbox_message, parse_state};
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

pub(crate) fn list_dead_letters(schema: &str, filter: &DeadLetterFilter, limit: usize) -> String {
    format!(
        "SELECT d.consumer, d.queue, d.class, d.error, d.backtrace, d.attempts, {schema}.epoch_micros(d.arrived_at), \
         {schema}.epoch_micros(d.dead_at), d.redrives, d.state, d.reason, d.id, d.replay, d.header_names, d.header_values, \
         d.payload, d.address, d.lane, d.broker_offset::text \
         FROM {schema}.inbox_dead_letter AS d WHERE {schema}.inbox_dead_letter_matches({}, d) ORDER BY d.dead_at, d.ordinal LIMIT {limit}",
        filter_literal(filter)
    )
}

/// Calls `inbox_redrive`, which returns the number of dead letters.
pub(crate) fn redrive(schema: &str, mark: &MarkRequest) -> String {
    let per_second = mark
        .rate_per_second
        .map_or_else(|| "NULL".to_owned(), |rate| i32::try_from(rate).unwrap_or(i32::MAX).to_string());
    format!("SELECT {schema}.inbox_redrive({}, {per_second})", mark_arguments(mark))
}

/// Calls `inbox_discard`, which returns the number of dead letters.
pub(crate) fn discard(schema: &str, mark: &MarkRequest) -> String {
    format!("SELECT {schema}.inbox_discard({})", mark_arguments(mark))
}

fn mark_arguments(mark: &MarkRequest) -> String {
    let (by, reason) = (literal(&mark.by), literal(&mark.reason));
    format!("{}, {by}, {reason}, {}", filter_literal(&mark.filter), mark.dry_run)
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
    let ids: Vec<_> = filter.ids.iter().map(ToString::to_string).collect();
    json_literal(&json!({
        "consumer": filter.consumer, "ids": ids, "queue": filter.queue, "class": filter.class,
        "state": filter.state.map(DeadLetterState::as_str), "since": filter.since.map(|at| at.to_string()),
        "until": filter.until.map(|at| at.to_string()),
    }))
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

pub(crate) fn dead_letter(row: &PgRow) -> Result<DeadLetter, Error> {
    Ok(DeadLetter {
        consumer: column(row, 0)?,
        message: inbox_message(row, 11, column::<String>(row, 1)?.into())?,
        class: column(row, 2)?,
        error: column(row, 3)?,
        backtrace: column(row, 4)?,
        attempts: count_u32(column(row, 5)?)?,
        arrived_at: timestamp(column(row, 6)?)?,
        dead_at: timestamp(column(row, 7)?)?,
        redrives: count_u32(column(row, 8)?)?,
        state: DeadLetterState::parse(column(row, 9)?)
            .ok_or(Error::UnexpectedResponse("the state of a dead letter is unknown"))?,
        reason: column(row, 10)?,
    })
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
