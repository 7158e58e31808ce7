//! Replays that an operator requested: their messages enter the retry table under the number of the replay.

use relevo_core::inbox::replays::{EnqueueOutcome, Replay, ReplayBatch, ReplayPlan, ReplayState};
use relevo_core::inbox::{DedupId, InboxMessage};
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use super::retry::{delete_empty_queue, ensure_queue};
use super::{append, bind_dedup_id};
use crate::classify::Error;
use crate::queries::{clock, column, now, number, time};

/// Counts the dead letters of a replay that no operator redrove.
macro_rules! dead {
    () => {
        "(SELECT count(*) FROM relevo_inbox_dead_letter AS d \
         WHERE d.consumer = ?1 AND d.replay = ?2 AND d.replay > 0 AND d.state <> 'redriven')"
    };
}

/// Creates a replay and returns its number.
pub(crate) async fn create(connection: &mut SqliteConnection, plan: &ReplayPlan) -> Result<u32, Error> {
    let insert = sqlx::query("INSERT OR IGNORE INTO relevo_inbox_consumer (name) VALUES (?1)");
    insert.bind(&plan.consumer).execute(&mut *connection).await?;
    let now = clock(connection).await?;
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let sql = "INSERT INTO relevo_inbox_replay (consumer, number, source, count, rate, dead_letters_max, \
               requested_by, reason, \
               started_at_ms) SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 \
               FROM relevo_inbox_replay WHERE consumer = ?1 RETURNING number";
    let insert = sqlx::query(sql).bind(&plan.consumer).bind(&plan.source).bind(count(plan.count));
    let insert = insert
        .bind(i64::from(plan.rate))
        .bind(count(plan.dead_letters_max))
        .bind(&plan.requested_by)
        .bind(&plan.reason);
    number(&insert.bind(now).fetch_one(connection).await?, 0)
}

/// Appends the new messages of a batch to their queues, if the replay is running and its cursor is still at the start
/// of the batch. Stops a replay that has too many dead letters.
pub(crate) async fn enqueue(
    connection: &mut SqliteConnection,
    consumer: &str,
    replay: u32,
    batch: ReplayBatch<'_>,
) -> Result<EnqueueOutcome, Error> {
    let sql = concat!(
        "SELECT max(r.dead_letters_max, 1) <= ",
        dead!(),
        ", r.cursor FROM relevo_inbox_replay AS r WHERE r.consumer = ?1 AND r.number = ?2 AND r.state = 'running'"
    );
    let select = sqlx::query(sql).bind(consumer).bind(i64::from(replay));
    let Some(row) = select.fetch_optional(&mut *connection).await? else { return Ok(EnqueueOutcome::NotRunning) };
    if column(&row, 0)? {
        stop(connection, consumer, replay).await?;
        return Ok(EnqueueOutcome::NotRunning);
    }
    if column::<Option<&str>>(&row, 1)? != batch.cursor {
        return Ok(EnqueueOutcome::CursorMoved);
    }
    let now = clock(connection).await?;
    let mut new = 0;
    for message in batch.messages {
        let message = InboxMessage { dedup_id: DedupId { replay, ..message.dedup_id }, ..message.clone() };
        let sql = "INSERT OR IGNORE INTO relevo_inbox (consumer, message_id, replay, state, entered_at_ms) \
                   VALUES (?1, ?2, ?3, 'waiting', ?4)";
        let insert = bind_dedup_id(sql, consumer, message.dedup_id).bind(now).execute(&mut *connection).await?;
        if insert.rows_affected() > 0 {
            ensure_queue(connection, consumer, &message.queue, now).await?;
            let ordinal = append(connection, consumer, &message, now).await?;
            let sql = "UPDATE relevo_inbox_retry_message SET fed_cursor = ?2 WHERE ordinal = ?1";
            sqlx::query(sql).bind(ordinal).bind(batch.cursor).execute(&mut *connection).await?;
            new += 1;
        }
    }
    let sql = "UPDATE relevo_inbox_replay SET fed = fed + ?3, cursor = coalesce(?4, cursor), \
               state = CASE WHEN ?4 IS NULL THEN 'finished' ELSE state END WHERE consumer = ?1 AND number = ?2";
    let update = sqlx::query(sql).bind(consumer).bind(i64::from(replay)).bind(new).bind(batch.next_cursor);
    update.execute(connection).await?;
    Ok(EnqueueOutcome::Enqueued)
}

