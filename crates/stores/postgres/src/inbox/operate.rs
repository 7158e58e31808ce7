//! Operator commands for consumers.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::inbox::admin::{
    ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, LaneInfo, MemberInfo, Operate, RemoveOutcome,
    RetryQueueInfo, Trace,
};
use relevo_core::inbox::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterState, MarkRequest};
use relevo_core::inbox::replays::{EnqueueOutcome, Replay, ReplayBatch, ReplayPlan, ReplayState};
use relevo_core::inbox::{DedupId, InboxMessage};
use relevo_core::store::StoreError;
use serde_json::{Value, json};
use sqlx::postgres::PgRow;

use super::read::{self, count_u32, count_u64, inbox_message, scalar, timestamp};
use super::sql::{Body, message_array};
use crate::classify::Error;
use crate::connection::read_committed;
use crate::queries::{column, json_literal, json_response, literal};
use crate::store::Store;

impl Store {
    async fn call_inbox(&self, call: String) -> Result<Vec<PgRow>, Error> {
        self.operator_connection.query(read_committed(&call)).await
    }

    /// Lists all consumers, or only the one with this name.
    async fn inbox_consumers(&self, only: &str) -> Result<Vec<PgRow>, Error> {
        let schema = &self.schema;
        let remembers = "round(date_part('epoch', k.done_retention) * 1000)::bigint";
        let sql = format!(
            "SELECT c.*, {remembers} FROM {schema}.inbox_list_consumers({only}) AS c \
             LEFT JOIN {schema}.inbox_consumer AS k ON k.name = c.name ORDER BY c.name"
        );
        self.call_inbox(sql).await
    }

    /// `more` is appended to the arguments.
    async fn mark_inbox_dead_letters(&self, function: &str, mark: &MarkRequest, more: &str) -> Result<u64, StoreError> {
        let sql = format!(
            "SELECT {}.{function}({}, {}, {}, {}{more})",
            self.schema,
            filter(&mark.filter),
            literal(&mark.by),
            literal(&mark.reason),
            mark.dry_run,
        );
        Ok(count_u64(scalar(&self.call_inbox(sql).await?)?)?)
    }
}

#[async_trait]
impl Operate for Store {
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError> {
        Ok(self.inbox_consumers("NULL").await?.iter().map(consumer).collect::<Result<_, _>>()?)
    }

    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError> {
        let name = literal(name);
        let rows = self.inbox_consumers(&name).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let sql = format!("SELECT {}.inbox_show_consumer({name}, {limit})::text", self.schema);
        let answer = json_response(&self.call_inbox(sql).await?)?;
        Ok(Some(consumer_details(consumer(row)?, &answer).ok_or(Error::UnexpectedResponse("a consumer is malformed"))?))
    }

    async fn set_control(
        &self,
        consumer: &str,
        lane: Option<&str>,
        order: ConsumerControl,
    ) -> Result<bool, StoreError> {
        let what = match order {
            ConsumerControl::Pause => "pause",
            ConsumerControl::Resume => "resume",
            ConsumerControl::OpenBreaker => "open",
            ConsumerControl::CloseBreaker => "close",
            ConsumerControl::AutoBreaker => "free",
        };
        let lane = lane.map_or_else(|| "NULL".to_owned(), literal);
        let sql = format!("SELECT {}.inbox_set_control({}, {lane}, '{what}')", self.schema, literal(consumer));
        Ok(scalar(&self.call_inbox(sql).await?)?)
    }

    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError> {
        let sql = format!("SELECT {}.inbox_remove_consumer({})", self.schema, literal(consumer));
        match scalar(&self.call_inbox(sql).await?)? {
            "gone" => Ok(RemoveOutcome::Removed),
            "alive" => Ok(RemoveOutcome::MembersAlive),
            "unknown" => Ok(RemoveOutcome::Unknown),
            _ => Err(Error::UnexpectedResponse("what became of a consumer is not known").into()),
        }
    }

