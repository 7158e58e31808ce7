//! Follows the log. One transaction at a time writes, so that messages become visible in the order of their numbers.

use relevo_core::outbox::search::{TAIL_RANGE, TailFilter, TailMessage, TailPage};
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::classify::Error;
use crate::queries::dead_letters::invalid_cursor;
use crate::queries::{self, column, read, time};

/// Returns the next page. The cursor is the number up to which everything was returned.
pub(crate) async fn tail(
    connection: &mut SqliteConnection,
    filter: &TailFilter,
    cursor: Option<&str>,
    limit: usize,
) -> Result<TailPage, Error> {
    let newest = read::newest_seq(connection).await?;
    let (after, order) = match cursor {
        None => (newest.saturating_sub(TAIL_RANGE), "DESC"),
        Some(cursor) => (cursor.parse().map_err(|_| invalid_cursor(cursor))?, "ASC"),
    };
    let sql = format!(
        "SELECT seq, id, created_at_ms, topic, key, type FROM relevo_message WHERE seq > ?1 AND seq <= ?2 \
         AND (?3 IS NULL OR key = ?3) AND (?4 IS NULL OR topic = ?4) AND (?5 IS NULL OR type = ?5) \
         ORDER BY seq {order} LIMIT ?6"
    );
    let select = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(after).bind(newest);
    let select = select.bind(filter.key.as_deref()).bind(filter.topic.as_deref()).bind(filter.kind.as_deref());
    let rows = select.bind(i64::try_from(limit).unwrap_or(i64::MAX)).fetch_all(connection).await?;
    let mut messages = rows.iter().map(message).collect::<Result<Vec<_>, Error>>()?;
    messages.sort_by_key(|message| message.seq);
    let more = cursor.is_some() && messages.len() >= limit;
    let last = messages.last().map(|last| last.seq).filter(|_| more);
    Ok(TailPage { messages, next: last.unwrap_or(newest.max(after)).to_string(), more })
}

fn message(row: &SqliteRow) -> Result<TailMessage, Error> {
    Ok(TailMessage {
        seq: column(row, 0)?,
        id: queries::id(row, 1)?,
        created_at: time(row, 2)?,
        topic: column(row, 3)?,
        key: column(row, 4)?,
        kind: column(row, 5)?,
    })
}
