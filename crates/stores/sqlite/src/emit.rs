//! Emits messages in the caller's own transaction.

use std::path::Path;
use std::pin::Pin;

use jiff::Timestamp;
use relevo_core::limits::LimitError;
use relevo_core::slot::slot_of;
use relevo_core::store::StoreError;
use relevo_core::{Draft, MessageId, OnRepeat, Traces};
use relevo_sqlite_file::FileError;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqlitePool};
use sqlx::{Connection as _, Transaction};
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::now;

/// The reason why `emit` failed.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// A field is too long, empty or malformed. The transaction is still usable.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A message with this id already exists. The transaction is still usable.
    #[error("message id {0} was emitted before")]
    Repeated(MessageId),
    /// The main file of the connection has no outbox. An outbox in an attached file is not used: with a write-ahead
    /// log, a commit over several files is not atomic.
    #[error("the connection's main file holds no outbox; hint: run `relevo migrate`, and do not attach the outbox")]
    NotInMain,
    /// Another writer committed first. Roll back and try again.
    #[error("the outbox is busy with another writer; hint: begin with `begin`, which waits for it")]
    Busy(#[source] sqlx::Error),
    /// The database returned an error. The transaction must be rolled back.
    #[error("the database refused the message")]
    Database(#[source] sqlx::Error),
}

/// The future that [`begin`] returns.
pub type Beginning<'c> = Pin<Box<dyn Future<Output = Result<Transaction<'c, Sqlite>, sqlx::Error>> + Send + 'c>>;

/// A pool or a connection, on which a transaction can begin.
pub trait Begin<'c> {
    /// Begins and acquires the write lock.
    fn begin_immediate(self) -> Beginning<'c>;
}

impl<'c> Begin<'c> for &SqlitePool {
    fn begin_immediate(self) -> Beginning<'c> {
        let pool = self.clone();
        Box::pin(async move { pool.begin_with("BEGIN IMMEDIATE").await })
    }
}

impl<'c> Begin<'c> for &'c mut SqliteConnection {
    fn begin_immediate(self) -> Beginning<'c> {
        Box::pin(self.begin_with("BEGIN IMMEDIATE"))
    }
}

/// Begins a transaction with `BEGIN IMMEDIATE`, on a pool or on a connection.
///
/// It waits for other writers now and cannot fail because of them later. A plain `BEGIN` that reads first and then
/// emits fails at once if another writer committed in between.
pub fn begin<'c>(on: impl Begin<'c>) -> Beginning<'c> {
    on.begin_immediate()
}

/// Emits messages into the outbox of the connection's main file.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    traces: Traces,
}

impl Outbox {
    /// Enables tracing: each sampled message carries the span that emitted it. The span ends when the statement ends,
    /// whether or not the transaction commits.
    #[must_use]
    pub fn traced(self, traces: Traces) -> Self {
        Self { traces }
    }

    /// Emits a message in the caller's transaction. The message exists if and only if the transaction commits.
    ///
    /// The argument must be a transaction, so that a caller cannot commit the effect without the message by accident.
    /// The caller holds the only write lock, so `serialize` has no effect.
    pub async fn emit(&self, tx: &mut Transaction<'_, Sqlite>, mut draft: Draft) -> Result<MessageId, EmitError> {
        let span = self.traces.create(&mut draft);
        let emitted = Self::insert(tx, draft).await;
        if let Some(span) = span {
            span.emitted(&emitted);
        }
        emitted
    }

    async fn insert(tx: &mut Transaction<'_, Sqlite>, draft: Draft) -> Result<MessageId, EmitError> {
        draft.check()?;
        let id = draft.id.unwrap_or_else(|| MessageId::from_uuid(Uuid::now_v7()));
        if draft.id.is_some() && !claim(tx, id).await? {
            return match draft.on_repeat {
                OnRepeat::Refuse => Err(EmitError::Repeated(id)),
                OnRepeat::Ignore => Ok(id),
            };
        }
        if let Some(at) = draft.deliver_at
            && schedule(tx, id, &draft, at).await?
        {
            return Ok(id);
        }
        let insert = sqlx::query(concat!(
            "INSERT INTO main.relevo_message \
             (slot, id, created_at_ms, topic, key, type, content_type, headers, payload) \
             VALUES (?1, ?2, ",
            now!(),
            ", ?3, ?4, ?5, ?6, ?7, ?8)"
        ));
        bind(insert, id, &draft).execute(&mut **tx).await.map_err(refused)?;
        Ok(id)
    }

