//! Operator commands for consumers.

use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::inbox::operate::{
    Consumer, DeadFilter, DeadLetter, Fate, Fed, Forgotten, Known, Lane, Mark, Member, Operate, Order, Plan, Portion,
    Queue, Replay, ReplayState, Shown, Trace,
};
use relevo_core::inbox::{Arrival, Entry};
use relevo_core::store::StoreError;
use serde_json::{Value, json};
use sqlx::postgres::PgRow;

use super::links::read_committed;
use super::read::{self, arrival, count, only, time, whole};
use super::sql::{Body, arrivals};
use crate::classify::Error;
use crate::queries::{column, json_answer, json_literal, literal};
use crate::store::Store;

impl Store {
    async fn inbox_call(&self, call: String) -> Result<Vec<PgRow>, Error> {
        self.asking.call(read_committed(&call)).await
    }

    /// Lists all consumers, or only the one with this name.
    async fn inbox_consumers(&self, only: &str) -> Result<Vec<PgRow>, Error> {
        let schema = &self.schema;
        let remembers = "round(date_part('epoch', k.done_retention) * 1000)::bigint";
        let sql = format!(
            "SELECT c.*, {remembers} FROM {schema}.inbox_list_consumers({only}) AS c \
             LEFT JOIN {schema}.inbox_consumer AS k ON k.name = c.name ORDER BY c.name"
        );
        self.inbox_call(sql).await
    }

    /// `more` is appended to the arguments.
    async fn mark_inbox(&self, function: &str, mark: &Mark, more: &str) -> Result<u64, StoreError> {
        let sql = format!(
            "SELECT {}.{function}({}, {}, {}, {}{more})",
            self.schema,
            filter(&mark.filter),
            literal(&mark.by),
            literal(&mark.note),
            mark.dry_run,
        );
        Ok(whole(only(&self.inbox_call(sql).await?)?)?)
    }
}

#[async_trait]
impl Operate for Store {
    async fn consumers(&self) -> Result<Vec<Consumer>, StoreError> {
        Ok(self.inbox_consumers("NULL").await?.iter().map(consumer).collect::<Result<_, _>>()?)
    }

    async fn consumer(&self, name: &str, limit: usize) -> Result<Option<Shown>, StoreError> {
        let name = literal(name);
        let rows = self.inbox_consumers(&name).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let sql = format!("SELECT {}.inbox_show_consumer({name}, {limit})::text", self.schema);
        let answer = json_answer(&self.inbox_call(sql).await?)?;
        Ok(Some(shown(consumer(row)?, &answer).ok_or(Error::Answer("a consumer is malformed"))?))
    }

    async fn order(&self, consumer: &str, lane: Option<&str>, order: Order) -> Result<bool, StoreError> {
        let what = match order {
            Order::Pause => "pause",
            Order::Resume => "resume",
            Order::OpenBreaker => "open",
            Order::CloseBreaker => "close",
            Order::FreeBreaker => "free",
        };
        let lane = lane.map_or_else(|| "NULL".to_owned(), literal);
        let sql = format!("SELECT {}.inbox_set_control({}, {lane}, '{what}')", self.schema, literal(consumer));
        Ok(only(&self.inbox_call(sql).await?)?)
    }

    async fn forget(&self, consumer: &str) -> Result<Forgotten, StoreError> {
        let sql = format!("SELECT {}.inbox_remove_consumer({})", self.schema, literal(consumer));
        match only(&self.inbox_call(sql).await?)? {
            "gone" => Ok(Forgotten::Gone),
            "alive" => Ok(Forgotten::Alive),
            "unknown" => Ok(Forgotten::Unknown),
            _ => Err(Error::Answer("what became of a consumer is not known").into()),
        }
    }

    async fn dead(&self, wanted: &DeadFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let schema = &self.schema;
        let sql = format!(
            "SELECT d.consumer, d.queue, d.class, d.error, d.backtrace, d.attempts, {schema}.epoch_micros(d.arrived_at), \
             {schema}.epoch_micros(d.dead_at), d.redrives, d.state, d.reason, d.id, d.replay, d.header_names, d.header_values, \
             d.payload, d.address, d.lane, d.broker_offset::text, d.correlation \
             FROM {schema}.inbox_dead_letter AS d WHERE {schema}.inbox_dead_letter_matches({}, d) ORDER BY d.dead_at, d.ordinal LIMIT {limit}",
            filter(wanted)
        );
        Ok(self.inbox_call(sql).await?.iter().map(letter).collect::<Result<_, _>>()?)
    }

