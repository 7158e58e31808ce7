//! What to do when the demo's files fail it.

use anyhow::Error;
use sqlx::error::DatabaseError;

const FULL: i32 = 13;
const NO_DATABASE: i32 = 26;
const BUSY: i32 = 5;
const READ_ONLY: i32 = 8;

/// Adds what to do to an error that SQLite is behind of, unless it says so itself.
pub(crate) fn advise(error: Error) -> Error {
    if error.chain().any(|cause| cause.to_string().contains("hint: ")) {
        return error;
    }
    let Some(code) = error.chain().find_map(code) else { return error };
    match code & 0xff {
        FULL => error
            .context("the disk is full, and nothing that was committed is lost; hint: make room, and start it again"),
        NO_DATABASE => error.context("a file of the demo is no database; hint: `--data DIRECTORY` names another place"),
        BUSY => error.context("a file of the demo is locked; hint: look for a process that holds it open"),
        READ_ONLY => {
            error.context("a file of the demo cannot be written; hint: `--data DIRECTORY` names another place")
        }
        _ => error,
    }
}

fn code(cause: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let database = |error: &dyn DatabaseError| error.code().and_then(|code| code.parse().ok());
    if let Some(error) = cause.downcast_ref::<sqlx::Error>() {
        return error.as_database_error().and_then(database);
    }
    cause.downcast_ref::<sqlx::sqlite::SqliteError>().and_then(|error| database(error))
}
