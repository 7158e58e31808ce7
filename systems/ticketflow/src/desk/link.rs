//! One interface to both databases: statements are written once, in PostgreSQL's dialect.
//!
//! PostgreSQL may be reached through a pooler that gives each transaction another session. So no statement is prepared there, and
//! each runs in a transaction: it is parsed in one round trip and run in the next, in the same session only within one.

use std::str::FromStr;
use std::time::Duration;

use relevo::core::{Draft, EmitError, MessageId};
use relevo::stores::{postgres, sqlite};
use sqlx::postgres::{PgPool, PgRow};
use sqlx::sqlite::{SqlitePool, SqliteRow};
use sqlx::{AssertSqlSafe, Postgres, Row as _, Sqlite, Transaction};

use super::DeskError;
use super::columns::{Column, Value};
use crate::domain::UnknownWord;
use crate::domain::event::{CORRELATION_ID, EVENT_ID, Event};

/// The same id in Relevo's header, which it copies to messages that a handler emits.
const ENGINE_CORRELATION_ID: &str = "correlation-id";

/// The statement timeout in PostgreSQL, shorter than a request's. Otherwise the statement of a cancelled request would continue and
/// occupy its connection.
pub(crate) const STATEMENT_DEADLINE: Duration = Duration::from_secs(8);
/// The lock timeout, shorter than the wait for a connection, so that one locked ticket does not block the others.
const BEGIN: &str = "BEGIN; SET LOCAL lock_timeout = '2s'";
/// The settings of transactions that only read and wait for no lock.
const READ: &str = "BEGIN READ ONLY";

