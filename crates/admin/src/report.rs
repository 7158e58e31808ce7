//! The response bodies of the probes.

use serde::Serialize;

/// The response to a probe. It is successful only if all checks are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether all checks succeeded.
    pub ok: bool,
    /// The individual checks. Omitted if a token is configured and the caller did not send it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// The parts that the checks depend on. Omitted in the same case as `checks`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The outbox of a relay. Omitted for a consumer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub outbox: String,
    /// The destination of a relay. Omitted for a consumer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub destination: String,
    /// The name of a consumer. Omitted for a relay.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub consumer: String,
    /// Whether the check succeeded.
    pub ok: bool,
    /// The finding, as a readable sentence.
    pub seen: String,
}

impl Check {
    /// A check of a relay, identified by its outbox and destination.
    pub fn of_relay(outbox: &str, destination: &str, ok: bool, seen: String) -> Self {
        let (outbox, destination) = (outbox.to_owned(), destination.to_owned());
        Self { outbox, destination, consumer: String::new(), ok, seen }
    }

    /// A check of a consumer, identified by its name.
    pub fn of_consumer(consumer: &str, ok: bool, seen: String) -> Self {
        Self { outbox: String::new(), destination: String::new(), consumer: consumer.to_owned(), ok, seen }
    }
}

/// One dependency of a relay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The outbox.
    pub outbox: String,
    /// Its destination.
    pub destination: String,
    /// The kind of dependency: `database`, `schema`, `broker`.
    pub part: &'static str,
    /// Whether the dependency works.
    pub ok: bool,
    /// Whether the result of the probe depends on it.
    pub needed: bool,
    /// The finding, as a readable sentence.
    pub seen: String,
}

impl Report {
    /// Creates a report. It is successful if all checks are.
    pub fn of(checks: Vec<Check>) -> Self {
        Self { ok: checks.iter().all(|check| check.ok), checks, parts: Vec::new() }
    }

    /// The same report, with the parts that the checks depend on.
    #[must_use]
    pub fn with(self, parts: Vec<Part>) -> Self {
        Self { parts, ..self }
    }

    /// The same report without details.
    pub(crate) fn without_details(self) -> Self {
        Self { checks: Vec::new(), parts: Vec::new(), ..self }
    }

    /// Marks the report as successful, because it has succeeded before.
    pub(crate) fn mark_started(mut self) -> Self {
        for check in self.checks.iter_mut().filter(|check| !check.ok) {
            (check.ok, check.seen) = (true, "has started".to_owned());
        }
        Self { ok: true, parts: Vec::new(), ..self }
    }
}
