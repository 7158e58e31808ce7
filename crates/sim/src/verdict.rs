//! What came of a run, and the promises that it broke.

use std::fmt;
use std::time::Duration;

use bytestring::ByteString;

use crate::history::{Happening, Name};

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub promise: &'static str,
    /// What happened, in a sentence.
    pub sentence: String,
    /// The key that it happened to.
    pub key: Option<ByteString>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.sentence)
    }
}

pub(crate) fn broken(promise: &'static str, name: Option<&Name>, sentence: String) -> Violation {
    Violation { promise, sentence, key: name.map(|name| name.key.clone()) }
}

/// What came of a run.
#[derive(Debug)]
pub struct Verdict<E> {
    /// Its seed.
    pub seed: u64,
    /// The promises that were broken, the nearest to the cause first.
    pub violations: Vec<Violation>,
    /// A fingerprint of all that happened.
    pub fingerprint: u64,
    /// What happened.
    pub events: Vec<(Duration, E)>,
}

impl<E: Happening> Verdict<E> {
    /// How much virtual time passed.
    pub fn lasted(&self) -> Duration {
        self.events.last().map_or(Duration::ZERO, |(at, _)| *at)
    }

    /// How many messages came into the world.
    pub fn messages(&self) -> usize {
        self.events.iter().filter(|(_, event)| event.is_message()).count()
    }

    /// How many faults were injected, failures of messages and ends of processes among them.
    pub fn faults(&self) -> usize {
        self.events.iter().filter(|(_, event)| event.is_fault()).count()
    }
}
