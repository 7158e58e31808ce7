//! The bodies of the probes.

use serde::Serialize;

/// The answer to a probe: good only if every check is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether everything that was looked at is as it should be.
    pub ok: bool,
    /// What was looked at; left out for a caller without the token where there is one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// What the checks stand on, one by one; left out with them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The outbox that a relay reads; left out for a consumer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub outbox: String,
    /// The destination that it carries to; left out for a consumer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// The consumer; left out for a relay.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub consumer: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was seen, in a sentence for people.
    pub seen: String,
}

impl Check {
    /// A check of a relay, by its outbox and destination.
    pub fn of_relay(outbox: &str, destination: &str, ok: bool, seen: String) -> Self {
        let (outbox, destination) = (outbox.to_owned(), destination.to_owned());
        Self { outbox, destination, consumer: String::new(), ok, seen }
    }

    /// A check of a consumer, by its name.
    pub fn of_consumer(consumer: &str, ok: bool, seen: String) -> Self {
        Self { outbox: String::new(), destination: String::new(), consumer: consumer.to_owned(), ok, seen }
    }
}

/// One of the things that something needs to do its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The outbox.
    pub outbox: String,
    /// Its destination.
    pub destination: String,
    /// What it is: `database`, `schema`, `broker`.
    pub part: &'static str,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Whether the answer of the probe follows from it.
    pub needed: bool,
    /// What was seen, in a sentence for people.
    pub seen: String,
}

impl Report {
    /// The answer that follows from the checks.
    pub fn of(checks: Vec<Check>) -> Self {
        Self { ok: checks.iter().all(|check| check.ok), checks, parts: Vec::new() }
    }

    /// The same, with what the checks stand on.
    #[must_use]
    pub fn with(self, parts: Vec<Part>) -> Self {
        Self { parts, ..self }
    }

    /// The same without its reasons.
    pub(crate) fn without_reasons(self) -> Self {
        Self { checks: Vec::new(), parts: Vec::new(), ..self }
    }

    /// Good, whatever the checks say now: it has been so once.
    pub(crate) fn once_good(mut self) -> Self {
        for check in self.checks.iter_mut().filter(|check| !check.ok) {
            (check.ok, check.seen) = (true, "has started".to_owned());
        }
        Self { ok: true, parts: Vec::new(), ..self }
    }
}
