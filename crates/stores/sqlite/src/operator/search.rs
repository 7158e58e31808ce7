//! Searches backwards through the log within a time budget.

use std::time::Duration;

use jiff::Timestamp;
use relevo_core::MessageId;
use relevo_core::outbox::inspect::{MessageDetails, MessageStatus, MessageSummary};
use relevo_core::outbox::search::{MessageFilter, SearchPage};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tokio::time::Instant;

use crate::classify::Error;
use crate::queries::status::{Lines, Progress};
use crate::queries::{self, column, time};
use crate::store::Store;

/// The number of messages read between two checks of the time.
const CHUNK: i64 = 2000;
/// Scheduled messages have no number in the log. The cursor of a search among them is this value plus their own number.
const SCHEDULED_CURSOR: i64 = 1 << 62;

impl Store {
    pub(crate) async fn search(
        &self,
        search: &MessageFilter,
        limit: usize,
        budget: Duration,
    ) -> Result<SearchPage, Error> {
        let deadline = Instant::now() + budget;
        let mut session = self.read_connection.acquire().await?;
        let progress = Progress::load(&mut session, &self.destination).await?;
        let mut found = SearchPage::default();
        let mut before = search.before_seq.unwrap_or(i64::MAX);
        if before > SCHEDULED_CURSOR {
            found.messages = scheduled(&mut session, search, before.saturating_sub(SCHEDULED_CURSOR), limit).await?;
            before = SCHEDULED_CURSOR;
        }
        let mut low_at = None;
        while found.messages.len() < limit && before > 0 {
            let (low, reached) = chunk(&mut session, before).await?;
            let lines = Lines {
                from: low,
                before,
                key: search.key.as_deref(),
                topic: search.topic.as_deref(),
                kind: search.kind.as_deref(),
                since_ms: search.since.map(Timestamp::as_millisecond),
                until_ms: search.until.map(Timestamp::as_millisecond),
            };
            before = low;
            for line in lines.load(&mut session, &self.destination, &progress).await? {
                if search.status.is_some_and(|status| status != line.listed.status) {
                    continue;
                }
                if found.messages.len() == limit {
                    break;
                }
                before = line.listed.seq.unwrap_or(low).max(low);
                found.messages.push(line.complete(&mut session, &self.destination).await?);
            }
            if found.messages.len() < limit {
                before = low;
            }
            low_at = reached.or(low_at);
            if Instant::now() >= deadline {
                found.searched_back_to = low_at.filter(|_| found.messages.len() < limit && before > 0);
                break;
            }
        }
        session.release();
        found.next = match found.messages.last() {
            // The page is full of scheduled messages. The next page continues with them, or with the newest of the log.
            Some(last) if last.seq.is_none() && found.messages.len() >= limit => Some(self.cursor_after(last).await?),
            _ => Some(before).filter(|before| *before > 0),
        };
        Ok(found)
    }

    /// The cursor of a search after a scheduled message.
    async fn cursor_after(&self, listed: &MessageSummary) -> Result<i64, Error> {
        let mut session = self.read_connection.acquire().await?;
        let select = sqlx::query("SELECT ordinal FROM relevo_scheduled WHERE id = ?1").bind(*listed.id.as_uuid());
        let row = select.fetch_optional(&mut *session).await?;
        session.release();
        Ok(SCHEDULED_CURSOR + row.map(|row| column::<i64>(&row, 0)).transpose()?.unwrap_or(0))
    }

