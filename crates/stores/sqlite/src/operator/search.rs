//! Searches backwards through the log within a time budget.

use std::time::Duration;

use jiff::Timestamp;
use relevo_core::outbox::search::{MessageFilter, SearchPage};
use sqlx::sqlite::SqliteConnection;
use tokio::time::Instant;

use crate::classify::Error;
use crate::queries::status::search::{chunk, scheduled, scheduled_ordinal};
use crate::queries::status::{Progress, StatusQuery};

/// Scheduled messages have no number in the log. The cursor of a search among them is this value plus their own number.
const SCHEDULED_CURSOR: i64 = 1 << 62;

/// Returns the newest messages that match the filter, before its cursor.
pub(super) async fn search(
    connection: &mut SqliteConnection,
    destination: &str,
    filter: &MessageFilter,
    limit: usize,
    budget: Duration,
) -> Result<SearchPage, Error> {
    let deadline = Instant::now() + budget;
    let progress = Progress::load(connection, destination).await?;
    let mut page = SearchPage::default();
    let mut before = filter.before_seq.unwrap_or(i64::MAX);
    if before > SCHEDULED_CURSOR {
        page.messages = scheduled(connection, filter, before.saturating_sub(SCHEDULED_CURSOR), limit).await?;
        before = SCHEDULED_CURSOR;
    }
    let mut reached_at = None;
    while page.messages.len() < limit && before > 0 {
        let (low, low_at) = chunk(connection, before).await?;
        let query = StatusQuery {
            from: low,
            before,
            key: filter.key.as_deref(),
            topic: filter.topic.as_deref(),
            kind: filter.kind.as_deref(),
            since_ms: filter.since.map(Timestamp::as_millisecond),
            until_ms: filter.until.map(Timestamp::as_millisecond),
        };
        before = low;
        for row in query.load(connection, destination, &progress).await? {
            if filter.status.is_some_and(|status| status != row.summary.status) {
                continue;
            }
            if page.messages.len() == limit {
                break;
            }
            before = row.summary.seq.unwrap_or(low).max(low);
            page.messages.push(row.with_publish_time(connection, destination).await?);
        }
        if page.messages.len() < limit {
            before = low;
        }
        reached_at = low_at.or(reached_at);
        if Instant::now() >= deadline {
            page.searched_back_to = reached_at.filter(|_| page.messages.len() < limit && before > 0);
            break;
        }
    }
    page.next = match page.messages.last() {
        // The page is full of scheduled messages. The next page continues with them, or with the newest of the log.
        Some(last) if last.seq.is_none() && page.messages.len() >= limit => {
            Some(SCHEDULED_CURSOR + scheduled_ordinal(connection, last.id).await?)
        }
        _ => Some(before).filter(|before| *before > 0),
    };
    Ok(page)
}
