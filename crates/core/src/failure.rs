//! Failure classes: what a broker error means for the message.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The six classes of failure. Each adapter maps its errors to classes in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The broker is unreachable. This says nothing about the message.
    Outage,
    /// The message may have arrived. The relay sends it again with the same id.
    Unknown,
    /// The receiver requested a pause for this address.
    Throttled(Duration),
    /// The broker rejected this message, but may accept it later.
    Transient,
    /// The broker will never accept this message.
    Poison,
    /// The address rejects every message until an operator fixes the cause.
    Blocked,
}

impl Class {
    /// Whether the failure counts as an attempt.
    pub const fn counts_as_attempt(self) -> bool {
        match self {
            Self::Transient | Self::Poison => true,
            Self::Outage | Self::Unknown | Self::Throttled(_) | Self::Blocked => false,
        }
    }

    /// The name used in SQL, metrics, CLI and docs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Outage => "outage",
            Self::Unknown => "unknown",
            Self::Throttled(_) => "throttled",
            Self::Transient => "transient",
            Self::Poison => "poison",
            Self::Blocked => "blocked",
        }
    }
}

/// A failed delivery: a class and its source error.
#[derive(Clone, Debug)]
pub struct Failure {
    class: Class,
    source: Arc<dyn Error + Send + Sync>,
}

impl Failure {
    /// A failure of this class, caused by `source`.
    pub fn new(class: Class, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { class, source: Arc::from(source.into()) }
    }

    /// The failure class.
    pub const fn class(&self) -> Class {
        self.class
    }

    /// The adapter's error, if it has this type.
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        self.source.downcast_ref()
    }

    /// The adapter's error with its chain of causes.
    pub fn into_source(self) -> Arc<dyn Error + Send + Sync> {
        self.source
    }

    /// The chain of causes in one line. Repeated causes appear once.
    pub fn error_chain(&self) -> String {
        let mut text = self.source.to_string();
        let mut cause = self.source.source();
        while let Some(error) = cause {
            let cause_text = error.to_string();
            // Some libraries include the text of the cause in their own error text.
            if !text.ends_with(&cause_text) {
                text.push_str(": ");
                text.push_str(&cause_text);
            }
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class.as_str(), self.source)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

/// The outcome of one publication: confirmed by the broker, or failed.
pub type Outcome = Result<(), Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    /// An error whose text includes the text of its cause, as in some libraries.
    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct ChainedError {
        text: &'static str,
        source: Option<Box<ChainedError>>,
    }

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let cause = ChainedError { text: "the disk is full", source: None };
        let library = ChainedError { text: "from the database: the disk is full", source: Some(Box::new(cause)) };
        let ours = ChainedError { text: "not written", source: Some(Box::new(library)) };
        let chain = Failure::new(Class::Outage, ours).error_chain();
        assert_eq!(chain, "not written: from the database: the disk is full");
    }
}
