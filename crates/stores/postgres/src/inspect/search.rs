//! Searches backwards by ranges of sequence numbers within a time budget. Keys and topics have no index, because it
//! would slow every emit for a rare query.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use relevo_core::operate::{Found, Search, Status};

use super::listing::{self, Numbers, Sources, Sql};
use crate::classify::Error;
use crate::copy::Rows;
use crate::store::Store;

/// The width of the first range. Ranges grow while statements are fast.
const FIRST_WIDTH: i64 = 4096;
const QUICK: Duration = Duration::from_millis(30);
const SLOW: Duration = Duration::from_millis(250);
/// Tolerance for times. Writers draw numbers just before they read the clock, many at once, and clocks are adjusted.
/// Times follow the order of numbers only within this tolerance.
const SLACK: SignedDuration = SignedDuration::from_secs(60);

/// The number of sequence numbers that one statement reads. It adapts to the time that statements take.
pub(super) struct Width(i64);

impl Width {
    pub(super) const fn first() -> Self {
        Self(FIRST_WIDTH)
    }

    pub(super) const fn get(&self) -> i64 {
        self.0
    }

    pub(super) fn adapt(&mut self, took: Duration) {
        if took < QUICK {
            self.0 = self.0.saturating_mul(2);
        } else if took > SLOW {
            self.0 = (self.0 / 2).max(FIRST_WIDTH / 4);
        }
    }
}

pub(super) async fn search(store: &Store, search: &Search, limit: usize, budget: Duration) -> Result<Found, Error> {
    let began = Instant::now();
    let mut found = Found::default();
    if limit == 0 {
        found.next = search.before;
        return Ok(found);
    }
    // Scheduled messages are the newest. Their own numbers are negative here.
    let in_waiting_room = search.before.is_none_or(|before| before < 0);
    if in_waiting_room && search.status.is_none_or(|status| status == Status::Scheduled) {
        scheduled(store, search, limit, &mut found).await?;
        if found.next.is_some() {
            return Ok(found);
        }
    }
    let Some(from) = Sources::of(search.status) else { return Ok(found) };
    let mut before = match search.before {
        Some(before) if before >= 0 => before,
        _ => match search.until {
            Some(until) => number_at(store, later(until)).await?,
            None => i64::MAX,
        },
    };
    let sql = Sql::of(store);
    let condition = listing::condition(search);
    let mut width = Width::first();
    let mut is_first = true;
    loop {
        let Some((top, at)) = probe(store, sql.top(from, before)).await? else { return Ok(found) };
        if search.since.is_some_and(|since| later(at) < since) {
            return Ok(found);
        }
        // Read one range whatever the budget is, so that every call makes progress.
        if began.elapsed() >= budget && !is_first {
            found.next = Some(top.saturating_add(1));
            found.ran_out_at = Some(at);
            return Ok(found);
        }
        is_first = false;
        let asked = Instant::now();
        let numbers = Numbers { start: top.saturating_sub(width.get()).saturating_add(1), end: top.saturating_add(1) };
        let room = limit - found.messages.len();
        let query = sql.list(from, &numbers, &condition, search.status, room);
        found.messages.extend(listing::listed(store.asking.copy(query).await?)?);
        width.adapt(asked.elapsed());
        before = numbers.start;
        if found.messages.len() >= limit {
            let last = found.messages.last().and_then(|last| last.seq).unwrap_or(before);
            // If no row is below the last one, the search is complete.
            found.next = probe(store, sql.top(from, last)).await?.map(|_| last);
            return Ok(found);
        }
    }
}

/// Adds scheduled messages. Sets the next position if there are more than the limit.
async fn scheduled(store: &Store, search: &Search, limit: usize, found: &mut Found) -> Result<(), Error> {
    let after = search.before.map_or_else(String::new, |before| format!(" AND ordinal < {}", before.unsigned_abs()));
    let condition = listing::condition(search) + &after;
    let sql = Sql::of(store).scheduled(&condition, limit + 1);
    let mut list = listing::scheduled(store.asking.copy(sql).await?)?;
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
pub(super) async fn number_at(store: &Store, time: Timestamp) -> Result<i64, Error> {
    let sql = Sql::of(store);
    let first = probe(store, sql.next(i64::MIN)).await?;
    let last = probe(store, sql.top(Sources::LOG, i64::MAX)).await?;
    let (Some((mut low, _)), Some((last, _))) = (first, last) else { return Ok(i64::MAX) };
    let past = last.saturating_add(1);
    let mut high = past;
    while low < high {
        let middle = low + (high - low) / 2;
        match probe(store, sql.next(middle)).await? {
            Some((seq, at)) if at < time => low = seq.saturating_add(1),
            _ => high = middle,
        }
    }
    Ok(if low >= past { i64::MAX } else { low })
}

/// Reads a sequence number and its emit time.
pub(super) async fn probe(store: &Store, sql: String) -> Result<Option<(i64, Timestamp)>, Error> {
    let mut rows = Rows::new(store.asking.copy(sql).await?, 2)?;
    let row = rows.next_row()?;
    row.map(|mut row| Ok((row.int8()?, row.timestamp()?))).transpose()
}

/// Adds the clock tolerance.
pub(super) fn later(time: Timestamp) -> Timestamp {
    time.saturating_add(SLACK).unwrap_or(Timestamp::MAX)
}

/// Subtracts the clock tolerance.
pub(super) fn earlier(time: Timestamp) -> Timestamp {
    time.saturating_sub(SLACK).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_while_they_are_quick_and_shrink_when_they_are_slow() {
        let mut width = Width::first();
        width.adapt(Duration::ZERO);
        assert_eq!(width.get(), 2 * FIRST_WIDTH);
        width.adapt(QUICK);
        assert_eq!(width.get(), 2 * FIRST_WIDTH);
        (0..10).for_each(|_| width.adapt(Duration::from_secs(1)));
        assert_eq!(width.get(), FIRST_WIDTH / 4);
        (0..100).for_each(|_| width.adapt(Duration::ZERO));
        assert_eq!(width.get(), i64::MAX);
    }
}
