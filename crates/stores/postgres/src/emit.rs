//! Emitting inside the caller's own transaction.

use bytes::Bytes;
use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::limits::{LimitError, Limits};
use relevo_core::message::{Headers, Message, MessageId};
use sqlx::{AssertSqlSafe, Postgres, Row as _, Transaction};
use uuid::Uuid;

use crate::config::Schema;

/// What to do with an id that was emitted before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRepeat {
    /// An error.
    #[default]
    Refuse,
    /// Nothing is emitted.
    Ignore,
}

/// A message that is about to be emitted.
#[derive(Clone, Debug)]
pub struct Draft {
    /// What routes match first.
    pub topic: ByteString,
    /// What order is kept within.
    pub key: ByteString,
    /// What happened or is asked for.
    pub kind: ByteString,
    /// The bytes.
    pub payload: Bytes,
    /// The payload's media type.
    pub content_type: ByteString,
    /// Further headers, trace context among them.
    pub headers: Headers,
    /// An id of the caller's own; the database makes one otherwise.
    pub id: Option<MessageId>,
    /// Not before this time; its place in the key's order starts then.
    pub deliver_at: Option<Timestamp>,
    /// Takes the key's lock until the transaction ends, for writers that lock no row of their own.
    pub serialize: bool,
    /// What to do if the id was emitted before.
    pub on_repeat: OnRepeat,
}

impl Draft {
    /// A message whose payload is JSON text.
    pub fn json(topic: &str, key: &str, kind: &str, payload: impl Into<Bytes>) -> Self {
        Self::bytes(topic, key, kind, payload, "application/json")
    }

    /// A message with any payload.
    pub fn bytes(topic: &str, key: &str, kind: &str, payload: impl Into<Bytes>, content_type: &str) -> Self {
        Self {
            topic: topic.into(),
            key: key.into(),
            kind: kind.into(),
            payload: payload.into(),
            content_type: content_type.into(),
            headers: Headers::new(),
            id: None,
            deliver_at: None,
            serialize: false,
            on_repeat: OnRepeat::default(),
        }
    }

    fn check(&self) -> Result<(), LimitError> {
        Limits::default().check(&Message {
            id: self.id.unwrap_or(MessageId::from_uuid(Uuid::nil())),
            kind: self.kind.clone(),
            key: self.key.clone(),
            topic: self.topic.clone(),
            payload: self.payload.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            created_at: Timestamp::UNIX_EPOCH,
        })
    }
}

/// Why a message was not emitted.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// Something is too long, empty or malformed; the transaction is unharmed.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The id was emitted before; the transaction can only be rolled back.
    #[error("message id {0} was emitted before")]
    Repeated(MessageId),
    /// The database refused; the transaction can only be rolled back.
    #[error("the database refused the message")]
    Database(#[source] sqlx::Error),
}

/// An outbox to emit into.
#[derive(Clone, Debug)]
pub struct Outbox {
    statement: std::sync::Arc<str>,
}

impl Outbox {
    /// The outbox in this schema.
    pub fn in_schema(schema: &Schema) -> Self {
        let statement = format!(
            "SELECT {}.emit_bytes($1, $2, $3, $4, $5, $6::text::jsonb, $7, to_timestamp($8::float8), $9, $10)",
            schema.quoted()
        );
        Self { statement: statement.into() }
    }

    /// Emits a message in the caller's transaction: it exists if and only if the transaction commits.
    ///
    /// It takes a transaction and nothing else, so that effect and message cannot be torn apart by accident.
    pub async fn emit(&self, tx: &mut Transaction<'_, Postgres>, draft: Draft) -> Result<MessageId, EmitError> {
        draft.check()?;
        let headers = (!draft.headers.is_empty())
            .then(|| serde_json::to_string(&draft.headers).expect("a map of strings is always JSON"));
        let deliver_at = draft.deliver_at.map(|at| at.as_duration().as_secs_f64());
        let on_repeat = match draft.on_repeat {
            OnRepeat::Refuse => "refuse",
            OnRepeat::Ignore => "ignore",
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
            .bind(draft.serialize)
            .bind(on_repeat)
            .fetch_one(&mut **tx)
            .await
            .map_err(|error| refused(error, draft.id))?;
        Ok(MessageId::from_uuid(row.try_get(0).map_err(EmitError::Database)?))
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self::in_schema(&Schema::default())
    }
}

/// Emits into the outbox of the schema `relevo`, in the caller's transaction.
pub async fn emit(tx: &mut Transaction<'_, Postgres>, draft: Draft) -> Result<MessageId, EmitError> {
    Outbox::default().emit(tx, draft).await
}

fn refused(error: sqlx::Error, id: Option<MessageId>) -> EmitError {
    match (&error, id) {
        (sqlx::Error::Database(database), Some(id)) if database.is_unique_violation() => EmitError::Repeated(id),
        _ => EmitError::Database(error),
    }
}
