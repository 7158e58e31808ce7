//! Statements of a search.

use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::outbox::inspect::{MessageDetails, MessageStatus, MessageSummary};
use relevo_core::outbox::search::MessageFilter;
use sqlx::sqlite::SqliteConnection;

use super::{Progress, StatusQuery, scheduled_summary};
use crate::classify::Error;
use crate::queries::{self, column, time};

/// The number of messages in a chunk.
const CHUNK: i64 = 2000;

/// Returns the sequence number where the next chunk of the log ends, and its emit time. Zero for the last chunk.
pub(crate) async fn chunk(connection: &mut SqliteConnection, before: i64) -> Result<(i64, Option<Timestamp>), Error> {
    let sql = "SELECT seq, created_at_ms FROM relevo_message WHERE seq < ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2";
    let row = sqlx::query(sql).bind(before).bind(CHUNK - 1).fetch_optional(connection).await?;
    row.map_or(Ok((0, None)), |row| Ok((column(&row, 0)?, Some(time(&row, 1)?))))
}

/// Lists scheduled messages, the newest first.
pub(crate) async fn scheduled(
    connection: &mut SqliteConnection,
    filter: &MessageFilter,
    before: i64,
    limit: usize,
) -> Result<Vec<MessageSummary>, Error> {
    if filter.status.is_some_and(|status| status != MessageStatus::Scheduled) {
        return Ok(Vec::new());
    }
    let sql = "SELECT id, topic, key, type, created_at_ms, due_at_ms FROM relevo_scheduled \
               WHERE ordinal < ?1 AND (?2 IS NULL OR key = ?2) AND (?3 IS NULL OR topic = ?3) AND (?4 IS NULL OR \
               type = ?4) \
               AND (?5 IS NULL OR created_at_ms >= ?5) AND (?6 IS NULL OR created_at_ms < ?6) \
               ORDER BY ordinal DESC LIMIT ?7";
    let select = sqlx::query(sql).bind(before).bind(&filter.key).bind(&filter.topic).bind(&filter.kind);
    let select = select.bind(filter.since.map(Timestamp::as_millisecond));
    let select =
        select.bind(filter.until.map(Timestamp::as_millisecond)).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    select.fetch_all(connection).await?.iter().map(|row| scheduled_summary(row, [0, 1, 2, 3, 4, 5])).collect()
}

/// Returns the ordinal of a scheduled message, or zero if it is no longer scheduled.
pub(crate) async fn scheduled_ordinal(connection: &mut SqliteConnection, id: MessageId) -> Result<i64, Error> {
    let select = sqlx::query("SELECT ordinal FROM relevo_scheduled WHERE id = ?1").bind(*id.as_uuid());
    let row = select.fetch_optional(connection).await?;
    Ok(row.map(|row| column::<i64>(&row, 0)).transpose()?.unwrap_or(0))
}

/// Returns one message with all its details.
pub(crate) async fn show(
    connection: &mut SqliteConnection,
    destination: &str,
    id: MessageId,
) -> Result<Option<MessageDetails>, Error> {
    let progress = Progress::load(connection, destination).await?;
    let sql = "SELECT seq, NULL, id, created_at_ms, topic, key, type, content_type, headers, payload \
               FROM relevo_message WHERE id = ?2 \
               UNION ALL SELECT seq, NULL, id, created_at_ms, topic, key, type, content_type, headers, payload \
               FROM relevo_parked_message WHERE id = ?2 AND destination = ?1 \
               UNION ALL SELECT seq, NULL, id, created_at_ms, topic, key, type, content_type, headers, payload \
               FROM relevo_dead_letter WHERE id = ?2 AND destination = ?1 AND state <> 'redriven' \
               UNION ALL SELECT NULL, due_at_ms, id, created_at_ms, topic, key, type, content_type, headers, payload \
               FROM relevo_scheduled WHERE id = ?2 LIMIT 1";
    let select = sqlx::query(sql).bind(destination).bind(*id.as_uuid());
    let Some(row) = select.fetch_optional(&mut *connection).await? else { return Ok(None) };
    let message = queries::message(&row, 2)?;
    let summary = match column::<Option<i64>>(&row, 0)? {
        None => scheduled_summary(&row, [2, 4, 5, 6, 3, 1])?,
        Some(seq) => match StatusQuery::load_one(connection, destination, &progress, seq).await? {
            Some(row) => row.with_publish_time(connection, destination).await?,
            None => return Ok(None),
        },
    };
    Ok(Some(MessageDetails { summary, message }))
}
