//! Consumer listings for operators.

use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::inbox::DedupId;
use relevo_core::inbox::admin::{
    ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, LaneInfo, MemberInfo, RetryQueueInfo,
};
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::classify::Error;
use crate::queries::inbox::state;
use crate::queries::{COUNT_MAX, clock, column, id, number, optional_time, time};

/// Lists all consumers, or only the one with this name.
pub(crate) async fn list(connection: &mut SqliteConnection, only: Option<&str>) -> Result<Vec<ConsumerSummary>, Error> {
    let sql = "SELECT n.name, coalesce(c.paused, 0), \
               (SELECT count(*) FROM relevo_inbox_member AS m WHERE m.consumer = n.name AND m.expires_at_ms > ?2), \
               (SELECT max(m.beat_at_ms) FROM relevo_inbox_member AS m WHERE m.consumer = n.name), \
               (SELECT max(m.last_message_at_ms) FROM relevo_inbox_member AS m WHERE m.consumer = n.name), \
               (SELECT count(*) FROM ( \
                   SELECT 1 FROM relevo_inbox_retry_message AS w WHERE w.consumer = n.name LIMIT ?3)), \
               (SELECT count(*) FROM ( \
                   SELECT 1 FROM relevo_inbox_dead_letter AS d WHERE d.consumer = n.name AND d.state = 'dead' \
                   LIMIT ?3)), \
               c.done_retention_ms \
               FROM relevo_inbox_consumer_name AS n LEFT JOIN relevo_inbox_consumer AS c ON c.name = n.name \
               WHERE ?1 IS NULL OR n.name = ?1 ORDER BY n.name";
    let now = clock(connection).await?;
    let rows = sqlx::query(sql).bind(only).bind(now).bind(COUNT_MAX).fetch_all(connection).await?;
    let consumer = |row| {
        Ok(ConsumerSummary {
            name: column(row, 0)?,
            paused: column(row, 1)?,
            members: number(row, 2)?,
            heartbeat_at: optional_time(row, 3)?,
            last_message_at: optional_time(row, 4)?,
            waiting: number(row, 5)?,
            dead: number(row, 6)?,
            done_retention: column::<Option<i64>>(row, 7)?.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        })
    };
    rows.iter().map(consumer).collect()
}

/// Returns one consumer with its members, its lanes and its first queues.
pub(crate) async fn details(
    connection: &mut SqliteConnection,
    name: &str,
    limit: usize,
) -> Result<Option<ConsumerDetails>, Error> {
    let Some(consumer) = list(connection, Some(name)).await?.pop() else { return Ok(None) };
    let members = members(connection, name).await?;
    let lanes = lanes(connection, name).await?;
    Ok(Some(ConsumerDetails { summary: consumer, members, lanes, queues: queues(connection, name, limit).await? }))
}

async fn members(connection: &mut SqliteConnection, consumer: &str) -> Result<Vec<MemberInfo>, Error> {
    let now = clock(connection).await?;
    let sql = "SELECT name, expires_at_ms > ?2 AS alive, beat_at_ms, last_message_at_ms FROM relevo_inbox_member \
               WHERE consumer = ?1 ORDER BY alive DESC, name, owner";
    let rows = sqlx::query(sql).bind(consumer).bind(now).fetch_all(connection).await?;
    let member = |row| {
        Ok(MemberInfo {
            name: column(row, 0)?,
            alive: column(row, 1)?,
            heartbeat_at: time(row, 2)?,
            last_message_at: optional_time(row, 3)?,
        })
    };
    rows.iter().map(member).collect()
}

async fn lanes(connection: &mut SqliteConnection, consumer: &str) -> Result<Vec<LaneInfo>, Error> {
    let sql = "SELECT l.lane, m.name, l.epoch, l.settled_offset, l.paused, l.breaker_reason, l.breaker_forced FROM \
               relevo_inbox_lane AS l \
               LEFT JOIN relevo_inbox_member AS m ON m.consumer = l.consumer AND m.owner = l.owner \
               WHERE l.consumer = ?1 ORDER BY l.lane";
    let rows = sqlx::query(sql).bind(consumer).fetch_all(connection).await?;
    let lane = |row| {
        Ok(LaneInfo {
            name: column(row, 0)?,
            owner: column(row, 1)?,
            epoch: column(row, 2)?,
            settled_offset: column::<Option<i64>>(row, 3)?.map(i64::cast_unsigned),
            paused: column(row, 4)?,
            breaker: column(row, 5)?,
            breaker_override: column(row, 6)?,
        })
    };
    rows.iter().map(lane).collect()
}

