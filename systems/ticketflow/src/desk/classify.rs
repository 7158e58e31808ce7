//! What an error of a database means: whether the same request may succeed later.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;

use super::DeskError;

/// PostgreSQL's classes for what passes: connections, a standby, deadlocks, resources, waits for a lock, an operator.
const POSTGRES: [&str; 6] = ["08", "25006", "40", "53", "55P", "57"];
/// SQLite's codes for the same: busy, locked, an error of the disk, a full one, a file that cannot be opened.
const SQLITE: [u32; 5] = [5, 6, 10, 13, 14];
/// PostgreSQL's code for a statement that took too long, or that an operator stopped.
const CANCELLED: &str = "57014";

impl From<sqlx::Error> for DeskError {
    fn from(error: sqlx::Error) -> Self {
        let is_unreachable = match &error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => true,
            sqlx::Error::Database(database) => passes(&**database),
            // The rest is about us: statements, columns, configuration.
            _ => false,
        };
        if is_unreachable { Self::Away(error) } else { Self::Broken(error.into()) }
    }
}

impl DeskError {
    /// Whether the database is there, and gave a statement up because it took too long.
    pub(crate) fn is_late(&self) -> bool {
        let Self::Away(error) = self else { return false };
        error.as_database_error().is_some_and(|error| error.code().as_deref() == Some(CANCELLED))
    }
}

fn passes(error: &dyn DatabaseError) -> bool {
    let code = error.code().unwrap_or_default();
    if error.try_downcast_ref::<PgDatabaseError>().is_some() {
        return POSTGRES.iter().any(|class| code.starts_with(class));
    }
    // What stands above the low byte says it more exactly.
    code.parse::<u32>().is_ok_and(|code| SQLITE.contains(&(code & 0xff)))
}
