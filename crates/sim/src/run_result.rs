//! The result of a run and the broken promises.

use std::fmt;
use std::time::Duration;

use bytestring::ByteString;

use crate::history::{MessageName, SimEvent};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub promise: &'static str,
    /// The violation, in a sentence.
    pub sentence: String,
    /// The key it happened to.
    pub key: Option<ByteString>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.sentence)
    }
}

pub(crate) fn violation(promise: &'static str, name: Option<&MessageName>, sentence: String) -> Violation {
    Violation { promise, sentence, key: name.map(|name| name.key.clone()) }
}

/// The result of a run.
#[derive(Debug)]
pub struct RunResult<E> {
    /// Its seed.
    pub seed: u64,
    /// The broken promises. The one nearest to the cause comes first.
    pub violations: Vec<Violation>,
    /// A hash of all events.
    pub fingerprint: u64,
    /// The events.
    pub events: Vec<(Duration, E)>,
}

impl<E: SimEvent> RunResult<E> {
    /// The virtual time of the run.
    pub fn virtual_time(&self) -> Duration {
        self.events.last().map_or(Duration::ZERO, |(at, _)| *at)
    }

    /// The number of messages in the run.
    pub fn messages(&self) -> usize {
        self.events.iter().filter(|(_, event)| event.is_message()).count()
    }

    /// The number of injected faults, including failures of messages and ends of processes.
    pub fn faults(&self) -> usize {
        self.events.iter().filter(|(_, event)| event.is_fault()).count()
    }
}
