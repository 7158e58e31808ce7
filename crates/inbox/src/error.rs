//! The result of a handler.

use std::error::Error;
use std::fmt;

use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, classes};
use relevo_core::{Class, Failure};

/// The result of a handler: a verdict or any error. A [`HandlerError`] in the chain of the error decides what it means;
/// every other error is transient.
pub type HandlerResult<R = Verdict> = Result<R, Box<dyn Error + Send + Sync>>;

/// The verdict on a message that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The effect is in the transaction.
    Done,
    /// There was nothing to do; the skip is recorded.
    Skip,
}

/// A handler without a verdict has done its work.
impl From<()> for Verdict {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl Verdict {
    /// Its name in traces.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Skip => "skip",
        }
    }
}

/// What an error means for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// A later attempt may succeed.
    Transient,
    /// No attempt can succeed.
    Permanent,
    /// Not caused by the message: a service that the handler needs is down.
    Unavailable,
}

/// Why a message was not handled.
///
/// Any other error that a handler returns counts as [`transient`](Self::transient).
#[derive(Clone, Debug)]
pub struct HandlerError {
    pub(crate) kind: ErrorKind,
    pub(crate) class: &'static str,
    pub(crate) error: String,
    pub(crate) backtrace: Option<String>,
}

impl HandlerError {
    /// A later attempt may succeed. The attempt is counted.
    pub fn transient(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Transient, classes::TRANSIENT, error)
    }

    /// No attempt can succeed: the message is dead-lettered immediately.
    pub fn permanent(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Permanent, classes::POISON, error)
    }

    /// A service that the handler needs is down. No attempt is counted: the lane pauses, and single messages probe the
    /// service.
    pub fn unavailable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorKind::Unavailable, classes::OUTAGE, error)
    }

    /// Sets the error class, by which dead letters can be searched.
    #[must_use]
    pub fn with_class(self, class: &'static str) -> Self {
        Self { class, ..self }
    }

    pub(crate) fn undecodable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::permanent(error).with_class(classes::UNDECODABLE)
    }

    pub(crate) fn panicked(message: String, backtrace: String) -> Self {
        Self { backtrace: Some(backtrace), ..Self::transient(message).with_class(classes::PANIC) }
    }

    /// The failure to record, with the action that follows.
    pub(crate) fn into_failure(self, action: InboxFailureAction, attempts: u32) -> InboxFailure {
        InboxFailure { action, attempts, class: self.class, error: self.error, backtrace: self.backtrace }
    }

    fn new(kind: ErrorKind, class: &'static str, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        // `error_chain` includes the chain of causes, in the same format as every other failure.
        let error = Failure::new(Class::Transient, error).error_chain();
        Self { kind, class, error, backtrace: None }
    }
}

/// A [`HandlerError`] in the chain decides kind and class. Without one, the error is transient.
impl From<Box<dyn Error + Send + Sync>> for HandlerError {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        let error = match error.downcast::<Self>() {
            Ok(error) => return *error,
            Err(error) => error,
        };
        let mut cause = error.source();
        while let Some(inner) = cause {
            if let Some(inner) = inner.downcast_ref::<Self>() {
                let (kind, class, backtrace) = (inner.kind, inner.class, inner.backtrace.clone());
                return Self { backtrace, ..Self::new(kind, class, error) };
            }
            cause = inner.source();
        }
        Self::transient(error)
    }
}

impl Error for HandlerError {}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot bill order {0}")]
    struct Context(u32, #[source] HandlerError);

    fn parse(text: &str) -> HandlerResult<u32> {
        Ok(text.parse::<u32>()?)
    }

    fn find_client(order: u32) -> HandlerResult {
        let error = HandlerError::permanent("no such client").with_class("unknown-client");
        Err(Context(order, error))?
    }

    #[test]
    fn an_error_becomes_transient_by_a_question_mark() {
        let error = HandlerError::from(parse("x").unwrap_err());
        assert_eq!((error.kind, error.class), (ErrorKind::Transient, "transient"));
        assert_eq!(error.to_string(), "transient: invalid digit found in string");
    }

    #[test]
    fn a_custom_class_changes_nothing_else() {
        let error = HandlerError::permanent("no such client").with_class("unknown-client");
        assert_eq!((error.kind, error.to_string().as_str()), (ErrorKind::Permanent, "unknown-client: no such client"));
    }

    #[test]
    fn a_handler_error_in_the_chain_decides() {
        let error = HandlerError::from(find_client(7).unwrap_err());
        assert_eq!((error.kind, error.class), (ErrorKind::Permanent, "unknown-client"));
        assert_eq!(error.error, "cannot bill order 7: unknown-client: no such client");
        let direct: Box<dyn Error + Send + Sync> = HandlerError::unavailable("down").into();
        let direct = HandlerError::from(direct);
        assert_eq!((direct.kind, direct.error.as_str()), (ErrorKind::Unavailable, "down"));
    }
}