    async fn list_dead_letters(&self, wanted: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let schema = &self.schema;
        let sql = format!(
            "SELECT d.consumer, d.queue, d.class, d.error, d.backtrace, d.attempts, {schema}.epoch_micros(d.arrived_at), \
             {schema}.epoch_micros(d.dead_at), d.redrives, d.state, d.reason, d.id, d.replay, d.header_names, d.header_values, \
             d.payload, d.address, d.lane, d.broker_offset::text, d.correlation \
             FROM {schema}.inbox_dead_letter AS d WHERE {schema}.inbox_dead_letter_matches({}, d) ORDER BY d.dead_at, d.ordinal LIMIT {limit}",
            filter(wanted)
        );
        Ok(self.call_inbox(sql).await?.iter().map(dead_letter).collect::<Result<_, _>>()?)
    }

    async fn redrive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        let per_second = mark
            .rate_per_second
            .map_or_else(String::new, |rate| format!(", {}", i32::try_from(rate).unwrap_or(i32::MAX)));
        self.mark_inbox_dead_letters("inbox_redrive", mark, &per_second).await
    }

    async fn archive(&self, mark: &MarkRequest) -> Result<u64, StoreError> {
        self.mark_inbox_dead_letters("inbox_discard", mark, "").await
    }

    async fn trace(&self, id: MessageId) -> Result<Vec<Trace>, StoreError> {
        let sql = format!(
            "SELECT consumer, replay, state, repeats, address, lane, broker_offset::text, correlation, {}.epoch_micros(at) \
             FROM {}.inbox_trace WHERE id = '{id}' ORDER BY consumer, replay",
            self.schema, self.schema
        );
        Ok(self.call_inbox(sql).await?.iter().map(|row| trace(row, id)).collect::<Result<_, _>>()?)
    }

    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError> {
        // The primary key begins with the consumer. The query steps from one consumer name to the next and looks up the
        // id for each.
        let schema = &self.schema;
        let sql = format!(
            "WITH RECURSIVE name (n) AS ((SELECT consumer FROM {schema}.inbox ORDER BY consumer LIMIT 1) UNION ALL \
             SELECT (SELECT o.consumer FROM {schema}.inbox AS o WHERE o.consumer > name.n ORDER BY o.consumer LIMIT 1) \
             FROM name WHERE name.n IS NOT NULL) \
             SELECT i.consumer, i.replay, i.state, i.unfinished_starts, \
             CASE WHEN isfinite(i.entered_at) THEN {schema}.epoch_micros(i.entered_at) END \
             FROM name CROSS JOIN LATERAL (SELECT * FROM {schema}.inbox AS o WHERE o.consumer = name.n AND o.message_id = '{id}') AS i \
             ORDER BY i.consumer, i.replay"
        );
        Ok(self.call_inbox(sql).await?.iter().map(|row| inbox_record(row, id)).collect::<Result<_, _>>()?)
    }

    async fn create_replay(&self, plan: &ReplayPlan) -> Result<u32, StoreError> {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let sql = format!(
            "SELECT {}.inbox_create_replay({}, {}, {}, {}, {}, {}, {})",
            self.schema,
            literal(&plan.consumer),
            literal(&plan.source),
            number(plan.count),
            plan.rate,
            number(plan.dead_letters_max),
            literal(&plan.requested_by),
            literal(&plan.reason),
        );
        Ok(count_u32(scalar(&self.call_inbox(sql).await?)?)?)
    }

    async fn enqueue_replay(
        &self,
        consumer: &str,
        number: u32,
        portion: ReplayBatch<'_>,
    ) -> Result<EnqueueOutcome, StoreError> {
        let messages: Vec<&InboxMessage> = portion.messages.iter().collect();
        let cursor = |at: Option<&str>| at.map_or_else(|| "NULL".to_owned(), literal);
        let sql = format!(
            "SELECT {}.inbox_feed_replay({}, {number}, {}, {}, {})",
            self.schema,
            literal(consumer),
            message_array(&self.schema, &messages, Body::Full),
            cursor(portion.cursor),
            cursor(portion.next_cursor)
        );
        match scalar(&self.call_inbox(sql).await?)? {
            "kept" => Ok(EnqueueOutcome::Enqueued),
            "moved" => Ok(EnqueueOutcome::CursorMoved),
            "ended" => Ok(EnqueueOutcome::NotRunning),
            _ => Err(Error::UnexpectedResponse("a portion's answer is not known").into()),
        }
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        let sql = format!("SELECT {}.inbox_stop_replay({}, {number})", self.schema, literal(consumer));
        Ok(scalar(&self.call_inbox(sql).await?)?)
    }

    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError> {
        let dead_more = i64::try_from(dead_more).unwrap_or(i64::MAX).min(i64::MAX / 2);
        let sql = format!("SELECT {}.inbox_resume_replay({}, {number}, {dead_more})", self.schema, literal(consumer));
        Ok(scalar(&self.call_inbox(sql).await?)?)
    }

    async fn list_replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        let (schema, consumer_name) = (&self.schema, literal(consumer));
        let sql = format!(
            "SELECT r.*, {schema}.inbox_replay_ready({consumer_name}, r.number) FROM {schema}.inbox_list_replays({consumer_name}) AS r"
        );
        Ok(self.call_inbox(sql).await?.iter().map(|row| replay(row, consumer)).collect::<Result<_, _>>()?)
    }
}

