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

impl Report {
    /// The answer that follows from the checks.
    pub fn of(checks: Vec<Check>) -> Self {
        Self { ok: checks.iter().all(|check| check.ok), checks }
    }

    /// The same without its reasons.
    pub(crate) fn without_reasons(self) -> Self {
        Self { checks: Vec::new(), ..self }
    }
}
