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
    /// The outbox.
    pub outbox: String,
    /// Its destination.
    pub destination: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// What was seen, in a sentence for people.
    pub seen: String,
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
        for check in &mut self.checks {
            (check.ok, check.seen) = (true, "has started".to_owned());
        }
        Self { ok: true, parts: Vec::new(), ..self }
    }
}
