//! Searches backwards by ranges of sequence numbers within a time budget, and finds one message by its id. Keys, topics
//! and ids have no index, because it would slow every emit for a rare query.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use relevo_core::MessageId;
use relevo_core::outbox::inspect::{MessageDetails, MessageStatus, MessageSummary};
use relevo_core::outbox::search::{MessageFilter, SearchPage};

use super::Scope;
use crate::classify::Error;
use crate::queries::status::{self, SeqRange, Sources};

/// The width of the first range. Ranges grow while statements are fast.
const FIRST_SCAN_WIDTH: i64 = 4096;
const FAST_QUERY: Duration = Duration::from_millis(30);
const SLOW_QUERY: Duration = Duration::from_millis(250);
/// An id is created at most this long before or after its message.
const ID_TIME_TOLERANCE: SignedDuration = SignedDuration::from_secs(5);
/// Time limit of the search from the end of the log.
const SEARCH_BUDGET: Duration = Duration::from_secs(30);
/// Tolerance for times. Writers draw numbers just before they read the clock, many at once, and clocks are adjusted.
/// Times follow the order of numbers only within this tolerance.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(60);

/// The number of sequence numbers that one statement reads. It adapts to the time that statements take.
pub(super) struct ScanWidth(i64);

impl ScanWidth {
    pub(super) const fn first() -> Self {
        Self(FIRST_SCAN_WIDTH)
    }

    pub(super) const fn get(&self) -> i64 {
        self.0
    }

    pub(super) fn adapt(&mut self, took: Duration) {
        if took < FAST_QUERY {
            self.0 = self.0.saturating_mul(2);
        } else if took > SLOW_QUERY {
            self.0 = (self.0 / 2).max(FIRST_SCAN_WIDTH / 4);
        }
    }
}

pub(super) async fn search(
    scope: Scope<'_>,
    search: &MessageFilter,
    limit: usize,
    budget: Duration,
) -> Result<SearchPage, Error> {
    let began = Instant::now();
    let mut found = SearchPage::default();
    if limit == 0 {
        found.next = search.before_seq;
        return Ok(found);
    }
    // Scheduled messages are the newest. Their own numbers are negative here.
    let in_scheduled = search.before_seq.is_none_or(|before| before < 0);
    if in_scheduled && search.status.is_none_or(|status| status == MessageStatus::Scheduled) {
        scheduled(scope, search, limit, &mut found).await?;
        if found.next.is_some() {
            return Ok(found);
        }
    }
    let Some(from) = Sources::of(search.status) else { return Ok(found) };
    let mut before = match search.before_seq {
        Some(before) if before >= 0 => before,
        _ => match search.until {
            Some(until) => seq_at(scope, plus_skew(until)).await?,
            None => i64::MAX,
        },
    };
    let sql = scope.status();
    let condition = status::condition(search);
    let mut width = ScanWidth::first();
    let mut is_first = true;
    loop {
        let Some((top, at)) = seq_and_time(scope, sql.newest_below(from, before)).await? else { return Ok(found) };
        if search.since.is_some_and(|since| plus_skew(at) < since) {
            return Ok(found);
        }
        // Read one range whatever the budget is, so that every call makes progress.
        if began.elapsed() >= budget && !is_first {
            found.next = Some(top.saturating_add(1));
            found.searched_back_to = Some(at);
            return Ok(found);
        }
        is_first = false;
        let query_began = Instant::now();
        let numbers = SeqRange { start: top.saturating_sub(width.get()).saturating_add(1), end: top.saturating_add(1) };
        let remaining = limit - found.messages.len();
        let query = sql.list(from, &numbers, &condition, search.status, remaining);
        found.messages.extend(status::decode_summaries(scope.connection.copy_out(query).await?)?);
        width.adapt(query_began.elapsed());
        before = numbers.start;
        if found.messages.len() >= limit {
            let last = found.messages.last().and_then(|last| last.seq).unwrap_or(before);
            // If no row is below the last one, the search is complete.
            found.next = seq_and_time(scope, sql.newest_below(from, last)).await?.map(|_| last);
            return Ok(found);
        }
    }
}

