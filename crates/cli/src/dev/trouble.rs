//! Hints for errors of the demo's files.

use anyhow::Error;
use sqlx::error::DatabaseError;

const FULL: i32 = 13;
const NO_DATABASE: i32 = 26;
const BUSY: i32 = 5;
const READ_ONLY: i32 = 8;

/// Adds a hint to an error that SQLite caused, unless it has one.
pub(crate) fn advise(error: Error) -> Error {
    if error.chain().any(|cause| cause.to_string().contains("hint: ")) {
        return error;
    }
    let Some(code) = error.chain().find_map(code) else { return error };
    match code & 0xff {
        FULL => error.context(
            "the disk is full, and no committed message is lost; hint: free some space and start the demo again",
        ),
        NO_DATABASE => {
            error.context("a file of the demo is not a database; hint: choose another directory with `--data`")
        }
        BUSY => error.context("a file of the demo is locked; hint: find the process that has it open"),
        READ_ONLY => error.context("a file of the demo is not writable; hint: choose another directory with `--data`"),
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