fn filter(filter: &DeadLetterFilter) -> String {
    let ids: Vec<_> = filter.ids.iter().map(ToString::to_string).collect();
    json_literal(&json!({
        "consumer": filter.consumer, "ids": ids, "queue": filter.queue, "class": filter.class,
        "state": filter.state.map(DeadLetterState::as_str), "since": filter.since.map(|at| at.to_string()),
        "until": filter.until.map(|at| at.to_string()),
    }))
}

fn consumer(row: &PgRow) -> Result<ConsumerSummary, Error> {
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

/// Reads the result of `inbox_show_consumer`. Returns `None` if it is malformed.
fn consumer_details(consumer: ConsumerSummary, answer: &Value) -> Option<ConsumerDetails> {
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

fn dead_letter(row: &PgRow) -> Result<DeadLetter, Error> {
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
        state: DeadLetterState::parse(column(row, 9)?).ok_or(Error::UnexpectedResponse("a fate is not known"))?,
        reason: column(row, 10)?,
    })
}

fn trace(row: &PgRow, id: MessageId) -> Result<Trace, Error> {
    let place: Option<&str> = column(row, 6)?;
    Ok(Trace {
        consumer: column(row, 0)?,
        entry: DedupId { id, replay: count_u32(column(row, 1)?)? },
        state: read::parse_state(column(row, 2)?)?,
        repeats: count_u32(column(row, 3)?)?,
        address: column(row, 4)?,
        lane: column(row, 5)?,
        place: place.map(str::parse).transpose().map_err(|_| Error::UnexpectedResponse("a place is no number"))?,
        correlation: column(row, 7)?,
        at: timestamp(column(row, 8)?)?,
    })
}

fn inbox_record(row: &PgRow, id: MessageId) -> Result<InboxRecord, Error> {
    Ok(InboxRecord {
        consumer: column(row, 0)?,
        dedup_id: DedupId { id, replay: count_u32(column(row, 1)?)? },
        state: read::parse_state(column(row, 2)?)?,
        unfinished_starts: count_u32(column(row, 3)?)?,
        at: column::<Option<i64>>(row, 4)?.map(timestamp).transpose()?,
    })
}

fn replay(row: &PgRow, consumer: &str) -> Result<Replay, Error> {
    let whole_at = |index| count_u64(column(row, index)?);
    Ok(Replay {
        number: count_u32(column(row, 0)?)?,
        plan: ReplayPlan {
            consumer: consumer.to_owned(),
            source: column(row, 1)?,
            count: whole_at(2)?,
            rate: u32::try_from(column::<i64>(row, 3)?)
                .map_err(|_| Error::UnexpectedResponse("a rate is out of range"))?,
            dead_letters_max: whole_at(4)?,
            requested_by: column(row, 5)?,
            reason: column(row, 6)?,
        },
        state: ReplayState::parse(column(row, 7)?).ok_or(Error::UnexpectedResponse("a replay's state is not known"))?,
        enqueued: whole_at(8)?,
        done: whole_at(9)?,
        dead: whole_at(10)?,
        ready: whole_at(13)?,
        cursor: column(row, 11)?,
        started_at: timestamp(column(row, 12)?)?,
    })
}