    async fn redrive(&self, mark: &Mark) -> Result<u64, StoreError> {
        let per_second =
            mark.rate.map_or_else(String::new, |rate| format!(", {}", i32::try_from(rate).unwrap_or(i32::MAX)));
        self.mark_inbox("inbox_redrive", mark, &per_second).await
    }

    async fn archive(&self, mark: &Mark) -> Result<u64, StoreError> {
        self.mark_inbox("inbox_discard", mark, "").await
    }

    async fn trace(&self, id: MessageId) -> Result<Vec<Trace>, StoreError> {
        let sql = format!(
            "SELECT consumer, replay, state, repeats, address, lane, broker_offset::text, correlation, {}.epoch_micros(at) \
             FROM {}.inbox_trace WHERE id = '{id}' ORDER BY consumer, replay",
            self.schema, self.schema
        );
        Ok(self.inbox_call(sql).await?.iter().map(|row| trace(row, id)).collect::<Result<_, _>>()?)
    }

    async fn known(&self, id: MessageId) -> Result<Vec<Known>, StoreError> {
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
        Ok(self.inbox_call(sql).await?.iter().map(|row| known(row, id)).collect::<Result<_, _>>()?)
    }

    async fn begin_replay(&self, plan: &Plan) -> Result<u32, StoreError> {
        let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let sql = format!(
            "SELECT {}.inbox_create_replay({}, {}, {}, {}, {}, {}, {})",
            self.schema,
            literal(&plan.consumer),
            literal(&plan.source),
            number(plan.count),
            plan.rate,
            number(plan.dead_max),
            literal(&plan.by),
            literal(&plan.reason),
        );
        Ok(count(only(&self.inbox_call(sql).await?)?)?)
    }

    async fn feed(&self, consumer: &str, number: u32, portion: Portion<'_>) -> Result<Fed, StoreError> {
        let messages: Vec<&Arrival> = portion.messages.iter().collect();
        let cursor = |at: Option<&str>| at.map_or_else(|| "NULL".to_owned(), literal);
        let sql = format!(
            "SELECT {}.inbox_feed_replay({}, {number}, {}, {}, {})",
            self.schema,
            literal(consumer),
            arrivals(&self.schema, &messages, Body::Whole),
            cursor(portion.from),
            cursor(portion.to)
        );
        match only(&self.inbox_call(sql).await?)? {
            "kept" => Ok(Fed::Kept),
            "moved" => Ok(Fed::Moved),
            "ended" => Ok(Fed::Ended),
            _ => Err(Error::Answer("a portion's answer is not known").into()),
        }
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        let sql = format!("SELECT {}.inbox_stop_replay({}, {number})", self.schema, literal(consumer));
        Ok(only(&self.inbox_call(sql).await?)?)
    }

    async fn resume_replay(&self, consumer: &str, number: u32, dead_more: u64) -> Result<bool, StoreError> {
        let dead_more = i64::try_from(dead_more).unwrap_or(i64::MAX).min(i64::MAX / 2);
        let sql = format!("SELECT {}.inbox_resume_replay({}, {number}, {dead_more})", self.schema, literal(consumer));
        Ok(only(&self.inbox_call(sql).await?)?)
    }

    async fn replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        let (schema, consumer_name) = (&self.schema, literal(consumer));
        let sql = format!(
            "SELECT r.*, {schema}.inbox_replay_ready({consumer_name}, r.number) FROM {schema}.inbox_list_replays({consumer_name}) AS r"
        );
        Ok(self.inbox_call(sql).await?.iter().map(|row| replay(row, consumer)).collect::<Result<_, _>>()?)
    }
}

fn filter(filter: &DeadFilter) -> String {
    let ids: Vec<_> = filter.ids.iter().map(ToString::to_string).collect();
    json_literal(&json!({
        "consumer": filter.consumer, "ids": ids, "queue": filter.queue, "class": filter.class,
        "state": filter.fate.map(Fate::word), "since": filter.since.map(|at| at.to_string()),
        "until": filter.until.map(|at| at.to_string()),
    }))
}

fn consumer(row: &PgRow) -> Result<Consumer, Error> {
    let at = |index| column::<Option<i64>>(row, index)?.map(time).transpose();
    Ok(Consumer {
        name: column(row, 0)?,
        paused: column(row, 1)?,
        members: u32::try_from(column::<i64>(row, 2)?).map_err(|_| Error::Answer("a count is out of range"))?,
        beat_at: at(3)?,
        last_message_at: at(4)?,
        waiting: whole(column(row, 5)?)?,
        dead: whole(column(row, 6)?)?,
        remembers: column::<Option<i64>>(row, 7)?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
    })
}

