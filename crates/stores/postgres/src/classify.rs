//! What an error of the database means to a relay.

use relevo_core::store::StoreError;

/// What can go wrong in a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The server answered with an error of its own.
    #[error(transparent)]
    Server(Box<sqlx::postgres::PgDatabaseError>),
    /// The connection cannot be made, or broke.
    #[error(transparent)]
    Connection(sqlx::Error),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Deadline(std::time::Duration),
    /// The answer cannot be read.
    #[error("the answer cannot be read: {0}")]
    Answer(&'static str),
    /// There is no such destination.
    #[error("destination \"{0}\" is not known; hint: add it with `relevo destination add`")]
    NoDestination(String),
    /// The schema is older than the inbox.
    #[error("schema {0} has no inbox yet; hint: run `relevo migrate`")]
    NoInbox(String),
    /// The schema is older than what was asked of it.
    #[error("schema {schema} is older than version {since}, which this needs; hint: run `relevo migrate`")]
    Older {
        /// Which schema.
        schema: String,
        /// The version that it needs.
        since: i32,
    },
    /// A search came to the end of its time.
    #[error("message {id} was not found within {budget:?}; hint: look for it with `relevo outbox list --key KEY`")]
    NotFoundInTime {
        /// What was looked for.
        id: relevo_core::MessageId,
        /// How long.
        budget: std::time::Duration,
    },
    /// The server moved to another timeline under a lease.
    #[error("the server moved from timeline {from} to {to}")]
    Timeline {
        /// Where the lease was taken.
        from: i64,
        /// Where the server is now.
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
    /// Whether another transaction was in the way: the same call may pass shortly after.
    pub(crate) fn is_contention(&self) -> bool {
        // A lock that was not had in time, a snapshot that is too old, a circle of waits.
        matches!(self, Self::Server(error) if matches!(error.code(), "55P03" | "40001" | "40P01"))
    }

    /// Whether a table or a function is not there: the schema is older than what was asked of it.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Server(error) if matches!(error.code(), "42P01" | "42883"))
    }

    /// Whether the server ended the session, by an operator's order or because it goes down. What ran in it was rolled back.
    pub(crate) fn is_session_end(&self) -> bool {
        matches!(self, Self::Server(error) if error.code().starts_with("57P0"))
    }

    /// Whether the connection can serve another call.
    pub(crate) fn keeps_connection(&self) -> bool {
        match self {
            // 57P0x: the server is going down, or crashed. 25P03: it ended a session that stood still.
            Self::Server(error) => {
                !error.code().starts_with("57P0") && !error.code().starts_with("08") && error.code() != "25P03"
            }
            Self::Answer(_)
            | Self::NoDestination(_)
            | Self::NoInbox(_)
            | Self::Older { .. }
            | Self::NotFoundInTime { .. }
            | Self::Timeline { .. } => true,
            Self::Connection(_) | Self::Deadline(_) => false,
        }
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match error {
            Error::Server(server) => of_server(server),
            Error::Connection(_) | Error::Deadline(_) | Error::Timeline { .. } => Self::Away(Box::new(error)),
            Error::NoInbox(_) | Error::Older { .. } => Self::Schema { what: error.to_string() },
            Error::Answer(_) => Self::Broken(Box::new(error)),
            Error::NoDestination(_) | Error::NotFoundInTime { .. } => Self::Refused { what: error.to_string() },
        }
    }
}

fn of_server(error: Box<sqlx::postgres::PgDatabaseError>) -> StoreError {
    let sentence = match error.hint() {
        Some(hint) => format!("{}; hint: {hint}", error.message()),
        None => error.message().to_owned(),
    };
    match error.code() {
        "RV002" => StoreError::Standby,
        "RV003" => StoreError::Foreign { what: sentence },
        // Switched off or unknown; a relay that lacks a grant, a login that is refused, a database that is not there.
        "RV005" | "42501" | "28P01" | "28000" | "3D000" => StoreError::Refused { what: sentence },
        // A missing schema, table or function, or one of another shape.
        "3F000" | "42P01" | "42883" | "42703" => {
            StoreError::Schema { what: format!("{sentence}; hint: run `relevo migrate`") }
        }
        // Another transaction was in the way, or this one stood still for too long and was ended: nothing of it happened.
        "55P03" | "40001" | "40P01" | "57014" | "25P03" => StoreError::Away(error),
        code if code.starts_with("57P0") || code.starts_with("08") || code.starts_with("53") => StoreError::Away(error),
        _ => StoreError::Broken(error),
    }
}
