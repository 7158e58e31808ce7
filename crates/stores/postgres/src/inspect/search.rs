//! Searches backwards by ranges of sequence numbers within a time budget. Keys and topics have no index, because it
//! would slow every emit for a rare query.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use relevo_core::outbox::inspect::MessageStatus;
use relevo_core::outbox::search::{MessageFilter, SearchPage};

use super::listing::{self, SeqRange, Sources, Sql};
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::store::Store;

/// The width of the first range. Ranges grow while statements are fast.
const FIRST_SCAN_WIDTH: i64 = 4096;
const FAST_QUERY: Duration = Duration::from_millis(30);
const SLOW_QUERY: Duration = Duration::from_millis(250);
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
    store: &Store,
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
    let in_waiting_room = search.before_seq.is_none_or(|before| before < 0);
    if in_waiting_room && search.status.is_none_or(|status| status == MessageStatus::Scheduled) {
        scheduled(store, search, limit, &mut found).await?;
        if found.next.is_some() {
            return Ok(found);
        }
    }
    let Some(from) = Sources::of(search.status) else { return Ok(found) };
    let mut before = match search.before_seq {
        Some(before) if before >= 0 => before,
        _ => match search.until {
            Some(until) => seq_at(store, plus_skew(until)).await?,
            None => i64::MAX,
        },
    };
    let sql = Sql::of(store);
    let condition = listing::condition(search);
    let mut width = ScanWidth::first();
    let mut is_first = true;
    loop {
        let Some((top, at)) = seq_and_time(store, sql.top(from, before)).await? else { return Ok(found) };
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
        let asked = Instant::now();
        let numbers = SeqRange { start: top.saturating_sub(width.get()).saturating_add(1), end: top.saturating_add(1) };
        let room = limit - found.messages.len();
        let query = sql.list(from, &numbers, &condition, search.status, room);
        found.messages.extend(listing::decode_summaries(store.operator_connection.copy_out(query).await?)?);
        width.adapt(asked.elapsed());
        before = numbers.start;
        if found.messages.len() >= limit {
            let last = found.messages.last().and_then(|last| last.seq).unwrap_or(before);
            // If no row is below the last one, the search is complete.
            found.next = seq_and_time(store, sql.top(from, last)).await?.map(|_| last);
            return Ok(found);
        }
    }
}

/// Adds scheduled messages. Sets the next position if there are more than the limit.
async fn scheduled(store: &Store, search: &MessageFilter, limit: usize, found: &mut SearchPage) -> Result<(), Error> {
    let after =
        search.before_seq.map_or_else(String::new, |before| format!(" AND ordinal < {}", before.unsigned_abs()));
    let condition = listing::condition(search) + &after;
    let sql = Sql::of(store).scheduled(&condition, limit + 1);
    let mut list = listing::decode_scheduled(store.operator_connection.copy_out(sql).await?)?;
    if list.len() > limit {
        list.truncate(limit);
        found.next = list.last().map(|(no, _)| -no);
    } else if list.len() == limit && search.status.is_none() {
        // The search continues in the log, from its end.
        found.next = Some(i64::MAX);
    }
    found.messages.extend(list.into_iter().map(|(_, listed)| listed));
    Ok(())
}

/// Returns the first number of the log whose message was emitted at about this time or later. Returns a number past all
/// of them if there is none.
pub(super) async fn seq_at(store: &Store, time: Timestamp) -> Result<i64, Error> {
    let sql = Sql::of(store);
    let first = seq_and_time(store, sql.next(i64::MIN)).await?;
    let last = seq_and_time(store, sql.top(Sources::LOG, i64::MAX)).await?;
    let (Some((mut low, _)), Some((last, _))) = (first, last) else { return Ok(i64::MAX) };
    let past = last.saturating_add(1);
    let mut high = past;
    while low < high {
        let middle = low + (high - low) / 2;
        match seq_and_time(store, sql.next(middle)).await? {
            Some((seq, at)) if at < time => low = seq.saturating_add(1),
            _ => high = middle,
        }
    }
    Ok(if low >= past { i64::MAX } else { low })
}

/// Reads a sequence number and its emit time.
pub(super) async fn seq_and_time(store: &Store, sql: String) -> Result<Option<(i64, Timestamp)>, Error> {
    let mut rows = CopyRows::new(store.operator_connection.copy_out(sql).await?, 2)?;
    let row = rows.next_row()?;
    row.map(|mut row| Ok((row.int8()?, row.timestamp()?))).transpose()
}

/// Adds the clock tolerance.
pub(super) fn plus_skew(time: Timestamp) -> Timestamp {
    time.saturating_add(CLOCK_SKEW).unwrap_or(Timestamp::MAX)
}

/// Subtracts the clock tolerance.
pub(super) fn minus_skew(time: Timestamp) -> Timestamp {
    time.saturating_sub(CLOCK_SKEW).unwrap_or(Timestamp::MIN)
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
}