/// The arguments of a statement, in the order of `$1`, `$2`, …
pub(super) type Values<'a> = &'a [&'a dyn Value];

/// The connections to a database.
pub(super) enum Link {
    Postgres(PgPool),
    /// A SQLite file has one writer at a time: writers share one connection and wait for it.
    Sqlite {
        writer: SqlitePool,
        readers: SqlitePool,
    },
}

/// An open transaction. Dropped, it is rolled back.
pub(super) enum Tx {
    Postgres(Transaction<'static, Postgres>),
    Sqlite(Transaction<'static, Sqlite>),
}

/// A row of a result.
pub(super) enum Row {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

/// Begins a transaction whose statements end in time; a process that hangs with a ticket in its hand loses it. Said with every
/// transaction, because a pooler may give each one another session, and in the same round trip.
fn bounded(begin: &str) -> AssertSqlSafe<String> {
    let deadline_ms = STATEMENT_DEADLINE.as_millis();
    AssertSqlSafe(format!(
        "{begin}; SET LOCAL statement_timeout = {deadline_ms}; SET LOCAL idle_in_transaction_session_timeout = '30s'"
    ))
}

/// A statement in SQLite's dialect: a file has no schemas, and a writer locks the whole file.
fn in_sqlite(sql: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(sql.replace("ticketflow.", "").replace(" FOR UPDATE", ""))
}

macro_rules! postgres {
    ($sql:expr, $values:expr) => {
        $values.iter().fold(sqlx::query($sql).persistent(false), |query, value| value.give_postgres(query))
    };
}

macro_rules! sqlite {
    ($sql:expr, $values:expr) => {
        $values.iter().fold(sqlx::query(in_sqlite($sql)), |query, value| value.give_sqlite(query))
    };
}

impl Link {
    /// Begins a transaction that writes.
    pub(super) async fn begin(&self) -> Result<Tx, DeskError> {
        Ok(match self {
            Self::Postgres(pool) => Tx::Postgres(pool.begin_with(bounded(BEGIN)).await?),
            Self::Sqlite { writer, .. } => Tx::Sqlite(sqlite::begin(writer).await?),
        })
    }

    /// Begins a transaction that only reads. There is nothing to commit.
    pub(super) async fn rows(&self, sql: &'static str, values: Values<'_>) -> Result<Vec<Row>, DeskError> {
        Ok(match self {
            Self::Postgres(pool) => {
                let mut tx = pool.begin_with(bounded(READ)).await?;
                postgres!(sql, values).fetch_all(&mut *tx).await?.into_iter().map(Row::Postgres).collect()
            }
            Self::Sqlite { readers, .. } => {
                sqlite!(sql, values).fetch_all(readers).await?.into_iter().map(Row::Sqlite).collect()
            }
        })
    }

    /// Reads at most one row.
    pub(super) async fn row(&self, sql: &'static str, values: Values<'_>) -> Result<Option<Row>, DeskError> {
        Ok(match self {
            Self::Postgres(pool) => {
                let mut tx = pool.begin_with(bounded(READ)).await?;
                postgres!(sql, values).fetch_optional(&mut *tx).await?.map(Row::Postgres)
            }
            Self::Sqlite { readers, .. } => sqlite!(sql, values).fetch_optional(readers).await?.map(Row::Sqlite),
        })
    }
}

impl Tx {
    /// Returns the number of changed rows.
    pub(super) async fn run(&mut self, sql: &'static str, values: Values<'_>) -> Result<u64, DeskError> {
        Ok(match self {
            Self::Postgres(tx) => postgres!(sql, values).execute(&mut **tx).await?.rows_affected(),
            Self::Sqlite(tx) => sqlite!(sql, values).execute(&mut **tx).await?.rows_affected(),
        })
    }

    /// Reads at most one row.
    pub(super) async fn row(&mut self, sql: &'static str, values: Values<'_>) -> Result<Option<Row>, DeskError> {
        Ok(match self {
            Self::Postgres(tx) => postgres!(sql, values).fetch_optional(&mut **tx).await?.map(Row::Postgres),
            Self::Sqlite(tx) => sqlite!(sql, values).fetch_optional(&mut **tx).await?.map(Row::Sqlite),
        })
    }

    /// Tells of what this transaction does: the event exists if and only if it commits. The ticket's row must be locked by
    /// now, or two events of it could go out in the wrong order.
    pub(super) async fn emit(&mut self, event: &Event, correlation_id: &str) -> Result<(), DeskError> {
        let payload = serde_json::to_vec(event).map_err(|error| DeskError::Broken(error.into()))?;
        let name = event.what.name();
        let mut draft = Draft::json(name, &event.ticket.id.to_string(), name, payload);
        draft.id = Some(MessageId::from_uuid(event.event_id));
        let event_id = event.event_id.to_string();
        let headers =
            [(EVENT_ID, &*event_id), (CORRELATION_ID, correlation_id), (ENGINE_CORRELATION_ID, correlation_id)];
        draft.headers.extend(headers.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let emitted = match self {
            Self::Postgres(tx) => postgres::Emitter::default().without_prepared_statements().emit(tx, draft).await,
            Self::Sqlite(tx) => sqlite::emit(tx, draft).await,
        };
        match emitted {
            Ok(_) => Ok(()),
            Err(EmitError::Busy(error) | EmitError::Store(error)) => Err(match error.downcast::<sqlx::Error>() {
                Ok(error) => (*error).into(),
                Err(error) => DeskError::Broken(anyhow::anyhow!(error)),
            }),
            Err(error) => Err(DeskError::Broken(error.into())),
        }
    }

    pub(super) async fn commit(self) -> Result<(), DeskError> {
        match self {
            Self::Postgres(tx) => tx.commit().await?,
            Self::Sqlite(tx) => tx.commit().await?,
        }
        Ok(())
    }
}

impl Row {
    pub(super) fn get<T: Column>(&self, column: usize) -> Result<T, DeskError> {
        Ok(match self {
            Self::Postgres(row) => row.try_get(column)?,
            Self::Sqlite(row) => row.try_get(column)?,
        })
    }

    /// One of an enumeration's words.
    pub(super) fn word<T: FromStr<Err = UnknownWord>>(&self, column: usize) -> Result<T, DeskError> {
        let word: String = self.get(column)?;
        word.parse().map_err(|error: UnknownWord| DeskError::Broken(anyhow::anyhow!("`{word}` is stored, {error}")))
    }
}