/// Adds scheduled messages. Sets the next position if there are more than the limit.
async fn scheduled(
    scope: Scope<'_>,
    search: &MessageFilter,
    limit: usize,
    found: &mut SearchPage,
) -> Result<(), Error> {
    let before = search.before_seq.map(i64::unsigned_abs);
    let sql = scope.status().scheduled(&status::scheduled_condition(search, before), limit + 1);
    let mut list = status::decode_scheduled(scope.connection.copy_out(sql).await?)?;
    if list.len() > limit {
        list.truncate(limit);
        found.next = list.last().map(|(ordinal, _)| -ordinal);
    } else if list.len() == limit && search.status.is_none() {
        // The search continues in the log, from its end.
        found.next = Some(i64::MAX);
    }
    found.messages.extend(list.into_iter().map(|(_, summary)| summary));
    Ok(())
}

/// Returns the first number of the log whose message was emitted at about this time or later. Returns a number past all
/// of them if there is none.
pub(super) async fn seq_at(scope: Scope<'_>, time: Timestamp) -> Result<i64, Error> {
    let sql = scope.status();
    let first = seq_and_time(scope, sql.oldest_from(i64::MIN)).await?;
    let last = seq_and_time(scope, sql.newest_below(Sources::LOG, i64::MAX)).await?;
    let (Some((mut low, _)), Some((last, _))) = (first, last) else { return Ok(i64::MAX) };
    let past = last.saturating_add(1);
    let mut high = past;
    while low < high {
        let middle = low + (high - low) / 2;
        match seq_and_time(scope, sql.oldest_from(middle)).await? {
            Some((seq, at)) if at < time => low = seq.saturating_add(1),
            _ => high = middle,
        }
    }
    Ok(if low >= past { i64::MAX } else { low })
}

/// Reads a sequence number and its emit time.
pub(super) async fn seq_and_time(scope: Scope<'_>, sql: String) -> Result<Option<(i64, Timestamp)>, Error> {
    Ok(status::decode_seqs_and_times(scope.connection.copy_out(sql).await?)?.into_iter().next())
}

/// Adds the clock tolerance.
pub(super) fn plus_skew(time: Timestamp) -> Timestamp {
    time.saturating_add(CLOCK_SKEW).unwrap_or(Timestamp::MAX)
}

/// Subtracts the clock tolerance.
pub(super) fn minus_skew(time: Timestamp) -> Timestamp {
    time.saturating_sub(CLOCK_SKEW).unwrap_or(Timestamp::MIN)
}

/// Finds one message by its id. Most ids contain their creation time, which leads to a range of numbers.
pub(super) async fn show(scope: Scope<'_>, id: MessageId) -> Result<Option<MessageDetails>, Error> {
    let sql = scope.status();
    let scheduled = scope.connection.copy_out(sql.scheduled_by_id(id)).await?;
    if let Some((_, summary)) = status::decode_scheduled(scheduled)?.into_iter().next() {
        let message = scope.connection.copy_out(sql.scheduled_message(id)).await?;
        // If it entered the log in the meantime, the code below finds it.
        if let Some(message) = status::decode_message(message)? {
            return Ok(Some(MessageDetails { summary, message }));
        }
    }
    let Some(seq) = seq_of(scope, id).await? else { return Ok(None) };
    let Some(summary) = summary_at(scope, seq).await? else { return Ok(None) };
    let tables = match summary.status {
        MessageStatus::Dead | MessageStatus::Discarded => ["dead_letter", "message"],
        MessageStatus::Retrying | MessageStatus::Held | MessageStatus::Quarantined | MessageStatus::Waiting => {
            ["parked_message", "message"]
        }
        MessageStatus::Scheduled | MessageStatus::Pending | MessageStatus::Published => ["message", "parked_message"],
    };
    for table in tables {
        let message = scope.connection.copy_out(sql.full_message(table, seq)).await?;
        if let Some(message) = status::decode_message(message)? {
            return Ok(Some(MessageDetails { summary, message }));
        }
    }
    Ok(None)
}

