//! Emits messages in the caller's own transaction.

use std::any::Any;
use std::path::Path;
use std::pin::Pin;

use async_trait::async_trait;
use jiff::Timestamp;
use relevo_core::slot::slot_of;
use relevo_core::store::StoreError;
use relevo_core::{Draft, EmitError, MessageId, OnDuplicate, StoreTransaction, Tracer};
use relevo_sqlite_file::FileError;
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection, SqlitePool};
use sqlx::{Connection as _, Transaction};
use uuid::Uuid;

use crate::classify::Error;
use crate::inbox;
use crate::queries::now;

/// An open transaction: the caller's own, or the one that an inbox passed to a handler.
pub trait OpenTransaction: sealed::Sealed + Send {
    /// The connection of the transaction.
    fn connection(&mut self) -> &mut SqliteConnection;
}

impl OpenTransaction for Transaction<'_, Sqlite> {
    fn connection(&mut self) -> &mut SqliteConnection {
        self
    }
}

impl OpenTransaction for inbox::Transaction {
    fn connection(&mut self) -> &mut SqliteConnection {
        self
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for sqlx::Transaction<'_, sqlx::Sqlite> {}
    impl Sealed for crate::inbox::Transaction {}
}

/// The future that [`begin`] returns.
pub type BeginFuture<'c> = Pin<Box<dyn Future<Output = Result<Transaction<'c, Sqlite>, sqlx::Error>> + Send + 'c>>;

/// A pool or a connection, on which a transaction can begin.
pub trait BeginImmediate<'c> {
    /// Begins and acquires the write lock.
    fn begin_immediate(self) -> BeginFuture<'c>;
}

impl<'c> BeginImmediate<'c> for &SqlitePool {
    fn begin_immediate(self) -> BeginFuture<'c> {
        let pool = self.clone();
        Box::pin(async move { pool.begin_with("BEGIN IMMEDIATE").await })
    }
}

impl<'c> BeginImmediate<'c> for &'c mut SqliteConnection {
    fn begin_immediate(self) -> BeginFuture<'c> {
        Box::pin(self.begin_with("BEGIN IMMEDIATE"))
    }
}

/// Begins a transaction with `BEGIN IMMEDIATE`, on a pool or on a connection.
///
/// It waits for other writers now and cannot fail because of them later. A plain `BEGIN` that reads first and then
/// emits fails at once if another writer committed in between.
pub fn begin<'c>(on: impl BeginImmediate<'c>) -> BeginFuture<'c> {
    on.begin_immediate()
}

/// Emits messages into the outbox of the connection's main file.
#[derive(Clone, Debug, Default)]
pub struct Emitter {
    tracer: Tracer,
}

impl Emitter {
    /// Enables tracing: each sampled message carries the span that emitted it. The span ends when the statement ends,
    /// whether or not the transaction commits.
    #[must_use]
    pub fn with_tracing(self, traces: Tracer) -> Self {
        Self { tracer: traces }
    }

    /// Emits a message in the caller's transaction. The message exists if and only if the transaction commits.
    ///
    /// The argument must be a transaction, so that a caller cannot commit the effect without the message by accident.
    /// The caller holds the only write lock, so `lock_key` has no effect.
    pub async fn emit(&self, tx: &mut impl OpenTransaction, mut draft: Draft) -> Result<MessageId, EmitError> {
        let span = self.tracer.start_emit(&mut draft);
        let emitted = Self::insert(tx, draft).await;
        if let Some(span) = span {
            span.finish_emit(&emitted);
        }
        emitted
    }

    async fn insert(tx: &mut impl OpenTransaction, draft: Draft) -> Result<MessageId, EmitError> {
        draft.check()?;
        let id = draft.id.unwrap_or_else(|| MessageId::from_uuid(Uuid::now_v7()));
        if draft.id.is_some() && !claim_id(tx, id).await? {
            return match draft.on_duplicate {
                OnDuplicate::Error => Err(EmitError::DuplicateId(id)),
                OnDuplicate::Ignore => Ok(id),
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
        bind_draft(insert, id, &draft).execute(tx.connection()).await.map_err(emit_error)?;
        Ok(id)
    }

    /// Cancels a scheduled message. Returns whether it was still scheduled.
    pub async fn cancel(&self, tx: &mut impl OpenTransaction, id: MessageId) -> Result<bool, EmitError> {
        let delete = sqlx::query("DELETE FROM main.relevo_scheduled WHERE id = ?1").bind(*id.as_uuid());
        Ok(delete.execute(tx.connection()).await.map_err(emit_error)?.rows_affected() > 0)
    }
}

/// Emits into the outbox of the connection's main file, in the caller's transaction.
pub async fn emit(tx: &mut impl OpenTransaction, draft: Draft) -> Result<MessageId, EmitError> {
    Emitter::default().emit(tx, draft).await
}

/// Cancels a scheduled message in the caller's transaction. Returns whether it was still scheduled.
pub async fn cancel(tx: &mut impl OpenTransaction, id: MessageId) -> Result<bool, EmitError> {
    Emitter::default().cancel(tx, id).await
}

#[async_trait]
impl StoreTransaction for inbox::Transaction {
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError> {
        emit(self, draft).await
    }

    async fn cancel(&mut self, id: MessageId) -> Result<bool, EmitError> {
        cancel(self, id).await
    }

    /// A [`SqliteConnection`].
    fn native(&mut self) -> &mut dyn Any {
        &mut **self
    }
}

/// Classifies an error of the caller's own connection to this file and adds advice. Begin and commit report only the
/// driver's error.
pub fn describe_error(error: sqlx::Error, file: &Path) -> StoreError {
    Error::from(error).at_open(file)
}

/// Claims an id that the caller chose. Returns false if it was already claimed.
async fn claim_id(tx: &mut impl OpenTransaction, id: MessageId) -> Result<bool, EmitError> {
    let insert = sqlx::query(concat!(
        "INSERT OR IGNORE INTO main.relevo_dedup_id (id, claimed_at_ms) VALUES (?1, ",
        now!(),
        ")"
    ));
    let claimed = insert.bind(*id.as_uuid()).execute(tx.connection()).await.map_err(emit_error)?;
    Ok(claimed.rows_affected() > 0)
}

/// Stores a message until it is due. Returns false if it is due already.
async fn schedule(
    tx: &mut impl OpenTransaction,
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
    let scheduled =
        bind_draft(insert, id, draft).bind(at.as_millisecond()).execute(tx.connection()).await.map_err(emit_error)?;
    Ok(scheduled.rows_affected() > 0)
}

type Insert<'q> = Query<'q, Sqlite, SqliteArguments>;

/// Binds parameters 1 to 8, which every insert of a message shares.
fn bind_draft<'q>(insert: Insert<'q>, id: MessageId, draft: &'q Draft) -> Insert<'q> {
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

fn emit_error(error: sqlx::Error) -> EmitError {
    match error.as_database_error() {
        Some(_) if FileError::of(&error) == Some(FileError::Locked) => EmitError::Busy(Box::new(error)),
        Some(database) if database.message().starts_with("no such table: main.relevo_") => EmitError::NotInMainFile,
        _ => EmitError::Store(Box::new(error)),
    }
}
