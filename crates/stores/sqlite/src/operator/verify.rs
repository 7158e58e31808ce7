//! Compares committed with settled messages.

use relevo_core::outbox::inspect::{Backlog, MessageStatus};
use relevo_core::outbox::search::{TimeRange, VerifyReport};
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::COUNT_MAX;
use crate::queries::status::{Progress, verify};

/// Returns the size of the backlog: exact up to [`COUNT_MAX`], an estimate above.
pub(super) async fn backlog(connection: &mut SqliteConnection, destination: &str) -> Result<Backlog, Error> {
    let progress = Progress::load(connection, destination).await?;
    let mut pending = verify::count_unsettled(connection, &progress).await?;
    let exact = pending <= COUNT_MAX;
    if !exact {
        pending = verify::estimate_backlog(connection, &progress).await?;
    }
    let (parked, dead) = verify::count_parked_and_dead(connection, destination).await?;
    Ok(Backlog { pending, exact, parked, dead })
}

/// Counts the messages of a time range by status, and finds states that must never occur.
pub(super) async fn verify(
    connection: &mut SqliteConnection,
    destination: &str,
    range: TimeRange,
) -> Result<VerifyReport, Error> {
    let progress = Progress::load(connection, destination).await?;
    let mut report = VerifyReport::default();
    let mut by_status = MessageStatus::ALL.map(|status| (status, 0));
    for found in verify::count_by_status(connection, destination, progress.shards, range).await? {
        report.committed += found.count;
        if let Some((_, count)) = by_status.iter_mut().find(|(status, _)| *status == found.status) {
            *count = found.count;
        }
        if found.status == MessageStatus::Pending {
            report.oldest_unsettled = found.oldest;
        }
    }
    report.by_status = by_status.to_vec();
    report.inconsistencies = verify::inconsistencies(connection, destination, progress.shards).await?;
    Ok(report)
}
