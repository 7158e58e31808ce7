//! What went wrong at the far side, and what that says about the message.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The six kinds of failure; each adapter decides in one file which of its errors is which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The far side cannot be reached. It says nothing about the message.
    Outage,
    /// It may have arrived: the same id goes again.
    Unknown,
    /// The far side named a pause for this address.
    Throttled(Duration),
    /// This message was refused and may pass later.
    Transient,
    /// This message can never pass.
    Poison,
    /// Nothing can pass to this address until a person mends it.
    Blocked,
}

/// How much a failure holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This message, and with it its key.
    Message,
    /// Every message to the same address.
    Address,
    /// Everything to this destination.
    Destination,
}

impl Class {
    /// How much a failure of this class holds back.
    pub const fn scope(self) -> Scope {
        match self {
            Self::Outage => Scope::Destination,
            Self::Throttled(_) | Self::Blocked => Scope::Address,
            Self::Unknown | Self::Transient | Self::Poison => Scope::Message,
        }
    }

    /// Whether it counts as an attempt of the message.
    pub const fn counts(self) -> bool {
        match self {
            Self::Transient | Self::Poison => true,
            Self::Outage | Self::Unknown | Self::Throttled(_) | Self::Blocked => false,
        }
    }

    /// The word used in SQL, metrics, CLI and docs.
    pub const fn word(self) -> &'static str {
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

/// A failed delivery: its class beside its source.
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

    /// What kind it is.
    pub const fn class(&self) -> Class {
        self.class
    }

    /// What the adapter said, if it is an error of this type.
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        self.source.downcast_ref()
    }

    /// The whole chain of causes in one line, for people, each said once.
    pub fn describe(&self) -> String {
        let mut text = self.source.to_string();
        let mut cause = self.source.source();
        while let Some(error) = cause {
            let told = error.to_string();
            // Some libraries repeat a cause in the sentence of what it caused.
            if !text.ends_with(&told) {
                text.push_str(": ");
                text.push_str(&told);
            }
            cause = error.source();
        }
        text
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class.word(), self.source)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.source()
    }
}

/// What became of one publication: confirmed by the far side, or not.
pub type Outcome = Result<(), Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    /// An error whose sentence holds that of its cause, as some libraries have them.
    #[derive(Debug, thiserror::Error)]
    #[error("{what}")]
    struct Said {
        what: &'static str,
        source: Option<Box<Said>>,
    }

    #[test]
    fn a_cause_that_is_repeated_is_said_once() {
        let cause = Said { what: "the disk is full", source: None };
        let library = Said { what: "from the database: the disk is full", source: Some(Box::new(cause)) };
        let ours = Said { what: "not written", source: Some(Box::new(library)) };
        let told = Failure::new(Class::Outage, ours).describe();
        assert_eq!(told, "not written: from the database: the disk is full");
    }
}