/// Reads the result of `inbox_show_consumer`. Returns `None` if it is malformed.
fn shown(consumer: Consumer, answer: &Value) -> Option<Shown> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let at = |value: &Value| value.as_i64().and_then(|micros| time(micros).ok());
    let member = |m: &Value| {
        Some(Member {
            name: text(&m["name"])?,
            alive: m["alive"].as_bool()?,
            beat_at: at(&m["beat_at"])?,
            last_message_at: at(&m["last_message_at"]),
        })
    };
    let lane = |l: &Value| {
        Some(Lane {
            name: text(&l["name"])?,
            owner: text(&l["owner"]),
            epoch: l["epoch"].as_i64()?,
            mark: l["settled_offset"].as_str().and_then(|mark| mark.parse().ok()),
            paused: l["paused"].as_bool()?,
            breaker: text(&l["breaker_reason"]),
            forced: l["breaker_forced"].as_bool(),
        })
    };
    let queue = |q: &Value| {
        let id = MessageId::from_uuid(q["id"].as_str()?.parse().ok()?);
        Some(Queue {
            queue: text(&q["queue"])?.into(),
            head: Entry { id, replay: u32::try_from(q["replay"].as_u64()?).ok()? },
            length: q["length"].as_u64()?,
            attempts: u32::try_from(q["attempts"].as_u64()?).ok()?,
            next_attempt_at: at(&q["next_at"]),
            error: text(&q["error"])?,
        })
    };
    Some(Shown {
        consumer,
        members: answer["members"].as_array()?.iter().map(member).collect::<Option<_>>()?,
        lanes: answer["lanes"].as_array()?.iter().map(lane).collect::<Option<_>>()?,
        queues: answer["queues"].as_array()?.iter().map(queue).collect::<Option<_>>()?,
    })
}

fn letter(row: &PgRow) -> Result<DeadLetter, Error> {
    Ok(DeadLetter {
        consumer: column(row, 0)?,
        arrival: arrival(row, 11, column::<String>(row, 1)?.into())?,
        class: column(row, 2)?,
        error: column(row, 3)?,
        backtrace: column(row, 4)?,
        attempts: count(column(row, 5)?)?,
        arrived_at: time(column(row, 6)?)?,
        dead_at: time(column(row, 7)?)?,
        redriven: count(column(row, 8)?)?,
        fate: Fate::of(column(row, 9)?).ok_or(Error::Answer("a fate is not known"))?,
        note: column(row, 10)?,
    })
}

fn trace(row: &PgRow, id: MessageId) -> Result<Trace, Error> {
    let place: Option<&str> = column(row, 6)?;
    Ok(Trace {
        consumer: column(row, 0)?,
        entry: Entry { id, replay: count(column(row, 1)?)? },
        state: read::state(column(row, 2)?)?,
        repeats: count(column(row, 3)?)?,
        address: column(row, 4)?,
        lane: column(row, 5)?,
        place: place.map(str::parse).transpose().map_err(|_| Error::Answer("a place is no number"))?,
        correlation: column(row, 7)?,
        at: time(column(row, 8)?)?,
    })
}

fn known(row: &PgRow, id: MessageId) -> Result<Known, Error> {
    Ok(Known {
        consumer: column(row, 0)?,
        entry: Entry { id, replay: count(column(row, 1)?)? },
        state: read::state(column(row, 2)?)?,
        started: count(column(row, 3)?)?,
        at: column::<Option<i64>>(row, 4)?.map(time).transpose()?,
    })
}

fn replay(row: &PgRow, consumer: &str) -> Result<Replay, Error> {
    let whole_at = |index| whole(column(row, index)?);
    Ok(Replay {
        number: count(column(row, 0)?)?,
        plan: Plan {
            consumer: consumer.to_owned(),
            source: column(row, 1)?,
            count: whole_at(2)?,
            rate: u32::try_from(column::<i64>(row, 3)?).map_err(|_| Error::Answer("a rate is out of range"))?,
            dead_max: whole_at(4)?,
            by: column(row, 5)?,
            reason: column(row, 6)?,
        },
        state: ReplayState::of(column(row, 7)?).ok_or(Error::Answer("a replay's state is not known"))?,
        fed: whole_at(8)?,
        done: whole_at(9)?,
        dead: whole_at(10)?,
        ready: whole_at(13)?,
        cursor: column(row, 11)?,
        began_at: time(column(row, 12)?)?,
    })
}
