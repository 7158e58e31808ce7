//! What a handler says of a message.

use std::error::Error;
use std::fmt;

use relevo_core::inbox::{Setback, Stop};
use relevo_core::{Class, Failure};

/// What a handler says of a message: a verdict, or what troubled it.
pub type Handled = Result<Verdict, Trouble>;

/// A message that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its effect is in the transaction.
    Done,
    /// There was nothing to do; that is recorded.
    Skip,
}

impl Verdict {
    /// The word for it.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Skip => "skip",
        }
    }
}

/// What a trouble means for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It may pass later.
    Retry,
    /// It can never pass.
    Poison,
    /// It says nothing about the message: what the handler needs is away.
    Away,
}

/// Why a message was not handled.
///
/// Every error becomes a trouble that is retried, so that `?` works in a handler. It is no error itself.
#[derive(Debug)]
pub struct Trouble {
    pub(crate) kind: Kind,
    pub(crate) class: &'static str,
    pub(crate) error: String,
    pub(crate) backtrace: Option<String>,
}

impl Trouble {
    /// The word for what cannot be decoded, or breaks its schema.
    pub(crate) const UNDECODABLE: &str = "undecodable";
    /// The word for what takes the process down.
    pub(crate) const CRASH: &str = "crash";
    /// The word for what is older than the inbox remembers.
    pub(crate) const EXPIRED: &str = "expired";

    /// It may pass later: a counted attempt.
    pub fn retry(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Kind::Retry, "transient", error)
    }

    /// It can never pass: it goes to the dead letters at once.
    pub fn poison(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Kind::Poison, "poison", error)
    }

    /// What the handler needs is away. No attempt is counted: the lane pauses, and a message probes it now and then.
    pub fn away(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(Kind::Away, "away", error)
    }

    /// The same, under another word for its kind: dead letters can be searched by it.
    #[must_use]
    pub fn with_class(self, class: &'static str) -> Self {
        Self { class, ..self }
    }

    pub(crate) fn undecodable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::poison(error).with_class(Self::UNDECODABLE)
    }

    pub(crate) fn panicked(message: String, backtrace: String) -> Self {
        Self { backtrace: Some(backtrace), ..Self::retry(message).with_class("panic") }
    }

    /// What is kept of the message, by what happens to it.
    pub(crate) fn setback(self, stop: Stop, attempts: u32) -> Setback {
        Setback { stop, attempts, class: self.class, error: self.error, backtrace: self.backtrace }
    }

    fn new(kind: Kind, class: &'static str, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        // The chain of causes is told as every failure tells it.
        let error = Failure::new(Class::Transient, error).describe();
        Self { kind, class, error, backtrace: None }
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::retry(error)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u32, Trouble> {
        Ok(text.parse::<u32>()?)
    }

    #[test]
    fn any_error_becomes_a_retry_by_a_question_mark() {
        let trouble = parse("x").unwrap_err();
        assert_eq!((trouble.kind, trouble.class), (Kind::Retry, "transient"));
        assert_eq!(trouble.to_string(), "transient: invalid digit found in string");
    }

    #[test]
    fn a_class_of_ones_own_changes_nothing_else() {
        let trouble = Trouble::poison("no such client").with_class("unknown-client");
        assert_eq!((trouble.kind, trouble.to_string().as_str()), (Kind::Poison, "unknown-client: no such client"));
    }
}
