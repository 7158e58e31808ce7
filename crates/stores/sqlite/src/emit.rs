//! Writing messages inside the caller's own transaction.

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

/// Why a message was not emitted.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// Something is too long, empty or malformed; the transaction is unharmed.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The id was emitted before; the transaction is unharmed.
    #[error("message id {0} was emitted before")]
    Repeated(MessageId),
    /// The file that the connection was opened with has no outbox. One in an attached file does not count: a commit over
    /// several files is not atomic with a write-ahead log.
    #[error("the connection's main file holds no outbox; hint: run `relevo migrate`, and do not attach the outbox")]
    NotInMain,
    /// Another writer was first; roll back and try again.
    #[error("the outbox is busy with another writer; hint: begin with `begin`, which waits for it")]
    Busy(#[source] sqlx::Error),
    /// The database refused; the transaction can only be rolled back.
    #[error("the database refused the message")]
    Database(#[source] sqlx::Error),
}

/// A transaction that is about to begin.
pub type Beginning<'c> = Pin<Box<dyn Future<Output = Result<Transaction<'c, Sqlite>, sqlx::Error>> + Send + 'c>>;

/// Where a transaction can begin: a pool or a connection.
pub trait Begin<'c> {
    /// Begins with the write lock.
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
/// It waits for other writers now, and never fails because of them later. A plain `BEGIN` that reads first and emits
/// afterwards fails at once if another writer committed in between.
pub fn begin<'c>(on: impl Begin<'c>) -> Beginning<'c> {
    on.begin_immediate()
}

/// The outbox of the connection's main file.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    traces: Traces,
}

impl Outbox {
    /// The same, and each message that is sampled carries the span that emitted it. The span is told when the statement has
    /// ended, whether or not the transaction commits.
    #[must_use]
    pub fn traced(self, traces: Traces) -> Self {
        Self { traces }
    }

    /// Emits a message in the caller's transaction: it exists if and only if the transaction commits.
    ///
    /// It takes a transaction and nothing else, so that effect and message cannot be torn apart by accident. Whoever
    /// emits holds the only write lock, so that `serialize` has nothing to add.
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

    /// Takes back a message whose time has not come; says whether it was still waiting.
    pub async fn cancel(&self, tx: &mut Transaction<'_, Sqlite>, id: MessageId) -> Result<bool, EmitError> {
        let delete = sqlx::query("DELETE FROM main.relevo_scheduled WHERE id = ?1").bind(*id.as_uuid());
        Ok(delete.execute(&mut **tx).await.map_err(refused)?.rows_affected() > 0)
    }
}

/// Emits into the outbox of the connection's main file, in the caller's transaction.
pub async fn emit(tx: &mut Transaction<'_, Sqlite>, draft: Draft) -> Result<MessageId, EmitError> {
    Outbox::default().emit(tx, draft).await
}

/// Takes back a message whose time has not come, in the caller's transaction; says whether it was still waiting.
pub async fn cancel(tx: &mut Transaction<'_, Sqlite>, id: MessageId) -> Result<bool, EmitError> {
    Outbox::default().cancel(tx, id).await
}

/// What a failure on the caller's own connection to this file means, and what a person can do about it: beginning and
/// committing tell it in the driver's words only.
pub fn explain(error: sqlx::Error, file: &Path) -> StoreError {
    Error::from(error).of_file(file)
}

/// Takes a caller's id; false if it was taken before.
async fn claim(tx: &mut Transaction<'_, Sqlite>, id: MessageId) -> Result<bool, EmitError> {
    let insert = sqlx::query(concat!(
        "INSERT OR IGNORE INTO main.relevo_dedup_id (id, claimed_at_ms) VALUES (?1, ",
        now!(),
        ")"
    ));
    let claimed = insert.bind(*id.as_uuid()).execute(&mut **tx).await.map_err(refused)?;
    Ok(claimed.rows_affected() > 0)
}

/// Puts a message aside until its time; false if that has come already.
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

/// What every insert of a message has in common: parameters 1 to 8.
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
