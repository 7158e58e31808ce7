//! Compares committed with settled messages: counts by ranges of sequence numbers, then checks for contradictions.
//! Every check is one statement, so that concurrent traffic cannot cause a false contradiction.

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use relevo_core::outbox::inspect::MessageStatus;
use relevo_core::outbox::search::{MessageFilter, TimeRange, VerifyReport};

use super::Scope;
use super::search::{ScanWidth, minus_skew, plus_skew, seq_and_time, seq_at};
use crate::classify::Error;
use crate::queries::status::verify::{CHECKS, Check, StatusCount, decode_status_counts, decode_violations};
use crate::queries::status::{self, SeqRange};

/// Maximum number of examples per contradiction. Further ones are only counted.
const NAMED_MAX: usize = 5;

pub(super) async fn verify(scope: Scope<'_>, range: TimeRange) -> Result<VerifyReport, Error> {
    let mut counts = StatusCounts::default();
    let sql = scope.status();
    let condition =
        status::condition(&MessageFilter { since: range.since, until: range.until, ..MessageFilter::default() });
    let mut from = match range.since {
        Some(since) => seq_at(scope, minus_skew(since)).await?,
        None => i64::MIN,
    };
    let until = match range.until {
        Some(until) => seq_at(scope, plus_skew(until)).await?,
        None => i64::MAX,
    };
    let mut width = ScanWidth::first();
    while let Some((next, _)) = seq_and_time(scope, sql.oldest_from(from)).await?.filter(|(next, _)| *next < until) {
        let query_began = Instant::now();
        let numbers = SeqRange { start: next, end: next.saturating_add(width.get()).min(until) };
        let answer = scope.connection.copy_out(sql.count_by_status(&numbers, &condition)).await?;
        decode_status_counts(answer)?.iter().for_each(|count| counts.add(count));
        width.adapt(query_began.elapsed());
        from = numbers.end;
    }
    let mut report = counts.into_report();
    for check in &CHECKS {
        report.inconsistencies.extend(run_check(scope, check).await?);
    }
    Ok(report)
}

/// The counts so far.
#[derive(Default)]
struct StatusCounts {
    counts: BTreeMap<MessageStatus, u64>,
    oldest_unsettled: Option<Timestamp>,
    /// Messages that no later window can contain. `skipped` counts those that a window passed without containing them.
    stranded: u64,
    skipped: u64,
    example: Option<i64>,
}

impl StatusCounts {
    fn add(&mut self, count: &StatusCount) {
        *self.counts.entry(count.status).or_default() += count.count;
        let is_unsettled = match count.status {
            MessageStatus::Published | MessageStatus::Dead | MessageStatus::Discarded => false,
            MessageStatus::Scheduled
            | MessageStatus::Pending
            | MessageStatus::Retrying
            | MessageStatus::Held
            | MessageStatus::Quarantined
            | MessageStatus::Waiting => true,
        };
        if is_unsettled {
            self.oldest_unsettled = Some(self.oldest_unsettled.map_or(count.oldest, |known| known.min(count.oldest)));
        }
        self.stranded += count.stranded;
        self.skipped += count.skipped;
        self.example = self.example.or(count.example);
    }

    fn into_report(self) -> VerifyReport {
        let example = self.example.map_or_else(String::new, |seq| format!(", such as number {seq}"));
        let mut inconsistencies = Vec::new();
        if self.stranded > 0 {
            inconsistencies.push(format!(
                "{} messages are neither settled nor ahead of their shard: no window will hold them{example}",
                self.stranded
            ));
        }
        if self.skipped > 0 {
            inconsistencies
                .push(format!("{} messages count as settled although no window held them{example}", self.skipped));
        }
        let counted = |status| (status, self.counts.get(&status).copied().unwrap_or(0));
        VerifyReport {
            committed: self.counts.values().sum(),
            by_status: MessageStatus::ALL.into_iter().map(counted).collect(),
            oldest_unsettled: self.oldest_unsettled,
            inconsistencies,
        }
    }
}

async fn run_check(scope: Scope<'_>, check: &Check) -> Result<Option<String>, Error> {
    let answer = scope.connection.copy_out(scope.status().violations(check, NAMED_MAX)).await?;
    let (names, count) = decode_violations(answer)?;
    if names.is_empty() {
        return Ok(None);
    }
    let more = if count > names.len() as u64 { " …" } else { "" };
    let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    Ok(Some(format!("{}: {count} ({names}{more})", check.description)))
}
