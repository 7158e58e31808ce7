//! Called by handlers, sagas and services: emits messages inside the transaction of a handler.

use std::any::Any;
use std::error::Error;

use async_trait::async_trait;

use crate::draft::{Draft, DraftError};
use crate::message::MessageId;

/// The reason why a message was not emitted or cancelled.
#[derive(Debug, thiserror::Error)]
pub enum EmitError {
    /// A field is too long, empty or malformed. The transaction is still usable.
    #[error(transparent)]
    Invalid(#[from] DraftError),
    /// A message with this id already exists. With PostgreSQL, the transaction must be rolled back.
    #[error("message id {0} was emitted before")]
    DuplicateId(MessageId),
    /// The main file of a SQLite connection has no outbox. An outbox in an attached file is not used: with a write-ahead
    /// log, a commit over several files is not atomic.
    #[error("the connection's main file holds no outbox; hint: run `relevo migrate`, and do not attach the outbox")]
    NotInMainFile,
    /// Another writer of the SQLite file committed first. Roll back and try again.
    #[error("the outbox is busy with another writer; hint: begin with `begin`, which waits for it")]
    Busy(#[source] Box<dyn Error + Send + Sync>),
    /// The database returned an error: the source is the driver's. The transaction must be rolled back.
    #[error("the database refused the message")]
    Store(#[source] Box<dyn Error + Send + Sync>),
}

/// The transaction in which an inbox calls a handler.
///
/// Emitted messages exist if and only if the transaction commits. A message should name its cause: see `with_causation`
/// of the consumer runtime.
#[async_trait]
pub trait StoreTransaction: Send {
    /// Emits a message and returns its id.
    async fn emit(&mut self, draft: Draft) -> Result<MessageId, EmitError>;

    /// Cancels a scheduled message. Returns whether it was still scheduled.
    async fn cancel(&mut self, id: MessageId) -> Result<bool, EmitError>;

    /// The store's own connection or transaction, for code that works with several stores.
    fn native(&mut self) -> &mut dyn Any;
}
