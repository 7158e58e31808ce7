//! Builds the statements that this crate sends, and decodes their results. Only emitting, migrating and examining have
//! their statements elsewhere.

pub(crate) mod consumers;
pub(crate) mod dead_letters;
pub(crate) mod inbox;
pub(crate) mod leases;
pub(crate) mod parked;
pub(crate) mod read;
pub(crate) mod settle;
pub(crate) mod status;
pub(crate) mod tail;

use jiff::Timestamp;
use serde_json::Value;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::classify::Error;

/// In an aborted transaction the server answers COMMIT with a rollback, and the client treats that as success. The
/// SELECT fails in such a transaction, and the server then ignores the COMMIT.
pub(crate) const COMMIT: &str = "SELECT 1; COMMIT";
pub(crate) const COMMIT_STATEMENTS: u32 = 2;

pub(crate) fn column<'r, T>(row: &'r PgRow, index: usize) -> Result<T, Error>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    Ok(row.try_get(index)?)
}

/// Returns the first column of the only row.
pub(crate) fn scalar<'r, T>(rows: &'r [PgRow]) -> Result<T, Error>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    column(rows.first().ok_or(Error::UnexpectedResponse("no row"))?, 0)
}

/// Reads the only JSON value of a result.
pub(crate) fn json_response(rows: &[PgRow]) -> Result<Value, Error> {
    let row = rows.first().ok_or(Error::UnexpectedResponse("no row"))?;
    let text: &str = row.try_get_unchecked(0)?;
    serde_json::from_str(text).map_err(|_| Error::UnexpectedResponse("not JSON"))
}

/// Converts a count. NULL is zero.
pub(crate) fn count_u32(number: Option<i32>) -> Result<u32, Error> {
    u32::try_from(number.unwrap_or(0)).map_err(|_| Error::UnexpectedResponse("a count is negative"))
}

pub(crate) fn count_u64(number: i64) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| Error::UnexpectedResponse("a count is negative"))
}

/// Converts microseconds since 1970.
pub(crate) fn timestamp(micros: i64) -> Result<Timestamp, Error> {
    Timestamp::from_microsecond(micros).map_err(|_| Error::UnexpectedResponse("a time is out of range"))
}
