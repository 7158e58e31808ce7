//! Emits messages in the caller's own transaction.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use relevo_core::{Draft, EmitError, MessageId, OnDuplicate, StoreTransaction, Tracer};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Decode, Postgres, Row as _, Type};

use crate::config::Schema;
use crate::inbox;
use crate::literal::{literal, optional_literal};

/// An open transaction: the caller's own, or the one that an inbox passed to a handler.
pub trait Transaction: sealed::Sealed + Send {
    /// The connection of the transaction.
    fn connection(&mut self) -> &mut PgConnection;
}

impl Transaction for sqlx::Transaction<'_, Postgres> {
    fn connection(&mut self) -> &mut PgConnection {
        self
    }
}

impl Transaction for inbox::Transaction {
    fn connection(&mut self) -> &mut PgConnection {
        self
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for sqlx::Transaction<'_, sqlx::Postgres> {}
    impl Sealed for crate::inbox::Transaction {}
}

/// Emits messages into one outbox.
#[derive(Clone, Debug)]
pub struct Emitter {
    emit_statement: Arc<str>,
    cancel_statement: Arc<str>,
    uses_prepared_statements: bool,
    tracer: Tracer,
}

impl Emitter {
    /// Uses the outbox in this schema.
    pub fn new(schema: &Schema) -> Self {
        let schema = schema.quoted();
        let emit = format!(
            "SELECT {schema}.emit_bytes($1, $2, $3, $4, $5, $6::text::jsonb, $7, to_timestamp($8::float8), $9, $10)"
        );
        let cancel = format!("SELECT {schema}.cancel($1)");
        Self {
            emit_statement: emit.into(),
            cancel_statement: cancel.into(),
            uses_prepared_statements: true,
            tracer: Tracer::off(),
        }
    }

    /// Disables prepared statements, because a pooler in transaction mode does not keep them. Each message then costs a
    /// second round trip.
    #[must_use]
    pub fn without_prepared_statements(self) -> Self {
        Self { uses_prepared_statements: false, ..self }
    }

    /// Enables tracing: each sampled message carries the span that emitted it. The span ends when the statement ends,
    /// whether or not the transaction commits.
    #[must_use]
    pub fn with_tracing(self, traces: Tracer) -> Self {
        Self { tracer: traces, ..self }
    }

    /// Emits a message in the caller's transaction. The message exists if and only if the transaction commits.
    ///
    /// The argument must be a transaction, so that a caller cannot commit the effect without the message by accident.
    pub async fn emit(&self, tx: &mut impl Transaction, mut draft: Draft) -> Result<MessageId, EmitError> {
        let span = self.tracer.start_emit(&mut draft);
        let emitted = self.insert(tx, draft).await;
        if let Some(span) = span {
            span.finish_emit(&emitted);
        }
        emitted
    }

    /// Cancels a scheduled message in the caller's transaction. Returns whether it was still scheduled.
    pub async fn cancel(&self, tx: &mut impl Transaction, id: MessageId) -> Result<bool, EmitError> {
        let row = sqlx::query(AssertSqlSafe(Arc::clone(&self.cancel_statement)))
            .bind(*id.as_uuid())
            .persistent(self.uses_prepared_statements)
            .fetch_one(tx.connection())
            .await;
        first_column(row, None)
    }

    async fn insert(&self, tx: &mut impl Transaction, draft: Draft) -> Result<MessageId, EmitError> {
        draft.check()?;
        let row = sqlx::query(AssertSqlSafe(Arc::clone(&self.emit_statement)))
            .bind(&*draft.topic)
            .bind(&*draft.key)
            .bind(&*draft.kind)
            .bind(&*draft.payload)
            .bind(&*draft.content_type)
            .bind(headers_json(&draft))
            .bind(draft.id.map(|id| *id.as_uuid()))
            .bind(deliver_at_seconds(&draft))
            .bind(draft.lock_key)
            .bind(on_duplicate(&draft))
            .persistent(self.uses_prepared_statements)
            .fetch_one(tx.connection())
            .await;
        Ok(MessageId::from_uuid(first_column(row, draft.id)?))
    }
}

impl Default for Emitter {
    fn default() -> Self {
        Self::new(&Schema::default())
    }
}

/// Emits into the outbox of schema `relevo` in the caller's transaction.
pub async fn emit(tx: &mut impl Transaction, draft: Draft) -> Result<MessageId, EmitError> {
    Emitter::default().emit(tx, draft).await
}

/// Emits and cancels in the simple protocol: one round trip, and no prepared statement that a pooler could lose.
#[async_trait]
impl StoreTransaction for inbox::Transaction {
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError> {
        draft.check()?;
        let mut payload = String::with_capacity(2 * draft.payload.len());
        for byte in &draft.payload {
            payload.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
        }
        let sql = format!(
            "SELECT {}.emit_bytes({}, {}, {}, pg_catalog.decode('{payload}', 'hex'), {}, {}::jsonb, {}::uuid, to_timestamp({}::float8), \
             {}, {})",
            self.schema().quoted(),
            literal(&draft.topic),
            literal(&draft.key),
            literal(&draft.kind),
            literal(&draft.content_type),
            optional_literal(headers_json(&draft).as_deref()),
            optional_literal(draft.id.map(|id| id.to_string()).as_deref()),
            deliver_at_seconds(&draft).map_or_else(|| "NULL".to_owned(), |seconds| seconds.to_string()),
            draft.lock_key,
            literal(on_duplicate(&draft)),
        );
        let row = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut **self).await;
        Ok(MessageId::from_uuid(first_column(row, draft.id)?))
    }

    async fn cancel(&mut self, id: MessageId) -> Result<bool, EmitError> {
        let sql = format!("SELECT {}.cancel('{id}')", self.schema().quoted());
        first_column(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_one(&mut **self).await, None)
    }

    /// A [`PgConnection`].
    fn native(&mut self) -> &mut dyn Any {
        &mut **self
    }
}

fn headers_json(draft: &Draft) -> Option<String> {
    (!draft.headers.is_empty()).then(|| serde_json::to_string(&draft.headers).expect("a map of strings is always JSON"))
}

fn deliver_at_seconds(draft: &Draft) -> Option<f64> {
    draft.deliver_at.map(|at| at.as_duration().as_secs_f64())
}

const fn on_duplicate(draft: &Draft) -> &'static str {
    match draft.on_duplicate {
        OnDuplicate::Error => "error",
        OnDuplicate::Ignore => "ignore",
    }
}

/// Reads the function's result. `id` is the id that the caller chose.
fn first_column<T>(row: Result<PgRow, sqlx::Error>, id: Option<MessageId>) -> Result<T, EmitError>
where
    T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
{
    let value = row.and_then(|row| row.try_get(0));
    value.map_err(|error| match (&error, id) {
        (sqlx::Error::Database(database), Some(id)) if database.is_unique_violation() => EmitError::DuplicateId(id),
        _ => EmitError::Store(Box::new(error)),
    })
}