/// The head of a blocked queue is the dead letter that blocks it.
async fn queues(connection: &mut SqliteConnection, consumer: &str, limit: usize) -> Result<Vec<RetryQueueInfo>, Error> {
    let sql = "SELECT q.queue, q.next_at_ms, (SELECT count(*) FROM ( \
                   SELECT 1 FROM relevo_inbox_retry_message AS b WHERE b.consumer = ?1 AND b.queue = q.queue LIMIT ?3)), \
               coalesce(d.id, w.id), coalesce(d.replay, w.replay), coalesce(d.attempts, w.attempts), \
               coalesce(d.error, w.error) \
               FROM (SELECT queue, next_at_ms FROM relevo_inbox_retry_queue WHERE consumer = ?1 \
                   ORDER BY next_at_ms NULLS LAST, queue LIMIT ?2) AS q \
               LEFT JOIN relevo_inbox_dead_letter AS d ON d.rowid = (SELECT h.rowid FROM relevo_inbox_dead_letter AS h \
                   WHERE h.consumer = ?1 AND h.queue = q.queue AND h.blocks_queue ORDER BY h.ordinal LIMIT 1) \
               LEFT JOIN relevo_inbox_retry_message AS w ON w.ordinal = ( \
                   SELECT min(f.ordinal) FROM relevo_inbox_retry_message AS f WHERE f.consumer = ?1 AND f.queue = \
                   q.queue) \
               WHERE coalesce(d.id, w.id) IS NOT NULL ORDER BY q.next_at_ms NULLS LAST, q.queue";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = sqlx::query(sql).bind(consumer).bind(limit).bind(COUNT_MAX).fetch_all(connection).await?;
    let queue = |row: &SqliteRow| {
        Ok(RetryQueueInfo {
            queue: column::<String>(row, 0)?.into(),
            next_attempt_at: optional_time(row, 1)?,
            length: number(row, 2)?,
            head: DedupId { id: id(row, 3)?, replay: number(row, 4)? },
            attempts: number(row, 5)?,
            error: column(row, 6)?,
        })
    };
    rows.iter().map(queue).collect()
}

/// Records a control, which members read with their next heartbeat. Returns false if the consumer does not exist.
pub(crate) async fn set_control(
    connection: &mut SqliteConnection,
    consumer: &str,
    lane: Option<&str>,
    control: ConsumerControl,
) -> Result<bool, Error> {
    if list(connection, Some(consumer)).await?.is_empty() {
        return Ok(false);
    }
    if let (None, ConsumerControl::Pause | ConsumerControl::Resume) = (lane, control) {
        let sql = "INSERT INTO relevo_inbox_consumer (name, paused) VALUES (?1, ?2) \
                   ON CONFLICT (name) DO UPDATE SET paused = excluded.paused";
        sqlx::query(sql).bind(consumer).bind(control == ConsumerControl::Pause).execute(connection).await?;
        return Ok(true);
    }
    let (sql, value) = match control {
        ConsumerControl::Pause => (UPDATE_PAUSED, Some(true)),
        ConsumerControl::Resume => (UPDATE_PAUSED, Some(false)),
        ConsumerControl::OpenBreaker => (UPDATE_BREAKER, Some(true)),
        ConsumerControl::CloseBreaker => (UPDATE_BREAKER, Some(false)),
        ConsumerControl::AutoBreaker => (UPDATE_BREAKER, None),
    };
    let update = sqlx::query(sql).bind(consumer).bind(lane).bind(value).execute(connection).await?;
    Ok(update.rows_affected() > 0)
}

const UPDATE_PAUSED: &str =
    "UPDATE relevo_inbox_lane SET paused = ?3 WHERE consumer = ?1 AND (?2 IS NULL OR lane = ?2)";
const UPDATE_BREAKER: &str =
    "UPDATE relevo_inbox_lane SET breaker_forced = ?3 WHERE consumer = ?1 AND (?2 IS NULL OR lane = ?2)";

/// Returns the inbox rows of a message. The primary key begins with the consumer, so the query looks the id up for each
/// consumer.
pub(crate) async fn find_message(
    connection: &mut SqliteConnection,
    message: MessageId,
) -> Result<Vec<InboxRecord>, Error> {
    let sql = "WITH RECURSIVE step (name) AS ( \
                   SELECT min(consumer) FROM relevo_inbox \
                   UNION ALL \
                   SELECT (SELECT min(i.consumer) FROM relevo_inbox AS i WHERE i.consumer > step.name) \
                   FROM step WHERE step.name IS NOT NULL \
               ) \
               SELECT i.consumer, i.replay, i.state, i.unfinished_starts, i.entered_at_ms \
               FROM step CROSS JOIN relevo_inbox AS i ON i.consumer = step.name AND i.message_id = ?1 ORDER BY i.consumer, i.replay";
    let rows = sqlx::query(sql).bind(*message.as_uuid()).fetch_all(connection).await?;
    let record = |row| {
        Ok(InboxRecord {
            consumer: column(row, 0)?,
            dedup_id: DedupId { id: message, replay: number(row, 1)? },
            state: state(row, 2)?,
            unfinished_starts: number(row, 3)?,
            at: optional_time(row, 4)?,
        })
    };
    rows.iter().map(record).collect()
}