    /// Returns one message with all its details.
    pub(crate) async fn show(&self, id: MessageId) -> Result<Option<MessageDetails>, Error> {
        let mut session = self.read_connection.acquire().await?;
        let progress = Progress::load(&mut session, &self.destination).await?;
        let sql = "SELECT seq, NULL, id, created_at_ms, topic, key, type, content_type, headers, payload \
                   FROM relevo_message WHERE id = ?2 \
                   UNION ALL SELECT seq, NULL, id, created_at_ms, topic, key, type, content_type, headers, payload \
                   FROM relevo_parked_message WHERE id = ?2 AND destination = ?1 \
                   UNION ALL SELECT seq, NULL, id, created_at_ms, topic, key, type, content_type, headers, payload \
                   FROM relevo_dead_letter WHERE id = ?2 AND destination = ?1 AND state <> 'redriven' \
                   UNION ALL SELECT NULL, due_at_ms, id, created_at_ms, topic, key, type, content_type, headers, payload \
                   FROM relevo_scheduled WHERE id = ?2 LIMIT 1";
        let select = sqlx::query(sql).bind(&self.destination).bind(*id.as_uuid());
        let Some(row) = select.fetch_optional(&mut *session).await? else {
            session.release();
            return Ok(None);
        };
        let message = queries::message(&row, 2)?;
        let listed = match column::<Option<i64>>(&row, 0)? {
            None => Some(scheduled_summary(&row, [2, 4, 5, 6, 3, 1])?),
            Some(seq) => {
                let lines = Lines { from: seq, before: seq + 1, ..Lines::default() };
                match lines.load(&mut session, &self.destination, &progress).await?.pop() {
                    Some(line) => Some(line.complete(&mut session, &self.destination).await?),
                    None => None,
                }
            }
        };
        session.release();
        Ok(listed.map(|listed| MessageDetails { summary: listed, message }))
    }
}

/// Returns the end of the next chunk of the log and the emit time there. Returns zero if the chunk is the last.
async fn chunk(connection: &mut SqliteConnection, before: i64) -> Result<(i64, Option<Timestamp>), Error> {
    let sql = "SELECT seq, created_at_ms FROM relevo_message WHERE seq < ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2";
    let row = sqlx::query(sql).bind(before).bind(CHUNK - 1).fetch_optional(connection).await?;
    row.map_or(Ok((0, None)), |row| Ok((column(&row, 0)?, Some(time(&row, 1)?))))
}

async fn scheduled(
    connection: &mut SqliteConnection,
    search: &MessageFilter,
    before: i64,
    limit: usize,
) -> Result<Vec<MessageSummary>, Error> {
    if search.status.is_some_and(|status| status != MessageStatus::Scheduled) {
        return Ok(Vec::new());
    }
    let sql = "SELECT id, topic, key, type, created_at_ms, due_at_ms FROM relevo_scheduled \
               WHERE ordinal < ?1 AND (?2 IS NULL OR key = ?2) AND (?3 IS NULL OR topic = ?3) AND (?4 IS NULL OR \
               type = ?4) \
               AND (?5 IS NULL OR created_at_ms >= ?5) AND (?6 IS NULL OR created_at_ms < ?6) \
               ORDER BY ordinal DESC LIMIT ?7";
    let select = sqlx::query(sql).bind(before).bind(&search.key).bind(&search.topic).bind(&search.kind);
    let select = select.bind(search.since.map(Timestamp::as_millisecond));
    let select =
        select.bind(search.until.map(Timestamp::as_millisecond)).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    select.fetch_all(connection).await?.iter().map(|row| scheduled_summary(row, [0, 1, 2, 3, 4, 5])).collect()
}

/// Reads a scheduled message. The columns are id, topic, key, type, emit time, due time.
pub(crate) fn scheduled_summary(row: &SqliteRow, columns: [usize; 6]) -> Result<MessageSummary, Error> {
    let [id, topic, key, kind, created_at, due_at] = columns;
    Ok(MessageSummary {
        seq: None,
        id: queries::id(row, id)?,
        topic: column(row, topic)?,
        key: column(row, key)?,
        kind: column(row, kind)?,
        created_at: time(row, created_at)?,
        status: MessageStatus::Scheduled,
        attempts: 0,
        next_attempt_at: Some(time(row, due_at)?),
        last_error: None,
        published_at: None,
    })
}