    /// Cancels a scheduled message. Returns whether it was still scheduled.
    pub async fn cancel(&self, tx: &mut Transaction<'_, Sqlite>, id: MessageId) -> Result<bool, EmitError> {
        let delete = sqlx::query("DELETE FROM main.relevo_scheduled WHERE id = ?1").bind(*id.as_uuid());
        Ok(delete.execute(&mut **tx).await.map_err(refused)?.rows_affected() > 0)
    }
}

/// Emits into the outbox of the connection's main file, in the caller's transaction.
pub async fn emit(tx: &mut Transaction<'_, Sqlite>, draft: Draft) -> Result<MessageId, EmitError> {
    Outbox::default().emit(tx, draft).await
}

/// Cancels a scheduled message in the caller's transaction. Returns whether it was still scheduled.
pub async fn cancel(tx: &mut Transaction<'_, Sqlite>, id: MessageId) -> Result<bool, EmitError> {
    Outbox::default().cancel(tx, id).await
}

/// Classifies an error of the caller's own connection to this file and adds advice. Begin and commit report only the
/// driver's error.
pub fn explain(error: sqlx::Error, file: &Path) -> StoreError {
    Error::from(error).of_file(file)
}

/// Claims an id that the caller chose. Returns false if it was already claimed.
async fn claim(tx: &mut Transaction<'_, Sqlite>, id: MessageId) -> Result<bool, EmitError> {
    let insert = sqlx::query(concat!(
        "INSERT OR IGNORE INTO main.relevo_dedup_id (id, claimed_at_ms) VALUES (?1, ",
        now!(),
        ")"
    ));
    let claimed = insert.bind(*id.as_uuid()).execute(&mut **tx).await.map_err(refused)?;
    Ok(claimed.rows_affected() > 0)
}

/// Stores a message until it is due. Returns false if it is due already.
async fn schedule(
    tx: &mut Transaction<'_, Sqlite>,
    id: MessageId,
    draft: &Draft,
    at: Timestamp,
) -> Result<bool, EmitError> {
    let insert = sqlx::query(concat!(
        "INSERT INTO main.relevo_scheduled \
         (slot, id, created_at_ms, topic, key, type, content_type, headers, payload, due_at_ms) \
         SELECT ?1, ?2, ",
        now!(),
        ", ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE ?9 > ",
        now!()
    ));
    let scheduled = bind(insert, id, draft).bind(at.as_millisecond()).execute(&mut **tx).await.map_err(refused)?;
    Ok(scheduled.rows_affected() > 0)
}

type Insert<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Binds parameters 1 to 8, which every insert of a message shares.
fn bind<'q>(insert: Insert<'q>, id: MessageId, draft: &'q Draft) -> Insert<'q> {
    let headers = (!draft.headers.is_empty())
        .then(|| serde_json::to_string(&draft.headers).expect("a map of strings is always JSON"));
    insert
        .bind(i64::from(slot_of(&draft.key)))
        .bind(*id.as_uuid())
        .bind(&*draft.topic)
        .bind(&*draft.key)
        .bind(&*draft.kind)
        .bind(&*draft.content_type)
        .bind(headers)
        .bind(&*draft.payload)
}

fn refused(error: sqlx::Error) -> EmitError {
    match error.as_database_error() {
        Some(_) if FileError::of(&error) == Some(FileError::Locked) => EmitError::Busy(error),
        Some(database) if database.message().starts_with("no such table: main.relevo_") => EmitError::NotInMain,
        _ => EmitError::Database(error),
    }
}