/// Stops a replay. Removes its waiting messages that were never started, as if they had not been enqueued. Moves the
/// cursor back to the start of the batch of the first removed message.
pub(crate) async fn stop(connection: &mut SqliteConnection, consumer: &str, replay: u32) -> Result<bool, Error> {
    let of_replay = |sql: &'static str| sqlx::query(sql).bind(consumer).bind(i64::from(replay));
    let sql =
        "UPDATE relevo_inbox_replay SET state = 'stopped' WHERE consumer = ?1 AND number = ?2 AND state = 'running'";
    if of_replay(sql).execute(&mut *connection).await?.rows_affected() == 0 {
        return Ok(false);
    }
    let sql = "DELETE FROM relevo_inbox_retry_message WHERE consumer = ?1 AND replay = ?2 AND replay > 0 AND \
               unfinished_starts = 0 \
               AND attempts = 0 AND NOT redriven RETURNING queue, id, ordinal, fed_cursor";
    let removed = of_replay(sql).fetch_all(&mut *connection).await?;
    let mut first: Option<(i64, Option<String>)> = None;
    for row in &removed {
        let dedup_id = DedupId { id: crate::queries::id(row, 1)?, replay };
        // No broker redelivers a replayed message, so the row is not needed for deduplication.
        let sql =
            "DELETE FROM relevo_inbox WHERE consumer = ?1 AND message_id = ?2 AND replay = ?3 AND state = 'waiting'";
        bind_dedup_id(sql, consumer, dedup_id).execute(&mut *connection).await?;
        // If a member has claimed the queue, the member releases it.
        let queue: &str = column(row, 0)?;
        let sql = "SELECT 1 FROM relevo_inbox_retry_queue WHERE consumer = ?1 AND queue = ?2 AND claim_token IS NULL";
        if sqlx::query(sql).bind(consumer).bind(queue).fetch_optional(&mut *connection).await?.is_some() {
            delete_empty_queue(connection, consumer, queue).await?;
        }
        let ordinal: i64 = column(row, 2)?;
        if first.as_ref().is_none_or(|(before, _)| ordinal < *before) {
            first = Some((ordinal, column(row, 3)?));
        }
    }
    if let Some((_, cursor)) = first {
        let count = i64::try_from(removed.len()).unwrap_or(i64::MAX);
        let sql = "UPDATE relevo_inbox_replay SET fed = fed - ?3, cursor = ?4 WHERE consumer = ?1 AND number = ?2";
        of_replay(sql).bind(count).bind(cursor).execute(connection).await?;
    }
    Ok(true)
}

/// Resumes a stopped replay with a limit of `more_dead_letters` additional dead letters.
pub(crate) async fn resume(
    connection: &mut SqliteConnection,
    consumer: &str,
    replay: u32,
    more_dead_letters: u64,
) -> Result<bool, Error> {
    let sql = concat!(
        "UPDATE relevo_inbox_replay SET state = 'running', dead_letters_max = ?3 + ",
        dead!(),
        " WHERE consumer = ?1 AND number = ?2 AND state = 'stopped'"
    );
    // Half of the range, so that the sum does not overflow.
    let more_dead_letters = i64::try_from(more_dead_letters).unwrap_or(i64::MAX).min(i64::MAX / 2);
    let update = sqlx::query(sql).bind(consumer).bind(i64::from(replay)).bind(more_dead_letters);
    Ok(update.execute(connection).await?.rows_affected() > 0)
}

/// Lists the replays of a consumer, newest first. An enqueued message that is neither waiting nor dead counts as done.
pub(crate) async fn list(connection: &mut SqliteConnection, consumer: &str) -> Result<Vec<Replay>, Error> {
    let sql = concat!(
        "SELECT r.number, r.source, r.count, r.rate, r.dead_letters_max, r.requested_by, r.reason, r.state, r.fed, \
         (SELECT count(*) FROM relevo_inbox_retry_message AS w \
         WHERE w.consumer = ?1 AND w.replay = r.number AND w.replay > 0), \
         (SELECT count(*) FROM relevo_inbox_dead_letter AS d \
         WHERE d.consumer = ?1 AND d.replay = r.number AND d.replay > 0 AND d.state <> 'redriven'), r.cursor, \
         r.started_at_ms, \
         (SELECT count(*) FROM (SELECT 1 FROM relevo_inbox_retry_message AS w JOIN relevo_inbox_retry_queue AS q \
         ON q.consumer = w.consumer AND q.queue = w.queue \
         WHERE w.consumer = ?1 AND w.replay = r.number AND w.replay > 0 AND q.next_at_ms <= ",
        now!(),
        " LIMIT 100000)) FROM relevo_inbox_replay AS r WHERE r.consumer = ?1 ORDER BY r.number DESC"
    );
    let rows = sqlx::query(sql).bind(consumer).fetch_all(connection).await?;
    rows.iter().map(|row| replay(row, consumer)).collect()
}

fn replay(row: &SqliteRow, consumer: &str) -> Result<Replay, Error> {
    let (fed, waiting, dead): (u64, u64, u64) = (number(row, 8)?, number(row, 9)?, number(row, 10)?);
    Ok(Replay {
        number: number(row, 0)?,
        plan: ReplayPlan {
            consumer: consumer.to_owned(),
            source: column(row, 1)?,
            count: number(row, 2)?,
            rate: number(row, 3)?,
            dead_letters_max: number(row, 4)?,
            requested_by: column(row, 5)?,
            reason: column(row, 6)?,
        },
        state: ReplayState::parse(column(row, 7)?)
            .ok_or_else(|| Error::unexpected_response("a replay's state is unknown"))?,
        enqueued: fed,
        done: fed.saturating_sub(waiting + dead),
        dead,
        ready: number(row, 13)?,
        cursor: column(row, 11)?,
        started_at: time(row, 12)?,
    })
}
