//! The worker's records, written in the transaction of its inbox.

use async_trait::async_trait;
use relevo::inbox::HandlerError;
use uuid::Uuid;

use super::figures::{DayChange, Figure};
use crate::desk::DeskError;
use crate::mail::Letter;

/// A transaction of either database.
#[async_trait]
pub(super) trait Books: Send {
    /// Records that the mail server accepted this letter.
    async fn sent(&mut self, letter: &Letter) -> Result<(), sqlx::Error>;

    /// The figures of a ticket.
    async fn figure(&mut self, ticket: Uuid) -> Result<Option<Figure>, sqlx::Error>;

    /// Stores the figures of a ticket.
    async fn keep(&mut self, figure: &Figure) -> Result<(), sqlx::Error>;

    /// Adds to a day.
    async fn count(&mut self, change: &DayChange) -> Result<(), sqlx::Error>;
}

/// The additions of a change: opened, resolved, first responses, and the milliseconds of the last two.
pub(super) fn added(change: &DayChange) -> [i64; 5] {
    use super::figures::Counted;
    match change.what {
        Counted::Opened => [1, 0, 0, 0, 0],
        Counted::Resolved(took) => [0, 1, 0, 0, took],
        Counted::FirstResponse(took) => [0, 0, 1, took, 0],
    }
}

/// PostgreSQL's class of conflicts between transactions.
const CONFLICT: &str = "40";

/// The handler error for a database error. An unreachable database counts no attempt. A conflict of two transactions concerns only
/// these two, so that no breaker opens.
pub(super) fn of_database(error: sqlx::Error) -> HandlerError {
    let code = error.as_database_error().and_then(|error| error.code().map(std::borrow::Cow::into_owned));
    let is_conflict = code.is_some_and(|code| code.len() == 5 && code.starts_with(CONFLICT));
    match DeskError::from(error) {
        DeskError::Away(error) if !is_conflict => HandlerError::unavailable(error),
        error => HandlerError::transient(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_database_counts_no_attempt() {
        let class = |error: sqlx::Error| of_database(error).to_string().split(':').next().map(str::to_owned);
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        for error in [sqlx::Error::PoolTimedOut, sqlx::Error::WorkerCrashed, sqlx::Error::Io(broken)] {
            assert_eq!(class(error).as_deref(), Some("outage"));
        }
        assert_eq!(class(sqlx::Error::RowNotFound).as_deref(), Some("transient"));
    }
}
