//! Maps database errors to the failure classes of the relay.

use relevo_core::inbox::transactions::CommitOutcome;
use relevo_core::store::StoreError;
use sqlx::postgres::PgSeverity;

/// An error of a database call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The server returned an error.
    #[error(transparent)]
    Server(Box<sqlx::postgres::PgDatabaseError>),
    /// The connection failed or broke.
    #[error(transparent)]
    Connection(sqlx::Error),
    /// The server did not respond before the deadline.
    #[error("no response within {0:?}")]
    Timeout(std::time::Duration),
    /// The response is malformed.
    #[error("unexpected response: {0}")]
    UnexpectedResponse(&'static str),
    /// A tick that progress refers to is missing.
    #[error("unexpected response: tick {0} is missing but progress refers to it")]
    MissingTick(i64),
    /// The destination does not exist.
    #[error("destination \"{0}\" is not known; hint: add it with `relevo destination add`")]
    UnknownDestination(String),
    /// The position in a list is not one that this store returned.
    #[error("`{0}` is not a position in this list")]
    InvalidCursor(String),
    /// A snapshot of a standby does not list open transactions, so a tail would miss them.
    #[error("a standby cannot be followed; hint: use the URL of the primary server")]
    StandbyHasNoTail,
    /// A search reached its time limit.
    #[error("message {id} was not found within {budget:?}; hint: search with `relevo message list --key KEY`")]
    SearchTimedOut {
        /// The message id.
        id: relevo_core::MessageId,
        /// The time limit.
        budget: std::time::Duration,
    },
    /// The server switched to another timeline while the relay held a lease.
    #[error("the server moved from timeline {from} to {to}")]
    TimelineChanged {
        /// The timeline on which the lease was acquired.
        from: i64,
        /// The current timeline of the server.
        to: i64,
    },
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(database) => match database.try_downcast::<sqlx::postgres::PgDatabaseError>() {
                Ok(error) => Self::Server(error),
                Err(other) => Self::Connection(sqlx::Error::Database(other)),
            },
            other => Self::Connection(other),
        }
    }
}

impl Error {
    /// Whether another transaction blocked this call. The same call may succeed shortly after.
    pub(crate) fn is_contention(&self) -> bool {
        matches!(self, Self::Server(error) if is_contention(error.code()))
    }

    /// Whether the server ended the session: an administrator terminated it, or the server is shutting down. Its open
    /// transaction was rolled back.
    pub(crate) fn is_session_end(&self) -> bool {
        matches!(self, Self::Server(error) if error.code().starts_with("57P0"))
    }

    /// Whether the connection is still usable.
    pub(crate) fn leaves_connection_usable(&self) -> bool {
        match self {
            // The server ends the session after FATAL and PANIC. 08: a pooler lost its connection to the server.
            Self::Server(error) => {
                !matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic) && !error.code().starts_with("08")
            }
            Self::UnexpectedResponse(_)
            | Self::MissingTick(_)
            | Self::UnknownDestination(_)
            | Self::InvalidCursor(_)
            | Self::StandbyHasNoTail
            | Self::SearchTimedOut { .. }
            | Self::TimelineChanged { .. } => true,
            Self::Connection(_) | Self::Timeout(_) => false,
        }
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Server(server) => from_server(server),
            Error::Connection(_) | Error::Timeout(_) | Error::TimelineChanged { .. } => {
                Self::Unavailable(Box::new(error))
            }
            Error::UnexpectedResponse(_) | Error::MissingTick(_) => Self::Unexpected(Box::new(error)),
            Error::UnknownDestination(_)
            | Error::InvalidCursor(_)
            | Error::StandbyHasNoTail
            | Error::SearchTimedOut { .. } => Self::Refused { reason: error.to_string() },
        }
    }
}

impl Error {
    /// How a failed commit ended. Returns the error if the commit may have happened.
    ///
    /// A handler that works longer than `transaction_timeout` or `statement_timeout` would do so again: its attempt
    /// counts.
    pub(crate) fn at_commit(self) -> Result<CommitOutcome, StoreError> {
        match self {
            Self::Server(error) if is_contention(error.code()) => Ok(CommitOutcome::Stale),
            Self::Server(error) if matches!(error.code(), "25P04" | "57014") => Ok(rejected(error)),
            other => match StoreError::from(other) {
                StoreError::Unexpected(error) => Ok(CommitOutcome::Rejected { permanent: false, error }),
                error => Err(error),
            },
        }
    }
}

fn rejected(error: Box<sqlx::postgres::PgDatabaseError>) -> CommitOutcome {
    CommitOutcome::Rejected { permanent: false, error }
}

/// Lock timeout, serialization failure, deadlock: another transaction blocked this one, which changed nothing.
fn is_contention(code: &str) -> bool {
    matches!(code, "55P03" | "40001" | "40P01")
}

const GRANT_HINT: &str = "grant the role its rights with `relevo grant`, or connect as the owner of the schema";

fn from_server(error: Box<sqlx::postgres::PgDatabaseError>) -> StoreError {
    let sentence = match error.hint() {
        Some(hint) => format!("{}; hint: {hint}", error.message()),
        None => error.message().to_owned(),
    };
    match error.code() {
        "RV002" => StoreError::Standby,
        "RV003" => StoreError::WrongDatabase { reason: sentence },
        "42501" => StoreError::Refused { reason: format!("{sentence}; hint: {GRANT_HINT}") },
        // The destination is disabled or unknown, the login failed, or the database does not exist.
        "RV005" | "28P01" | "28000" | "3D000" => StoreError::Refused { reason: sentence },
        // A schema, table, function or column is missing or has another definition.
        "3F000" | "42P01" | "42883" | "42703" => {
            StoreError::SchemaMismatch { reason: format!("{sentence}; hint: run `relevo migrate`") }
        }
        code if is_contention(code) => StoreError::Busy { retry_after: None, source: error },
        // The call took too long and was aborted. It changed nothing.
        "57014" | "25P03" | "25P04" => StoreError::Unavailable(error),
        code if code.starts_with("57P0") || code.starts_with("08") || code.starts_with("53") => {
            StoreError::Unavailable(error)
        }
        _ => StoreError::Unexpected(error),
    }
}
