//! The result of a handler.

use std::error::Error;
use std::fmt;

use relevo_core::inbox::DedupId;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, classes};
use relevo_core::{Class, Failure};

/// The result of a handler: a verdict or an error.
pub type HandlerResult = Result<Verdict, HandlerError>;

/// The verdict on a message that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The effect is in the transaction.
    Done,
    /// There was nothing to do; the skip is recorded.
    Skip,
}

impl Verdict {
    /// The messages to record as skipped when the transaction of the message with this id commits.
    pub(crate) const fn skipped(self, id: &DedupId) -> &[DedupId] {
        match self {
            Self::Done => &[],
            Self::Skip => std::slice::from_ref(id),
        }
    }

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
/// Every other error converts into a transient one, so that `?` works in a handler. It does not implement `Error` itself.
#[derive(Debug)]
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

impl<E: Error + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::transient(error)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u32, HandlerError> {
        Ok(text.parse::<u32>()?)
    }

    #[test]
    fn an_error_becomes_transient_by_a_question_mark() {
        let error = parse("x").unwrap_err();
        assert_eq!((error.kind, error.class), (ErrorKind::Transient, "transient"));
        assert_eq!(error.to_string(), "transient: invalid digit found in string");
    }

    #[test]
    fn a_custom_class_changes_nothing_else() {
        let error = HandlerError::permanent("no such client").with_class("unknown-client");
        assert_eq!((error.kind, error.to_string().as_str()), (ErrorKind::Permanent, "unknown-client: no such client"));
    }
}