/// Returns the status of the message with this number.
pub(super) async fn summary_at(scope: Scope<'_>, seq: i64) -> Result<Option<MessageSummary>, Error> {
    let numbers = SeqRange { start: seq, end: seq.saturating_add(1) };
    let condition = status::condition(&MessageFilter::default());
    let sql = scope.status().list(Sources::ALL, &numbers, &condition, None, 1);
    Ok(status::decode_summaries(scope.connection.copy_out(sql).await?)?.into_iter().next())
}

async fn seq_of(scope: Scope<'_>, id: MessageId) -> Result<Option<i64>, Error> {
    let sql = scope.status();
    if let Some(seq) = optional_seq(scope, sql.seq_in_table("dead_letter", id)).await? {
        return Ok(Some(seq));
    }
    let claimed_at = status::decode_time(scope.connection.copy_out(sql.id_claimed_at(id)).await?)?;
    for created_at in [claimed_at, id_created_at(id)].into_iter().flatten() {
        let start = seq_at(scope, created_at.saturating_sub(ID_TIME_TOLERANCE).unwrap_or(Timestamp::MIN)).await?;
        let end = seq_at(scope, created_at.saturating_add(ID_TIME_TOLERANCE).unwrap_or(Timestamp::MAX)).await?;
        if let Some(seq) = optional_seq(scope, sql.seq_in_range(id, &SeqRange { start, end })).await? {
            return Ok(Some(seq));
        }
    }
    if let Some(seq) = optional_seq(scope, sql.seq_in_table("parked_message", id)).await? {
        return Ok(Some(seq));
    }
    // A scheduled message entered the log long after its id was created.
    let began = Instant::now();
    let mut width = ScanWidth::first();
    let mut before = i64::MAX;
    while let Some((top, _)) = seq_and_time(scope, sql.newest_below(Sources::LOG, before)).await? {
        if began.elapsed() > SEARCH_BUDGET {
            return Err(Error::SearchTimedOut { id, budget: SEARCH_BUDGET });
        }
        let query_began = Instant::now();
        let numbers = SeqRange { start: top.saturating_sub(width.get()), end: top.saturating_add(1) };
        if let Some(seq) = optional_seq(scope, sql.seq_in_range(id, &numbers)).await? {
            return Ok(Some(seq));
        }
        width.adapt(query_began.elapsed());
        before = numbers.start;
    }
    Ok(None)
}

/// Reads a number, such as a sequence number, if there is one.
pub(super) async fn optional_seq(scope: Scope<'_>, sql: String) -> Result<Option<i64>, Error> {
    status::decode_seq(scope.connection.copy_out(sql).await?)
}

/// Returns the creation time that a version 7 id contains.
fn id_created_at(id: MessageId) -> Option<Timestamp> {
    let uuid = id.as_uuid();
    if uuid.get_version_num() != 7 {
        return None;
    }
    let millis = uuid.as_u128() >> 80;
    Timestamp::from_millisecond(i64::try_from(millis).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_widths_grow_while_queries_are_fast_and_shrink_when_they_are_slow() {
        let mut width = ScanWidth::first();
        width.adapt(Duration::ZERO);
        assert_eq!(width.get(), 2 * FIRST_SCAN_WIDTH);
        width.adapt(FAST_QUERY);
        assert_eq!(width.get(), 2 * FIRST_SCAN_WIDTH);
        (0..10).for_each(|_| width.adapt(Duration::from_secs(1)));
        assert_eq!(width.get(), FIRST_SCAN_WIDTH / 4);
        (0..100).for_each(|_| width.adapt(Duration::ZERO));
        assert_eq!(width.get(), i64::MAX);
    }

    #[test]
    fn a_version_7_id_contains_its_creation_time() {
        let time = id_created_at(MessageId::v7(1_700_000_000_123, [0xff; 10])).expect("a time");
        assert_eq!(time.as_millisecond(), 1_700_000_000_123);
        assert_eq!(id_created_at("5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10".parse().expect("an id")), None);
    }
}
