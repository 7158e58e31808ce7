//! Emits messages in the caller's own transaction.

use relevo_core::limits::LimitError;
use relevo_core::{Draft, MessageId, OnDuplicate, Tracer};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Postgres, Row as _};

use crate::config::Schema;
use crate::inbox;

/// The reason why `emit` failed.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// A field is too long, empty or malformed. The transaction is still usable.
    #[error(transparent)]
    Invalid(#[from] LimitError),
    /// A message with this id already exists. The transaction must be rolled back.
    #[error("message id {0} was emitted before")]
    DuplicateId(MessageId),
    /// The database returned an error. The transaction must be rolled back.
    #[error("the database refused the message")]
    Database(#[source] sqlx::Error),
}

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
    statement: std::sync::Arc<str>,
    uses_prepared_statements: bool,
    tracer: Tracer,
}

impl Emitter {
    /// Uses the outbox in this schema.
    pub fn new(schema: &Schema) -> Self {
        let statement = format!(
            "SELECT {}.emit_bytes($1, $2, $3, $4, $5, $6::text::jsonb, $7, to_timestamp($8::float8), $9, $10)",
            schema.quoted()
        );
        Self { statement: statement.into(), uses_prepared_statements: true, tracer: Tracer::off() }
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

    async fn insert(&self, tx: &mut impl Transaction, draft: Draft) -> Result<MessageId, EmitError> {
        draft.check()?;
        let headers = (!draft.headers.is_empty())
            .then(|| serde_json::to_string(&draft.headers).expect("a map of strings is always JSON"));
        let deliver_at = draft.deliver_at.map(|at| at.as_duration().as_secs_f64());
        let on_repeat = match draft.on_duplicate {
            OnDuplicate::Error => "error",
            OnDuplicate::Ignore => "ignore",
        };
        let row = sqlx::query(AssertSqlSafe(std::sync::Arc::clone(&self.statement)))
            .bind(&*draft.topic)
            .bind(&*draft.key)
            .bind(&*draft.kind)
            .bind(&*draft.payload)
            .bind(&*draft.content_type)
            .bind(headers)
            .bind(draft.id.map(|id| *id.as_uuid()))
            .bind(deliver_at)
            .bind(draft.lock_key)
            .bind(on_repeat)
            .persistent(self.uses_prepared_statements)
            .fetch_one(tx.connection())
            .await
            .map_err(|error| emit_error(error, draft.id))?;
        Ok(MessageId::from_uuid(row.try_get(0).map_err(EmitError::Database)?))
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

fn emit_error(error: sqlx::Error, id: Option<MessageId>) -> EmitError {
    match (&error, id) {
        (sqlx::Error::Database(database), Some(id)) if database.is_unique_violation() => EmitError::DuplicateId(id),
        _ => EmitError::Database(error),
    }
}
